"""SyncConnection: runs a job inside its push, in the caller (Laravel's SyncQueue)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from qframe import events
from qframe.config import ConnectionSettings
from qframe.connection import BulkPush, Connection, OneByOne, substitute
from qframe.contracts.identity import JobId, job_id
from qframe.contracts.status import State
from qframe.contracts.step import Push
from qframe.drivers.ordered import OrderedBackend
from qframe.drivers.sync import SyncBackend, SyncJob, cannot_come_back
from qframe.exceptions import DontHandle, UnknownJob, Unsupported
from qframe.features.base import End
from qframe.features.chain import CAUSE
from qframe.features.context import Context
from qframe.features.reserved import ReservedJob
from qframe.jobs import current, execution
from qframe.jobs.definition import JobDefinition, index
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.registry import defined_in_main, own_job
from qframe.jobs.tracing import active, sending
from qframe.manager import connection_types
from qframe.payload import envelope, tracebacks
from qframe.payload.envelope import Envelope

log = logging.getLogger("qframe")


class SyncConnection(Connection):
    """Runs each job inside its push, with one attempt; `send()` raises the job's exception.

    It ignores delays, with one warning, and records nothing. What the end of a job pushes, such as
    the next link of its chain, runs after it, in a loop: chains do not nest.
    """

    runs_elsewhere = False

    def __init__(self, context: Context, settings: ConnectionSettings) -> None:
        super().__init__(context, settings)
        backend = context.backend
        messages = backend.messages if isinstance(backend, OrderedBackend) else backend
        if isinstance(messages, SyncBackend):
            messages.run = self._pushed
        self._warned = False

    # -- pushing ----------------------------------------------------------------------------------

    def push_envelope(
        self, job: Dispatchable, made: Envelope, queue: str | None, delay: float
    ) -> JobId[Any]:
        """Run a job, and what its end pushes. Returns its id, or that of the job in its place."""
        ours = _ours(self, job)
        if (other := substitute(self, job)) is not None:
            return other.push_envelope(job, made, queue, delay)
        if delay and not self._warned:
            self._warned = True
            log.warning("the connection %r keeps no jobs: a delay is ignored", self.name)
        waiting: deque[Push] = deque()
        with sending(self):
            pushing = self.pushing(job, made, queue, delay)
            with _later(waiting):
                holder = self.context.push(pushing)
        self.fire_dispatched(job, pushing, holder)
        self.go_on(waiting, type(ours))
        return job_id(holder or made.uuid, job)

    def run(self, job: Dispatchable, more: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 (what the job gives)
        """Run a job, whatever else runs or waits, and return the result of `handle`.

        `more` has additional keys of its payload.
        """
        ours = _ours(self, job)
        made = self.envelope(job, more)
        if (other := substitute(self, job)) is not None:
            other.push_envelope(job, made, None, 0)
            return None
        rules = job.unique_rule, job.once_rule
        for key in [rule.key for rule in rules if rule is not None]:
            del made.payload[key]
            made.encode()
        with sending(self):
            pushing = self.pushing(job, made, None, 0)
        self.fire_dispatched(job, pushing, "")
        return self.work_off(deque([Push(pushing.queue, pushing.raw)]), type(ours))

    def gather(self, queue: str | None, later: Iterator[float] | None = None) -> BulkPush:
        """Return a bulk that runs jobs one after the other."""
        return _SyncPush(self, queue, later)

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Raise `Unsupported`, even for a fake: only a job object can run here."""
        del payload, queue, delay
        raise Unsupported(f"the connection {self.name!r} (sync) runs jobs, not raw payloads")

    # -- running ----------------------------------------------------------------------------------

    def _pushed(self, push: Push) -> None:
        """Run what was pushed, now or after the step that pushes it."""
        waiting = _waiting.get()
        if waiting is None:
            self.go_on(deque([push]))
        else:
            waiting.append(push)

    def go_on(self, waiting: deque[Push], first: type[JobDefinition] | None = None) -> None:
        """Run what a dispatch has pushed; `first` is the class of the first job, if known."""
        self.work_off(waiting, first)

    def find_class(self, name: str) -> type[JobDefinition]:
        """Return a class by a name that this process has not defined. Raises `UnknownJob`."""
        raise UnknownJob(f"{name} is not defined in this process")

    def work_off(self, waiting: deque[Push], first: type[JobDefinition] | None = None) -> Any:  # noqa: ANN401 (what the first job gives)
        """Run jobs in turn, each followed by what its end pushes. Returns the first one's result.

        In the end it raises the exception of the first job or of a link of its chain.
        """
        with execution.run_in_caller():
            return self._worked_off(waiting, first)

    def fail(self, push: Push, error: BaseException) -> None:
        """Record a job as failed that cannot be run. What its end pushes is recorded, too."""
        waiting = deque([push])
        while waiting:
            after: deque[Push] = deque()
            _fail(
                _OneAttempt(self.context, waiting.popleft(), after), None, error, time.monotonic()
            )
            waiting.extend(after)

    def _worked_off(self, waiting: deque[Push], first: type[JobDefinition] | None) -> Any:  # noqa: ANN401 (as above)
        gave: list[Any] = []
        trouble: BaseException | None = None
        while waiting:
            after: deque[Push] = deque()
            job = _OneAttempt(self.context, waiting.popleft(), after)
            context = current.context_of(job)  # the caller's own context stays as it is
            try:
                gave.append(context.run(self._run, job, first if not gave else None))
            except Exception as error:  # noqa: BLE001 (raised below)
                gave.append(None)
                if job.refusal is None and CAUSE in job.payload:  # that failure is the one to raise
                    log.warning("%s failed: %s", job.uuid, tracebacks.brief(error))
                else:
                    trouble = trouble or error
            except BaseException as error:  # noqa: BLE001 (raised below)
                trouble = error
                waiting.clear()
            waiting.extendleft(reversed(after))
        if trouble is not None:
            raise trouble
        return gave[0] if gave else None

    def _run(self, job: _OneAttempt, job_class: type[JobDefinition] | None) -> Any:  # noqa: ANN401 (what the job gives)
        """Run a job as it arrives, and settle it, traced as an attempt."""
        if (tracing := active.tracing) is None:
            return self._run_untraced(job, job_class)
        outcome, error = "failed", None
        tracing.processing(self, job, here=True)
        try:
            result = self._run_untraced(job, job_class)
            outcome = "skipped" if job.is_skipped else "done"
        except BaseException as raised:
            error = raised
            raise
        finally:
            tracing.attempted(job, outcome, error)
        return result

    def _run_untraced(self, job: _OneAttempt, job_class: type[JobDefinition] | None) -> Any:  # noqa: ANN401 (what the job gives)
        began = time.monotonic()
        plan = job.start_plan()
        self.context.backend.apply(plan)
        plan.applied()
        events.fire(events.JobProcessing, job)
        instance = None
        try:
            instance = self._made(job, job_class)
            result = execution.perform(instance, self.middleware(), self.hooks)
        except BaseException as error:
            if isinstance(error, DontHandle):
                reason = str(error) or "DontHandle"
                job.settle(End(State.SKIPPED, remark=reason))
                events.fire(events.JobSkipped, job, reason)
                return None
            events.fire(events.JobExceptionOccurred, job, error)
            _fail(job, instance, error, began)
            raise
        if job.failed_with is not None:
            _fail(job, instance, job.failed_with, began)
            raise job.failed_with
        if not job.is_settled:
            job.settle(End(State.COMPLETE, result=result))
        execution.call_hook(instance, "succeeded", hooks=self.hooks)
        events.fire(events.JobProcessed, job, time.monotonic() - began)
        events.fire(events.JobAttempted, job, None)
        return result

    def _made(self, job: ReservedJob, job_class: type[JobDefinition] | None) -> JobDefinition:
        """Make a job from its payload. Raises `UnknownJob` or `InvalidArguments`."""
        name = envelope.job_name(job.payload)
        job_class = job_class or index.get(name) or defined_in_main(name) or own_job(name)
        job_class = job_class or self.find_class(name)
        instance = job_class.from_data(job.data_for(job_class))
        object.__setattr__(instance, "_reserved", job)  # also on a frozen job
        return instance


class _SyncPush(OneByOne):
    def add(self, job: Dispatchable) -> str:
        _ours(self.connection, job)
        return super().add(job)


def _ours(connection: Connection, job: Dispatchable) -> JobDefinition:
    """Return a job that can run here. Raises `Unsupported` for a job of another program."""
    if isinstance(job, Foreign):
        raise Unsupported(
            f"the connection {connection.name!r} (sync) runs jobs in this process and {job.name} "
            "is a job of another program: dispatch it on a connection that it works"
        )
    return job


class _OneAttempt(ReservedJob):
    """The one attempt of a job; what its end pushes goes into `after`."""

    def __init__(self, context: Context, push: Push, after: deque[Push]) -> None:
        super().__init__(context, SyncJob(push))
        self.after = after
        self.is_skipped = False

    def settle(self, end: End) -> None:
        self.is_skipped = end.state is State.SKIPPED
        if not end.state.is_final:
            raise cannot_come_back()
        with _later(self.after):
            super().settle(end)


_waiting: ContextVar[deque[Push] | None] = ContextVar("qframe_sync_waiting", default=None)
"""What was pushed during a step and runs after it."""


@contextlib.contextmanager
def _later(waiting: deque[Push]) -> Iterator[None]:
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)


def _fail(
    job: ReservedJob, instance: JobDefinition | None, error: BaseException, began: float
) -> None:
    if not job.is_settled:
        job.settle(End(State.FAILED, error=error))
        job.failed_with = error
    if instance is not None:
        execution.call_hook(instance, "failed", error, hooks=job.context.hooks)
    events.fire(events.JobFailed, job, error, time.monotonic() - began)
    events.fire(events.JobAttempted, job, error)


connection_types[SyncBackend] = SyncConnection
