"""Events: plain objects, and their listeners.

```python
from qframe import events

@events.listen(events.JobFailed)
def tell(event: events.JobFailed) -> None: ...
```

Listeners are called in the order they were added, in the thread of the event. If one raises, that
is logged and the others are called: a listener never loses a job. Each event's docstring names
Laravel's event of the same meaning where the name differs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

from qframe.exceptions import Interruption

if TYPE_CHECKING:
    from qframe.contracts import Job

log = logging.getLogger("qframe.events")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Base of all events: a listener of it gets every event. An event is a frozen dataclass.

    All events share the methods below: `@dataclass` would compile new ones for each class, which
    took a tenth of `import qframe`.
    """

    __match_args__: ClassVar[tuple[str, ...]]
    listeners: ClassVar[tuple[Callable[[Any], object], ...]] = ()
    """The listeners of this kind of event, in the order they were added."""

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass with these methods."""
        dataclass(init=False, repr=False, eq=False)(cls)
        _kinds.append(cls)
        cls.listeners = _listeners_of(cls)

    def __init__(self, *values: object, **named: object) -> None:
        names = self.__match_args__
        if named or len(values) != len(names):
            given = {**dict(zip(names, values, strict=False)), **named}
            if len(values) + len(named) != len(given) or given.keys() != {*names}:
                raise TypeError(f"{type(self).__name__} takes each of ({', '.join(names)}) once")
            values = tuple(given[name] for name in names)
        self.__dict__.update(zip(names, values))  # noqa: B905 (as many; strict takes half as long again)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        shown = (each.name for each in fields(cast("Any", self)) if each.repr)
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def _listeners_of(kind: type[Event]) -> tuple[Callable[[Any], object], ...]:
    return tuple(listener for base, listener in _listeners if issubclass(kind, base))


_kinds: list[type[Event]] = []
_listeners: list[tuple[type[Event], Callable[[Any], object]]] = []
Event.__init_subclass__()  # of the base itself


# -- pushing ----------------------------------------------------------------------------------


class JobQueueing(Event):
    """A job is about to be pushed. A listener may add keys to `payload`, which travel along."""

    connection: str
    queue: str
    job: Any
    payload: dict[str, Any] = field(repr=False)
    delay: float


class JobQueued(Event):
    """A job was pushed."""

    connection: str
    queue: str
    id: str
    job: Any
    payload: dict[str, Any] = field(repr=False)
    delay: float


class JobDuplicate(Event):
    """A job was not pushed: the job with the uuid `id` is in its place.

    That one waits or runs, and the job is unique; or it was dispatched with the same key (`once`).
    Laravel: UniqueJobSkipped.
    """

    connection: str
    queue: str
    job: Any
    id: str


class JobDispatchFailed(Event):
    """A dispatch could not be pushed, and no caller received the error.

    The dispatch was dropped, or nobody awaits it any more. `payload` is what should be pushed; for
    a chain, its first link; for a batch it is empty, and `job` is the `PendingBatch`.
    """

    connection: str
    queue: str
    job: Any
    payload: dict[str, Any] = field(repr=False)
    delay: float
    error: BaseException


class StoredRefused(Event):
    """Something stored until its turn is not signed, or was changed, and is not used.

    `what` tells what it should be: a link of a chain, a schedule, a dispatch in the outbox. It
    stays where it is, or becomes a failed job. For a message in a queue, the event is `JobFailed`.
    """

    connection: str
    key: str
    what: str
    error: BaseException


# -- schedules --------------------------------------------------------------------------------


class ScheduleEvent(Event):
    """Base of the events of a schedule; `scheduled_for` is the planned time, aware."""

    connection: str
    schedule: str
    scheduled_for: datetime


class ScheduledJobDispatched(ScheduleEvent):
    """The job of a schedule was pushed. Laravel: ScheduledTaskStarting."""

    id: str


class ScheduleSkipped(ScheduleEvent):
    """A planned time has no run, for `reason`. Laravel: ScheduledTaskSkipped."""

    reason: str


class ScheduleMissed(ScheduleEvent):
    """No worker ran at the planned times from `scheduled_for` to `until`.

    They have no run, because of the schedule's `missed`.
    """

    until: datetime


class ScheduleFailed(ScheduleEvent):
    """The job of a schedule could not be built or pushed."""

    error: BaseException


# -- one attempt ------------------------------------------------------------------------------


class JobEvent(Event):
    """Base of the events of one reserved job."""

    job: Job


class JobPopping(Event):
    """The worker is about to reserve a job."""

    connection: str
    queues: tuple[str, ...]


class JobPopped(JobEvent):
    """A job was reserved."""


class JobForking(JobEvent):
    """The worker is about to fork the process of an isolated job. php-resque: beforeFork."""


class JobForked(JobEvent):
    """The process of an isolated job has started. php-resque: afterFork."""


class JobProcessing(JobEvent):
    """An attempt starts."""


class JobProcessed(JobEvent):
    """An attempt succeeded, after `seconds`. Not fired for a released or failed job."""

    seconds: float


class JobSkipped(JobEvent):
    """The job ended without running or failing.

    It raised `DontHandle`, had expired, a middleware did not run it, or a later dispatch replaced
    it (debounce).
    """

    reason: str


class JobExceptionOccurred(JobEvent):
    """An attempt raised. A listener may settle the job; otherwise it is released or failed."""

    error: BaseException


class JobReleased(JobEvent):
    """The job released itself."""

    seconds: float


class JobReleasedAfterException(JobEvent):
    """A failed attempt was released with its backoff: `delay` seconds."""

    error: BaseException
    delay: float
    seconds: float


class AttemptTimedOut(JobEvent):
    """The job ran longer than its `timeout` (seconds)."""

    timeout: float


class JobFailed(JobEvent):
    """The job failed: it is in the failed store and gone from its queue."""

    error: BaseException
    seconds: float


class JobAttempted(JobEvent):
    """An attempt ended, in whatever way; `error` is its exception, if any."""

    error: BaseException | None


class AttemptCancelled(JobEvent):
    """`qframe cancel --running` ended the running job: neither done nor failed."""

    reason: str


class AttemptGivenBack(JobEvent):
    """The job went back to its queue uncounted.

    `reason`: the worker was asked to stop at once, or cannot run the job yet.
    """

    reason: str


class JobLeaseLost(JobEvent):
    """Another worker took a job that this worker ran or held; its settle was not applied."""


class LoopBlocked(JobEvent):
    """A job blocked the event loop that it shares, for `seconds`, at `stack`."""

    seconds: float
    stack: str = field(repr=False)


class JobRetryRequested(Event):
    """A failed job is about to be queued again by `qframe retry`."""

    uuid: str
    connection: str
    queue: str


# -- the worker -------------------------------------------------------------------------------


class WorkerEvent(Event):
    """Base of the events of a worker."""

    connection: str
    queues: tuple[str, ...]


class WorkerStarting(WorkerEvent):
    """The worker is about to enter its loop."""


class Looping(WorkerEvent):
    """The worker is about to reserve. If a listener returns False, it waits instead."""


class WorkerIdle(WorkerEvent):
    """The worker found no job, and waits."""


class WorkerPaused(WorkerEvent):
    """The worker takes no more jobs: SIGUSR2 or `qframe pause`. Laravel: WorkerPausing."""


class WorkerResumed(WorkerEvent):
    """The worker takes jobs again. Laravel: WorkerResuming."""


class WorkerScaled(WorkerEvent):
    """`qframe scale`: the worker now runs up to `concurrency` jobs at once."""

    concurrency: int


class SupervisorScaled(Event):
    """`qframe supervise` changed the processes of a queue from `before` to `processes`; see `why`.

    It is fired in the supervisor's process, which imports only the modules of its listeners.
    """

    supervisor: str
    connection: str
    queue: str
    processes: int
    before: int
    why: str


class WorkerInterrupted(WorkerEvent):
    """The worker got a stop signal."""

    signal: int


class BackendLost(WorkerEvent):
    """The backend stopped answering; the worker retries with growing delays."""

    error: BaseException


class BackendRestored(WorkerEvent):
    """The backend answers again after `seconds`."""

    seconds: float


class WorkerStopping(WorkerEvent):
    """The worker ends; `reason` is a `StopReason` value, `status` the exit code."""

    reason: str
    status: int
    jobs: int


# -- operation --------------------------------------------------------------------------------


class QueuePaused(Event):
    """`qframe pause`; an empty `queue` means every queue of the connection."""

    connection: str
    queue: str


class QueueResumed(Event):
    """`qframe resume`."""

    connection: str
    queue: str


class SchedulePaused(Event):
    """`qframe schedule pause`; an empty `schedule` means every one of the connection."""

    connection: str
    schedule: str


class ScheduleResumed(Event):
    """`qframe schedule resume`."""

    connection: str
    schedule: str


class OperatorActed(Event):
    """A user of the page or its API did something: `who` did `action` to `what`.

    `count` is the number of changed queues, jobs or workers.
    """

    who: str
    action: str
    what: str
    count: int


class QueueBusy(Event):
    """`qframe monitor` found more jobs than its limit."""

    connection: str
    queue: str
    size: int


class QueueFailedOver(Event):
    """A connection of a failover does not answer: jobs go to the next one until it does."""

    connection: str
    """The failover."""
    failed: str
    """The connection that does not answer."""
    error: BaseException


class QueueFailedBack(Event):
    """A connection of a failover answers again after `seconds`."""

    connection: str
    """The failover."""
    restored: str
    """The connection that answers again."""
    seconds: float


class AlertEvent(Event):
    """Base of the events of alerts, fired by the one worker that checks, in a separate thread.

    `rule` is the configured rule; `subject` its queue, class or worker, "" for a whole connection;
    `text` describes the problem, `since` when it began (epoch seconds).
    """

    rule: str
    connection: str
    subject: str
    text: str
    value: float
    since: float


class AlertRaised(AlertEvent):
    """A rule of `[alerts]` is broken; `again` if this is a reminder."""

    again: bool


class AlertResolved(AlertEvent):
    """The problem of an alert is over."""


E = TypeVar("E", bound=Event)
Listener = Callable[[E], object]


def listen(kind: type[E]) -> Callable[[Listener[E]], Listener[E]]:
    """Decorate a function to be called with every event of `kind` or a subclass."""

    def add(listener: Listener[E]) -> Listener[E]:
        _set([*_listeners, (kind, listener)])
        return listener

    return add


def forget(listener: Callable[[Any], object]) -> None:
    """Remove a listener; does nothing if it is not registered."""
    _set([(kind, each) for kind, each in _listeners if each != listener])


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore the current listeners at the end of the block."""
    before = list(_listeners)
    try:
        yield
    finally:
        _set(before)


def _set(listeners: list[tuple[type[Event], Callable[[Any], object]]]) -> None:
    _listeners[:] = listeners
    for kind in _kinds:
        kind.listeners = _listeners_of(kind)


def fire(kind: type[Event], *fields: object) -> bool:
    """Create the event if it has listeners, and call them. Returns False if one returned False."""
    listeners = kind.listeners
    if not listeners:
        return True
    event = kind(*fields)
    willing = True
    for listener in listeners:
        try:
            willing = listener(event) is not False and willing
        except Interruption:
            raise
        except BaseException:
            log.exception("a listener of %s raised", kind.__name__)
    return willing


# -- the process of an isolated job -----------------------------------------------------------


_IN_CHILD = (JobForked, JobProcessing)


def fire_own(kind: type[Event], *fields: object) -> None:
    """Call only qframe's own listeners: the application's are called in the job's process."""
    own = [listener for listener in kind.listeners if _is_own(listener)]
    if own:
        event = kind(*fields)
        for listener in own:
            listener(event)


def hand_over() -> Callable[[], bool]:
    """Share the listeners with the worker, which this process was forked from.

    The worker calls the existing listeners about the job's result. Here they get only what happens
    here: the start of the attempt, and the job's dispatches. Listeners added from now on get all
    events of this process; the returned function tells whether there are any.
    """
    before = [(kind, _here(listener)) for kind, listener in _listeners if not _is_own(listener)]
    _set(before)
    return lambda: len(_listeners) > len(before)


def _here(listener: Callable[[Any], object]) -> Callable[[Any], object]:
    def note(event: Event) -> object:
        if isinstance(event, JobEvent) and not isinstance(event, _IN_CHILD):
            return None
        return listener(event)

    return note


def _is_own(listener: Callable[[Any], object]) -> bool:
    return str(getattr(listener, "__module__", "")).startswith("qframe.")


def kinds() -> dict[str, type[Event]]:
    """Return all events that a listener can be configured for, by name."""
    # Not `__subclasses__()`, which for a class with slots also has the one it was made from.
    return {
        name: kind
        for name, kind in globals().items()
        if isinstance(kind, type) and issubclass(kind, Event)
    }
