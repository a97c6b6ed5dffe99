"""Spans of dispatches and attempts, in one process on the memory backend and in real workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from contextvars import copy_context
from typing import Any, ClassVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from qframe import (
    BackendUnavailable,
    DontHandle,
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    abulk,
    batch,
    bulk,
    chain,
    dispatch,
    job_log_fields,
    manager,
    otel,
)
from qframe.contracts.failed import FailedJob
from qframe.failed.retry import retry
from qframe.jobs.tracing import active
from qframe.otel.attributes import of_place
from qframe.otel.measures import BUCKETS
from tests.otel.conftest import Traced

pytestmark = pytest.mark.usefixtures("fresh")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
seen: list[dict[str, Any]] = []


@pytest.fixture
def queues() -> QueueManager:
    seen.clear()
    made = QueueManager({"default": "memory", "jobs": [__name__]})
    manager.use(made)
    return made


def work(manager: QueueManager, **options: Any) -> None:
    assert Worker(manager, WorkerOptions(stop_when_empty=True, memory=0, **options)).run() == 0


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


class Ends(Queueable):
    how: str = ""
    tries: ClassVar[int] = 2

    def handle(self) -> None:
        seen.append(job_log_fields())
        if self.how == "release" and self.job.attempts() == 1:
            self.release()
        if self.how == "raise" or (self.how == "retry" and self.job.attempts() == 1):
            raise LookupError("no such order")
        if self.how == "skip":
            raise DontHandle("needless")
        if self.how == "dispatch":
            dispatch(Ends()).send()


class Awaits(Queueable):
    async def handle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.create_task(self._on())

    async def _on(self) -> None:
        seen.append(job_log_fields())
        await dispatch(Ends())


def test_an_attempt_is_linked_to_its_dispatch(queues: QueueManager, traced: Traced) -> None:
    uuid = dispatch(Ends()).on_queue("mail").send()
    work(queues, queues=("mail",))
    sent, processed = traced.one("send mail"), traced.one("process mail")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert linked(processed) == [ids(sent)]
    assert processed.parent is None
    assert sent.context.trace_id != processed.context.trace_id
    common = {
        "messaging.system": "qframe",
        "messaging.destination.name": "mail",
        "messaging.message.id": uuid,
        "qframe.connection": "memory",
        "qframe.driver": "memory",
        "qframe.job.name": f"{__name__}.Ends",
    }
    assert dict(sent.attributes or {}) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert dict(processed.attributes or {}) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "qframe.job.attempt": 1,
        "qframe.job.outcome": "done",
    }
    assert processed.status.status_code is StatusCode.UNSET
    (fields,) = seen
    assert fields["trace_id"] == trace.format_trace_id(processed.context.trace_id)
    assert fields["span_id"] == trace.format_span_id(processed.context.span_id)


def test_or_its_child(queues: QueueManager, traced: Traced) -> None:
    traced.start(links=False)
    dispatch(Ends()).send()
    work(queues)
    sent, processed = traced.one("send default"), traced.one("process default")
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert not processed.links


def test_a_trace_goes_from_php_and_back_to_it(queues: QueueManager, traced: Traced) -> None:
    payload = {"uuid": "a-1", "job": f"{__name__}.Ends", "displayName": "Ends", "attempts": 0}
    payload |= {"data": {"how": "dispatch"}, "traceparent": PARENT, "tracestate": "php=1"}
    otel.uninstrument()
    connection = queues.connection()
    connection.push_raw(json.dumps(payload), "in")
    traced.start(links=False)
    work(queues, queues=("in",))
    processed, sent = traced.one("process in"), traced.one("send default")
    assert trace.format_trace_id(processed.context.trace_id) == TRACE
    assert processed.context.trace_state["php"] == "1"
    assert sent.parent is not None
    assert sent.parent.span_id == processed.context.span_id
    (job,) = connection.reserve(["default"])
    assert job.payload["traceparent"].split("-")[1] == TRACE
    assert job.payload["tracestate"] == "php=1"


@pytest.mark.parametrize("odd", [7, "", "00-zz", None, ["x"], "00-" + "0" * 32 + "-0-01"])
def test_an_odd_traceparent_does_no_harm(queues: QueueManager, traced: Traced, odd: object) -> None:
    payload = {"uuid": "a-1", "job": f"{__name__}.Ends", "data": {}, "traceparent": odd}
    queues.connection().push_raw(json.dumps(payload))
    work(queues)
    processed = traced.one("process default")
    assert not processed.links
    assert (processed.attributes or {})["qframe.job.outcome"] == "done"


@pytest.mark.parametrize(
    ("how", "outcomes", "status", "errors"),
    [
        ("release", ["released", "done"], StatusCode.UNSET, [None, None]),
        ("retry", ["retried", "done"], StatusCode.UNSET, ["LookupError", None]),
        ("raise", ["retried", "failed"], StatusCode.ERROR, ["LookupError", "LookupError"]),
        ("skip", ["skipped"], StatusCode.UNSET, [None]),
    ],
)
def test_each_attempt_says_how_it_ended(
    queues: QueueManager,
    traced: Traced,
    how: str,
    outcomes: list[str],
    status: StatusCode,
    errors: list[str | None],
) -> None:
    dispatch(Ends(how=how)).send()
    work(queues)
    attempts = traced.named("process default")
    said = [dict(span.attributes or {}) for span in attempts]
    assert [each["qframe.job.outcome"] for each in said] == outcomes
    assert [each["qframe.job.attempt"] for each in said] == [*range(1, len(outcomes) + 1)]
    assert [each.get("error.type") for each in said] == errors
    assert attempts[-1].status.status_code is status
    assert all(span.status.status_code is StatusCode.UNSET for span in attempts[:-1])
    recorded = [[event.name for event in span.events] for span in attempts]
    assert recorded == [["exception"] if error else [] for error in errors]
    assert all(linked(span) == [ids(traced.one("send default"))] for span in attempts)


def test_a_bulk_is_one_send_and_a_create_each(queues: QueueManager, traced: Traced) -> None:
    bulk([Ends(), Ends(), Ends()], "many")
    sent, made = traced.one("send many"), traced.named("create many")
    assert sent.kind is SpanKind.CLIENT
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert [span.kind for span in made] == [SpanKind.PRODUCER] * 3
    assert all(span.parent and span.parent.span_id == sent.context.span_id for span in made)
    work(queues, queues=("many",))
    origins = [linked(span)[0] for span in traced.named("process many")]
    assert origins == [ids(span) for span in made]


def test_links_and_members_have_contexts_of_their_own(queues: QueueManager, traced: Traced) -> None:
    chain([Ends(), Ends()]).dispatch()
    batch([Ends(), Ends()]).dispatch()
    counts = [
        (s.attributes or {})["messaging.batch.message_count"] for s in traced.named("send default")
    ]
    assert counts == [2, 2]
    work(queues)
    made = {ids(span) for span in traced.named("create default")}
    origins = [linked(span)[0] for span in traced.named("process default") if span.links]
    assert len(set(origins)) == len(origins) == 5  # of the batch's own job, too
    assert {*origins} <= made


def test_a_dispatch_on_a_loop_belongs_to_what_dispatched_it(
    queues: QueueManager, traced: Traced
) -> None:
    async def view() -> None:
        with traced.tracers.get_tracer("app").start_as_current_span("view"):
            await dispatch(Ends())
            dispatch(Ends())  # dropped
            await abulk([Ends()])
            await chain([Ends()])

    asyncio.run(view())
    from qframe.dispatch.draft import flush

    flush()
    view_span = traced.one("view")
    sends = traced.named("send default")
    assert len(sends) == 4
    assert all(s.parent and s.parent.span_id == view_span.context.span_id for s in sends)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_a_job_dispatches_belongs_to_its_attempt(
    queues: QueueManager, traced: Traced, concurrency: int
) -> None:
    dispatch(Ends(how="dispatch")).on_queue("sync-ones").send()
    dispatch(Awaits()).on_queue("async-ones").send()
    options = {"concurrency": concurrency} if concurrency > 1 else {}
    work(queues, queues=("sync-ones", "async-ones"), **options)
    parents = {s.parent.span_id for s in traced.named("send default") if s.parent}
    attempts = [traced.one("process sync-ones"), traced.one("process async-ones")]
    assert parents == {span.context.span_id for span in attempts}
    logged = {fields["span_id"] for fields in seen}
    assert logged == {trace.format_span_id(span.context.span_id) for span in attempts}


def test_sync_jobs_are_attempts_within_their_send(fresh: Any, traced: Traced) -> None:
    manager.use(QueueManager({"default": "sync"}))
    with pytest.raises(LookupError):
        dispatch(Ends(how="raise")).send()
    sent, processed = traced.one("send default"), traced.one("process default")
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.status.status_code is StatusCode.ERROR


def test_a_retried_job_keeps_its_context(queues: QueueManager, traced: Traced) -> None:
    dispatch(Ends(how="raise")).send()
    work(queues)
    connection = queues.connection()
    (record,) = _records(connection.failed)
    assert retry(queues, connection.failed, record)
    again = traced.named("send default")[-1]
    assert again.kind is SpanKind.CLIENT
    assert linked(again) == [ids(traced.named("send default")[0])]


def _records(store: Any) -> list[FailedJob]:
    return [*store.all()]


def test_a_push_that_fails_is_an_error(
    queues: QueueManager, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BackendUnavailable("gone")

    monkeypatch.setattr(queues.connection().backend, "apply", gone)
    with pytest.raises(BackendUnavailable):
        dispatch(Ends()).send()
    sent = traced.one("send default")
    assert sent.status.status_code is StatusCode.ERROR
    assert (sent.attributes or {})["error.type"] == "qframe.exceptions.BackendUnavailable"


def test_a_job_that_is_only_held_has_no_span(queues: QueueManager, traced: Traced) -> None:
    dispatch(Ends()).send()
    assert len(queues.connection().reserve(["default"])) == 1
    assert [span.name for span in traced.exporter.get_finished_spans()] == ["send default"]


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ({"driver": "redis", "url": "redis://u:secret@cache:7000/1"}, ("cache", 7000)),
        ({"driver": "redis", "url": "unix:///run/redis.sock"}, (None, None)),
        ({"driver": "beanstalkd", "host": "b1"}, ("b1", 11300)),
        ({"driver": "database", "url": "sqlite:///a.db"}, (None, None)),
    ],
)
def test_the_server_is_named_without_its_password(
    fresh: Any, connection: dict[str, Any], said: tuple[str | None, int | None]
) -> None:
    made = QueueManager({"connections": {"there": connection}}).connection("there")
    values = of_place(made, "mail", "send", "send")
    assert (values.get("server.address"), values.get("server.port")) == said
    assert "secret" not in str(values)


def test_the_four_metrics(queues: QueueManager, traced: Traced) -> None:
    bulk([Ends(), Ends()])
    dispatch(Ends(how="skip")).send()
    work(queues)
    data = traced.reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(found) == {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }
    points: dict[str, list[Any]] = {name: [*each.data.data_points] for name, each in found.items()}
    assert sum(each.value for each in points["messaging.client.sent.messages"]) == 3
    assert sum(each.value for each in points["messaging.client.consumed.messages"]) == 3
    assert points["messaging.process.duration"][0].explicit_bounds == BUCKETS
    assert found["messaging.process.duration"].unit == "s"


def test_what_breaks_in_tracing_breaks_no_job(
    queues: QueueManager, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing: Any = active.tracing

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no span today")

    monkeypatch.setattr(tracing, "_tracer", type("T", (), {"start_span": broken})())
    dispatch(Ends()).send()
    bulk([Ends()])
    work(queues)
    assert len(seen) == 2


def test_a_flush_that_hangs_is_not_waited_for(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(traced.tracers, "force_flush", lambda *_: hangs.wait(60))
    monkeypatch.setattr("qframe.otel.spans._FLUSH", 0.05)
    assert active.tracing is not None
    thread = threading.Thread(target=active.tracing.leaving, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    hangs.set()


def test_an_attempt_may_end_in_another_thread_than_it_began(
    traced: Traced, queues: QueueManager, caplog: pytest.LogCaptureFixture
) -> None:
    dispatch(Ends()).send()
    (job,) = queues.connection().reserve(["default"])
    tracing = active.tracing
    assert tracing is not None
    copy_context().run(lambda: tracing.processing(queues.connection(), job, here=True))
    tracing.attempted(job, "failed", TimeoutError("late"))
    assert traced.one("process default").status.status_code is StatusCode.ERROR
    assert caplog.records == []


def test_without_it_nothing_is_imported() -> None:
    code = "import sys, qframe; qframe.QueueManager({'default': 'memory'}).connection();"
    code += "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
