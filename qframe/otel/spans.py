"""Spans of dispatches and attempts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from qframe.contracts.job import Job
from qframe.otel import carrier
from qframe.otel.attributes import Values, error_type, measured, of_exception, of_job, of_place
from qframe.otel.measures import Measures

log = logging.getLogger("qframe.otel")

T = TypeVar("T")
_NAME = "qframe"
_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_FLUSH = 2.0
"""Seconds that a process which ends at once waits for its export."""
_FAILURES = {"failed", "lost"}


class _Send:
    def __init__(self, connection: Any, *, many: bool) -> None:  # noqa: ANN401 (a connection)
        self.connection = connection
        self.many = many
        self.began = time.monotonic()
        self.queues: dict[str, None] = {}
        self.count = 0
        self.span: Span | None = None
        self.token: Token[Context] | None = None


class _TracedAttempt:
    """An attempt in progress; its span is current where it runs."""

    def __init__(self, span: Span, values: Values, token: Token[Context] | None) -> None:
        self.span = span
        self.values = values
        self.token = token
        self.began = time.monotonic()


_send: ContextVar[_Send | None] = ContextVar("qframe_otel_send", default=None)


class Spans:
    """Makes spans and measures with these providers. It only logs its own errors."""

    def __init__(
        self, tracers: TracerProvider | None, meters: MeterProvider | None, *, links: bool
    ) -> None:
        self._tracers = tracers
        self._tracer = trace.get_tracer(_NAME, None, tracers, _SCHEMA)
        self._measures = Measures(metrics.get_meter(_NAME, "", meters, _SCHEMA))
        self._links = links
        self._attempts: WeakKeyDictionary[Job, _TracedAttempt] = WeakKeyDictionary()

    # -- dispatches -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def sending(self, connection: Any, *, many: bool) -> Iterator[None]:  # noqa: ANN401 (a connection)
        """Wrap a push."""
        send = _Send(connection, many=many)
        if many:
            _safely(lambda: self._begin_many(send))
        before = _send.set(send)
        try:
            with self._ending(send):
                yield
        finally:
            _send.reset(before)

    def queueing(self, connection: Any, queue: str, payload: dict[str, Any]) -> None:  # noqa: ANN401 (as above)
        """Add the trace context of a job to its payload."""
        _safely(lambda: self._queueing(connection, queue, payload))

    @contextlib.contextmanager
    def resending(
        self,
        connection: Any,  # noqa: ANN401 (as above)
        queue: str,
        payload: dict[str, Any],
    ) -> Iterator[None]:
        """Wrap the push of an unchanged payload, with the context of its origin."""
        send = _Send(connection, many=False)
        send.queues[queue], send.count = None, 1
        values = of_place(connection, queue, "send", "send")
        _safely(
            lambda: self._begin(
                send, queue, SpanKind.CLIENT, values | of_job(payload), carrier.links(payload)
            )
        )
        with self._ending(send):
            yield

    @contextlib.contextmanager
    def _ending(self, send: _Send) -> Iterator[None]:
        """Record how a push ended."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            _safely(lambda: self._sent(send, error))

    def _begin_many(self, send: _Send) -> None:
        values = of_place(send.connection, "", "send", "send")
        self._begin(send, "", SpanKind.CLIENT, values, [])

    def _begin(
        self, send: _Send, queue: str, kind: SpanKind, values: Values, links: list[Link]
    ) -> Context:
        name = f"send {queue}" if queue else "send"
        send.span = self._tracer.start_span(name, kind=kind, attributes=values, links=links)
        context = trace.set_span_in_context(send.span)
        send.token = contexts.attach(context)
        return context

    def _queueing(self, connection: Any, queue: str, payload: dict[str, Any]) -> None:  # noqa: ANN401 (as above)
        send = _send.get()
        job = of_job(payload)
        if send is not None and not send.many and send.span is None:
            values = of_place(connection, queue, "send", "send") | job
            context = self._begin(send, queue, SpanKind.PRODUCER, values, [])
        else:
            values = of_place(connection, queue, "create", "create") | job
            span = self._tracer.start_span(
                f"create {queue}", kind=SpanKind.PRODUCER, attributes=values
            )
            span.end()
            context = trace.set_span_in_context(span)
        if send is not None:
            send.queues[queue] = None
            send.count += 1
        carrier.put(payload, context)

    def _sent(self, send: _Send, error: BaseException | None) -> None:
        if send.token is not None:
            contexts.detach(send.token)
        queues = [*send.queues]
        queue = queues[0] if len(queues) == 1 else ""
        values = of_place(send.connection, queue, "send", "send")
        why = None if error is None else error_type(error)
        if send.span is not None:
            if send.many:
                if queue:
                    send.span.update_name(f"send {queue}")
                    send.span.set_attribute("messaging.destination.name", queue)
                send.span.set_attribute("messaging.batch.message_count", send.count)
            _end(send.span, error, why, fails=error is not None)
        if send.count:
            seconds = time.monotonic() - send.began
            self._measures.sent(send.count, seconds, measured(values, why))

    # -- attempts ---------------------------------------------------------------------------------

    def processing(self, connection: Any, job: Job, *, here: bool) -> None:  # noqa: ANN401 (as above)
        """Begin the span of an attempt, and make it current if it runs `here`."""
        _safely(lambda: self._processing(connection, job, here=here))

    def _processing(self, connection: Any, job: Job, *, here: bool) -> None:  # noqa: ANN401 (as above)
        values = of_place(connection, job.queue, "process", "process") | of_job(job.payload)
        values["qframe.job.attempt"] = job.attempts()
        origin = carrier.origin(job.payload)
        # An attempt inside its dispatch is a child of it.
        is_child = origin is not None and (not self._links or connection.context.at_once)
        span = self._tracer.start_span(
            f"process {job.queue}",
            context=origin if is_child else None,
            kind=SpanKind.CONSUMER,
            attributes=values,
            links=[] if is_child else carrier.links(job.payload),
        )
        token = contexts.attach(trace.set_span_in_context(span)) if here else None
        self._attempts[job] = _TracedAttempt(span, values, token)

    def forked(self, job: Job) -> None:
        """Make the worker's span current here; only the worker ends it."""
        attempt = self._attempts.get(job)
        if attempt is not None:
            span = trace.NonRecordingSpan(attempt.span.get_span_context())
            _safely(lambda: contexts.attach(trace.set_span_in_context(span)))

    def attempted(self, job: Job, outcome: str, error: BaseException | None) -> None:
        """End the span of an attempt."""
        attempt = self._attempts.pop(job, None)
        if attempt is not None:
            _safely(lambda: self._attempted(attempt, outcome, error))

    def _attempted(
        self, attempt: _TracedAttempt, outcome: str, error: BaseException | None
    ) -> None:
        # Another thread may end it, if its handler does not end.
        if attempt.token is not None and trace.get_current_span() is attempt.span:
            contexts.detach(attempt.token)
        is_expected = outcome in {"skipped", "given back", "cancelled"}
        error = None if is_expected else error
        why = outcome if outcome == "lost" else None
        why = why if error is None else error_type(error)
        attempt.span.set_attribute("qframe.job.outcome", outcome)
        _end(attempt.span, error, why, fails=outcome in _FAILURES)
        seconds = time.monotonic() - attempt.began
        self._measures.processed(seconds, measured(attempt.values, why))

    # -- this process ------------------------------------------------------------------------------

    def leaving(self) -> None:
        """Export the spans, waiting briefly.

        Not the metrics: this process has those of the one it was forked from.
        """
        provider = self._tracers or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)
        if not callable(flush):
            return
        thread = threading.Thread(target=_safely, args=(flush,), daemon=True)  # the export may hang
        if _safely(thread.start) is None and thread.ident is not None:
            thread.join(_FLUSH)

    def log_fields(self) -> dict[str, str | int]:
        """Return the ids of the current span, in hex."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }


def _end(span: Span, error: BaseException | None, why: str | None, *, fails: bool) -> None:
    """End a span; `fails` sets the status to error."""
    if error is not None:
        span.record_exception(error, of_exception(error))
    if why is not None:
        span.set_attribute("error.type", why)
    if fails:
        span.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
    span.end()


def _safely(act: Callable[[], T]) -> T | None:
    """Call `act`; logs its exceptions: a span must not lose a job."""
    try:
        return act()
    except Exception:
        log.exception("OpenTelemetry: a span or a measure is lost")
        return None
