"""ReservedJob: a reserved job of any driver. Feature: adds operations to its steps."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from qframe import forks
from qframe.contracts.backend import Standing
from qframe.contracts.durable import DurableSteps
from qframe.contracts.history import STEPS, History, first_start
from qframe.contracts.recording import Recording
from qframe.contracts.status import State, check_progress
from qframe.contracts.step import (
    Bury,
    Delete,
    Operation,
    Outcome,
    Record,
    Release,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers import process
from qframe.drivers.guard import guarded
from qframe.exceptions import (
    BackendUnavailable,
    InvalidArguments,
    InvalidPayload,
    InvalidSignature,
    JobFailedByHand,
)
from qframe.features import records
from qframe.features.base import End, Plan
from qframe.features.completion import COMPLETING, CompletableJob
from qframe.features.context import Context, PushFeature
from qframe.forks import cached_property
from qframe.jobs import current, upgrades
from qframe.jobs.called import fields_of_call
from qframe.jobs.options import check_given
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.payload import encryption, envelope, timing
from qframe.payload.scheduled import named_run
from qframe.payload.text import one_line

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition

T = TypeVar("T")

_STEPS = "steps"
"""The payload key of the feature that keeps durable steps."""
_TRIES = 20
_DELETE = Delete()


class Postponed(NamedTuple):
    """Why a held job is given back, and after how many seconds it is ready again."""

    why: str
    delay: float = 0.0


class StopFlag(Protocol):
    """Whether a worker stops."""

    quit: bool


class ReservedJob(CompletableJob):
    """One job, reserved by this process, with the features in its payload.

    If the payload is refused, for its signature or because it is invalid, it has no features, and
    nothing that it names is touched.
    """

    failed_with: BaseException | None = None
    refusal: InvalidPayload | InvalidSignature | None = None
    """Why the payload is not used; None if it is."""
    features: Sequence[Feature] = ()
    """The features in the payload."""
    broken_chain: str = ""
    """The failed record of a refused next link, from the last planned end."""
    _is_unanswered = False
    """Whether its end was sent, perhaps applied, and not answered."""
    _is_unsent = False
    """Whether its end is deferred, so that the lease must still be renewed."""
    message: dict[str, Any] | None = None
    """The decoded payload; None if it is invalid or refused."""
    stops: StopFlag | None = None
    """What says whether the worker stops, if a worker runs the job."""
    gives_back = False
    """Whether it is given back at a checkpoint if the worker stops."""
    recording: Recording | None = None
    """What its supervisor kept of this attempt, if it was killed, timed out or lacked memory."""
    _has_steps = False
    _kept: dict[str, Any] | None = None
    """What features have read, by their keys."""
    _history: History | None = None
    _notes: bytes | None = None
    """The notes that the start has written beside the message."""

    def __init__(self, context: Context, reservation: Reservation) -> None:
        self.context = context
        self.reservation = reservation
        self.connection_name = context.connection
        self.queue = reservation.queue
        self.raw_body = reservation.raw_body
        # A renewal comes from another thread and must not overtake a settle.
        self._moving = threading.Lock()
        try:
            if context.signer is not None:
                context.signer.check(self.raw_body, self.queue)
            self.message = envelope.parse(self.raw_body)
        except (InvalidPayload, InvalidSignature) as error:
            self.refusal = error
        else:
            if not context.keys.isdisjoint(self.message):
                self.features = cast("Sequence[Feature]", context.features_of(self.message))
            if reservation.notes and STEPS in reservation.notes:
                self.attach_steps()

    def read_once(self, key: str, read: Callable[[], T]) -> T:
        """Return what `read` returned the first time for this feature."""
        if self._kept is None:
            self._kept = {}
        if key not in self._kept:
            self._kept[key] = read()
        found: T = self._kept[key]
        return found

    # -- attributes -------------------------------------------------------------------------------

    @property
    def id(self) -> str:  # type: ignore[override] # the reservation's
        return self.reservation.id

    @property
    def payload(self) -> dict[str, Any]:
        """The decoded payload. Raises `InvalidPayload` if it is invalid or refused."""
        if self.message is None:
            raise InvalidPayload(str(self.refusal))
        return self.message

    def data_for(self, job_class: type[JobDefinition]) -> Any:  # noqa: ANN401 (any JSON value)
        message = self.payload if self.message is None else self.message  # which raises
        data = message.get("data")
        if type(data) is dict and encryption.KEY in data and job_class.opens(data):
            data = self.context.keyring.opened(str(message.get("job")), data)
        if envelope.CALL in message and isinstance(data, dict):
            data = _fields_of(job_class, data)
        if REFERENCES in message and isinstance(data, dict):
            for feature in self.features:
                data = feature.completed_data(self, data)
        if job_class.written_version is not None or envelope.VERSION in message:
            data = upgrades.current(job_class, message, data)
        return data

    @cached_property
    def own_uuid(self) -> str:
        """The uuid in the payload; "" if it has no valid one."""
        named = None if self.refusal is not None else envelope.uuid(self.payload)
        return named or ""

    @cached_property
    def uuid(self) -> str:
        return self.own_uuid or one_line(f"{self.connection_name}:{self.queue}:{self.id}", 250)

    @cached_property
    def name(self) -> str:
        if self.refusal is not None:
            return "(not a payload)" if isinstance(self.refusal, InvalidPayload) else "(refused)"
        return envelope.display_name(self.payload)

    @property
    def scheduled_for(self) -> datetime | None:
        run = None if self.message is None else named_run(self.message)
        return None if run is None else run.scheduled_for()

    def attempts(self) -> int:
        return self.reservation.attempts

    @property
    def history(self) -> History:
        if self._history is None:
            notes = self.reservation.notes if self._notes is None else self._notes
            self._history = History.from_json(notes.decode("utf-8", "replace") or None)
        return self._history

    def is_second(self) -> bool:
        """Whether the job is left to another message of it; the end of this one is its deletion."""
        if any(feature.is_second(self) for feature in self.features):
            self.features = ()
            return True
        return False

    # -- its start --------------------------------------------------------------------------------

    def start_plan(self) -> Plan:
        number, now = self.reservation.attempts + 1, time.time()
        if self.reservation.notes:
            self._history = self.history.started(number, process.NAME, process.own.pid, now)
            self._notes = self._history.to_json().encode()
        else:  # most jobs have none so far
            self._notes = first_start(number, process.NAME, process.own.pid, now)
            self._history = None
        start = Start(self.context.retry_after, self._notes)
        if not self.features:
            return Plan(self.reservation, start)
        plan = Plan(self.reservation)
        for feature in self.features:
            feature.start(self, plan)
        plan.add(start)
        return plan

    def has_started(self) -> bool:
        return self.reservation.started and not self.is_lost

    # -- settling ---------------------------------------------------------------------------------

    def delete(self) -> None:
        self.settle(End(State.COMPLETE))

    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        seconds = timing.seconds_until(delay)
        if priority is not None:
            check_given("release", "priority", priority)
        self.settle(End(State.RELEASED, seconds, how="released", priority=priority))

    def bury(self) -> None:
        self.settle(End(State.BURIED))

    def fail(self, error: BaseException | None = None) -> None:
        self.settle(End(State.FAILED, error=error or JobFailedByHand(f"{self.name} failed itself")))

    def settle(self, end: End) -> None:
        """End the reservation. Raises `LeaseLost`, `JobAlreadySettled` or `BackendUnavailable`.

        If the step is refused because something has changed, it is built anew.
        """
        with guarded, self._moving:
            self._check_open()
            for _ in range(_TRIES):
                plan = self.plan(end)
                result = self._applied(plan)
                if result.outcome is not Outcome.REFUSED:
                    self._conclude(end, plan, result)
                    break
            else:
                raise BackendUnavailable(f"{self.name} {self.uuid} is changed again and again")
            if self.is_lost:
                raise self._unsettleable()

    def _applied(self, plan: Plan) -> Result:
        """Apply the step that ends it; an earlier one may have been applied without an answer."""
        try:
            (result,) = self.context.backend.apply(plan)
        except BackendUnavailable as error:
            self._is_unanswered = self._is_unanswered or error.in_doubt
            raise
        return result.of_end(unanswered=self._is_unanswered)

    def plan(self, end: End) -> Plan:
        """Return the plan of the step that ends the reservation this way."""
        if end.state is State.COMPLETE and not self.features:
            return Plan(self.reservation, _DELETE)
        plan, started = Plan(self.reservation), self.reservation.started
        for feature in self.features:
            feature.end(self, end, plan)
        if end.state is State.FAILED:
            record = records.failure(self, end, self.record_uuid, self.recording, started=started)
            plan.add(Record(record), _DELETE)
        elif end.state.is_final:
            plan.add(_DELETE)
        elif end.state is State.BURIED:
            plan.add(Bury())
        elif plan.instead is not None:
            plan.add(plan.instead)
        else:
            given_back = end.state is State.WAITING
            delay = 0.0 if plan.is_awaited else end.delay
            front = end.front or given_back
            after = records.history_after(self.history, end, self.recording, started=started)
            notes = after.to_json().encode()
            plan.add(Release(delay, front, not given_back, notes, end.priority))
        return plan

    def defer(self, end: End) -> Plan:
        """Mark the job as ended and return the plan; apply it soon and call `on_reply`."""
        with self._moving:
            if self.state:
                raise self._unsettleable()
            plan = self.plan(end)
            self.state = "deleted" if end.state is State.COMPLETE else _STATES[end.state]
            if end.error is not None and end.state is State.FAILED:
                self.failed_with = end.error if isinstance(end.error, BaseException) else None
            self._is_unsent = True
        return plan

    @property
    def is_deferred(self) -> bool:
        return self._is_unsent

    def sending(self) -> None:
        """Note that its deferred end is being sent: the lease is not renewed any more."""
        with self._moving:
            self._is_unsent = False

    def on_reply(self, plan: Plan, result: Result) -> bool:
        """Handle the result of the deferred step. Returns False if the lease had been lost.

        If it was refused, the job must still be settled.
        """
        if result.outcome is Outcome.LOST:
            self.state = "lost"
            return False
        if result.outcome is Outcome.REFUSED:
            self.state = ""
            return True
        if plan.after:
            plan.applied()
        return True

    def _conclude(self, end: End, plan: Plan, result: Result) -> None:
        if result.lost:
            self.state = "lost"
            return
        self.state = _STATES[end.state]
        if end.state is State.FAILED and isinstance(end.error, BaseException):
            self.failed_with = end.error
        plan.applied()

    @cached_property
    def record_uuid(self) -> str:
        """The uuid of its failed record: a made-up one could be that of another job's record."""
        return self.own_uuid or f"{self.uuid}@{secrets.token_hex(4)}"

    # -- during the run ---------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self.stops is not None and self.stops.quit

    def _durable_steps(self) -> DurableSteps:
        for feature in self.context.features:
            steps = cast("Feature", feature).steps_of(self)
            if steps is not None:
                return steps
        raise AssertionError("no feature keeps steps")

    def attach_steps(self) -> None:
        """Add the features of a job with durable steps, which its payload does not name."""
        if not self._has_steps:
            self._has_steps = True
            named = [each for each in self.context.features if each.key == _STEPS]
            more = [each for each in named if each not in self.features]
            self.features = (*self.features, *cast("Sequence[Feature]", more))
            self._history = replace(self.history, steps=True)

    def flush_checkpoints(self) -> None:
        """Keep the checkpoints of this attempt that are not kept yet."""
        if self._has_steps:
            self._durable_steps().flush()

    def call_again(self) -> None:
        """Note that this attempt calls its handler once more."""
        if self._has_steps:
            self._durable_steps().call_again()

    def renewal(self) -> Sequence[Renew]:
        """Return the operation that renews the lease with a step of the running job."""
        return (Renew(self.reservation.lease or self.context.retry_after),)

    def renew(self) -> None:
        step = Step(self.reservation, *self.renewal())
        if not self.is_completing:
            self.send(step)
            return
        with guarded, self._moving:  # an open transaction keeps the message from others
            if self.context.backend.standing(self.reservation) is Standing.OURS:
                self.context.backend.apply(step)

    def send(self, *steps: Step) -> list[Result]:
        """Apply steps, the last of them about this job, unless it has ended.

        From any thread; also while its end is deferred.

        Raises `LeaseLost` if the last step finds it lost.
        """
        with guarded, self._moving:
            if not self._is_unsent:
                self._check_open()
            results = self.context.backend.apply(*steps)
            if results[-1].lost:
                if not self.is_completing:  # meanwhile; otherwise its completion has removed it
                    completes = self.says_completing is not None and self.says_completing()
                    self.state = COMPLETING if completes else "lost"
                raise self._unsettleable()
            return results

    def recall(self) -> None:
        """Renew the lease of a held job and read what was noted of it meanwhile."""
        self.renew()
        self._history = self._notes = None

    def apply(self, plan: Plan) -> Result:
        """Apply a plan in the name of the running job. Raises `LeaseLost`.

        If steps are not atomic and the worker dies during this one, the next worker that gets the
        job pushes its messages.
        """
        self._check_open()
        plan.reservation = self.reservation
        (result,) = self.send(plan)
        if result.applied:
            plan.applied()
        return result

    def look(self) -> None:
        """Run the periodic operations of its features while it runs; from another thread."""
        with guarded, self._moving:
            if not self.state:
                steps = [Step(None, *made) for each in self.features if (made := each.look(self))]
                if steps:
                    self.context.backend.apply(*steps)

    def progress(self, done: float, text: str = "") -> None:
        check_progress(done, text)
        self._note_progress(done, text)

    def _note_progress(self, done: float, text: str) -> None:
        for feature in self.features:
            feature.progress(self, done, text)

    @cached_property
    def keeps_log(self) -> bool:
        return bool(self.features) and "keepLog" in self.payload

    def note_log(self, line: str) -> None:
        for feature in self.features:
            feature.log(self, line)

    def skip_reason(self) -> str | None:
        for feature in self.features:
            reason = feature.skip_reason(self)
            if reason is not None:
                return reason
        return None

    def wait_reason(self) -> Postponed | None:
        for feature in self.features:
            reason = feature.wait_reason(self)
            if reason is not None:
                return reason
        return None

    # -- state ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.uuid} {self.state or 'reserved'}>"


_STATES = {
    State.COMPLETE: "deleted",
    State.SKIPPED: "deleted",
    State.CANCELLED: "deleted",
    State.FAILED: "failed",
    State.RELEASED: "released",
    State.WAITING: "given back",
    State.BURIED: "buried",
}


def _fields_of(job_class: type[JobDefinition], call: dict[str, Any]) -> dict[str, object]:
    """Return the fields of a job that another program has called with arguments."""
    args, kwargs = call.get("args"), call.get("kwargs")
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise InvalidArguments(f"{job_class.__name__}: the payload's data has no args and kwargs")
    return fields_of_call(job_class, args, kwargs)


def running_job(instance: Any) -> tuple[Context, ReservedJob | None]:  # noqa: ANN401 (a job of a higher layer)
    """Return the context of an internal job that runs, and what is reserved.

    That is None in a process of its own, which settles nothing.
    """
    running: Any = instance.job
    if isinstance(running, ReservedJob):
        return running.context, running
    return running._job.context, None  # noqa: SLF001 (its stand-in there)


def _free_in_a_child() -> None:
    """Replace the lock in a forked child of a job: the heartbeat may have held it."""
    job = current.running.get()
    if isinstance(job, ReservedJob):
        job._moving = threading.Lock()  # noqa: SLF001 (its own)


forks.in_child(_free_in_a_child)


class Feature(PushFeature):
    """One feature; every method may add to the plan of a step."""

    waits: ClassVar[bool] = False
    """Whether it concerns only waiting jobs; the sync connection has none."""
    asks: ClassVar[bool] = False
    """Whether `end` calls the backend, which takes time and may fail."""

    def is_second(self, job: ReservedJob) -> bool:
        """Whether another message of the job has started; if not, this one is the job."""
        return False

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Return why a held job need not run; None if it must."""
        return None

    def wait_reason(self, job: ReservedJob) -> Postponed | None:
        """Return why a held job must not run yet; None if it may."""
        return None

    def joins_first(self, job: ReservedJob) -> bool:
        """Whether a held job must join a line before it may be set aside."""
        return False

    def completed_data(self, job: ReservedJob, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a job with what it refers to."""
        return data

    def start(self, job: ReservedJob, plan: Plan) -> None:
        """Add its operations to the start of an attempt."""

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Add its operations to the end of a reservation."""

    def progress(self, job: ReservedJob, done: float, text: str) -> None:
        """Handle the progress of a running job."""

    def log(self, job: ReservedJob, line: str) -> None:
        """Handle a log line of a running job."""

    def steps_of(self, job: ReservedJob) -> DurableSteps | None:
        """Return what keeps the durable steps of a job."""
        return None

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Return operations for a running job, about once a second."""
        return ()
