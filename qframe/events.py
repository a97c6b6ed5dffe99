"""Plain event objects, and who listens to them.

```python
from qframe import events

@events.listen(events.JobFailed)
def tell(event: events.JobFailed) -> None: ...
```

Listeners are called in the order they were added, in the thread where the event happens. One
that raises is logged and the others go on: a listener never loses a job. Each event's docstring
names Laravel's event of the same meaning where the name differs.
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
    """Base of all events: listening to it hears every one. An event is a frozen dataclass.

    All share the methods below: `@dataclass` compiles new ones for each class, which took a tenth
    of the time of `import qframe`.
    """

    __match_args__: ClassVar[tuple[str, ...]]
    listeners: ClassVar[tuple[Callable[[Any], object], ...]] = ()
    """Whom an event of this kind calls, in the order they were added."""

    def __init_subclass__(cls) -> None:
        """Make it a dataclass with these methods."""
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
    """A job is about to be pushed. A listener may add keys to `payload`: they travel along."""

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
    """A unique job was not pushed: the one with the uuid `id` waits or runs.

    Laravel: UniqueJobSkipped.
    """

    connection: str
    queue: str
    job: Any
    id: str


class JobDispatchFailed(Event):
    """What was dispatched could not be pushed, and nobody has heard the error.

    It was dropped, or nobody awaits it any more. `payload` is what would have been pushed. Of a
    chain it is the first link; of a batch, `job` is the `PendingBatch`, and `payload` empty.
    """

    connection: str
    queue: str
    job: Any
    payload: dict[str, Any] = field(repr=False)
    delay: float
    error: BaseException


class StoredRefused(Event):
    """What a store keeps until its turn is not signed, or was changed: it is not acted on.

    `what` says what it would have been: a link of a chain, a schedule, a dispatch in the outbox.
    It stays where it is, or is among the failed jobs. A message in a queue is a `JobFailed`.
    """

    connection: str
    key: str
    what: str
    error: BaseException


# -- schedules --------------------------------------------------------------------------------


class ScheduleEvent(Event):
    """Base of the events of a schedule; `scheduled_for` is a planned time, aware."""

    connection: str
    schedule: str
    scheduled_for: datetime


class ScheduledJobDispatched(ScheduleEvent):
    """A schedule's job was pushed: its id. Laravel: ScheduledTaskStarting."""

    id: str


class ScheduleSkipped(ScheduleEvent):
    """A planned time had no run, for `reason`. Laravel: ScheduledTaskSkipped."""

    reason: str


class ScheduleMissed(ScheduleEvent):
    """No worker was there in time for the planned times from `scheduled_for` to `until`.

    They have no run, as the schedule's `missed` says.
    """

    until: datetime


class ScheduleFailed(ScheduleEvent):
    """A schedule's job could not be made or pushed."""

    error: BaseException


# -- one attempt ------------------------------------------------------------------------------


class JobEvent(Event):
    """Base of the events of one reserved job."""

    job: Job


class JobPopping(Event):
    """The worker asks for a job."""

    connection: str
    queues: tuple[str, ...]


class JobPopped(JobEvent):
    """A job was reserved."""


class JobForking(JobEvent):
    """The worker is about to fork the process of an isolated job. php-resque: beforeFork."""


class JobForked(JobEvent):
    """The first thing in the process of an isolated job. php-resque: afterFork."""


class JobProcessing(JobEvent):
    """An attempt starts."""


class JobProcessed(JobEvent):
    """An attempt ended well; `seconds` it took. Not fired for a released or failed job."""

    seconds: float


class JobSkipped(JobEvent):
    """The job ended without running or failing.

    It raised `DontHandle`, had expired, a middleware did not call on, or it was debounced: a later
    dispatch took its place.
    """

    reason: str


class JobExceptionOccurred(JobEvent):
    """An attempt raised. A listener may settle the job; else it is released or failed."""

    error: BaseException


class JobReleased(JobEvent):
    """The job released itself."""

    seconds: float


class JobReleasedAfterException(JobEvent):
    """A failed attempt was released with its backoff `delay` (seconds)."""

    error: BaseException
    delay: float
    seconds: float


class AttemptTimedOut(JobEvent):
    """The job ran longer than its `timeout` (seconds)."""

    timeout: float


class JobFailed(JobEvent):
    """The job was failed: it is in the failed store and gone from its queue."""

    error: BaseException
    seconds: float


class JobAttempted(JobEvent):
    """An attempt ended, however it did; `error` is what it raised."""

    error: BaseException | None


class AttemptCancelled(JobEvent):
    """`qframe cancel --running` ended the running job: neither done nor failed."""

    reason: str


class AttemptGivenBack(JobEvent):
    """The job went back to its queue uncounted.

    `reason` says why: the worker was told to stop at once, or cannot run the job here yet.
    """

    reason: str


class JobLeaseLost(JobEvent):
    """A job this worker ran or held had passed to another; what it tried was not applied."""


class LoopBlocked(JobEvent):
    """A job has blocked the event loop it shares, for `seconds`; `stack` is where."""

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
    """The worker is about to reserve. A listener that returns False makes it wait instead."""


class WorkerIdle(WorkerEvent):
    """There was no job; the worker waits."""


class WorkerPaused(WorkerEvent):
    """The worker takes no more jobs: SIGUSR2 or `qframe pause`. Laravel: WorkerPausing."""


class WorkerResumed(WorkerEvent):
    """The worker takes jobs again. Laravel: WorkerResuming."""


class WorkerScaled(WorkerEvent):
    """`qframe scale`: up to `concurrency` jobs run at once from now on."""

    concurrency: int


class SupervisorScaled(Event):
    """`qframe supervise`: a queue has `processes` from now on, `before` until now; `why`, in words.

    It is fired in the supervisor's process, which imports the modules of its listeners only.
    """

    supervisor: str
    connection: str
    queue: str
    processes: int
    before: int
    why: str


class WorkerInterrupted(WorkerEvent):
    """A stop signal came."""

    signal: int


class BackendLost(WorkerEvent):
    """The backend stopped answering; the worker tries again with growing delays."""

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
    """`qframe pause`; an empty `queue` is every queue of the connection."""

    connection: str
    queue: str


class QueueResumed(Event):
    """`qframe resume`."""

    connection: str
    queue: str


class SchedulePaused(Event):
    """`qframe schedule pause`; an empty `schedule` is every one of the connection."""

    connection: str
    schedule: str


class ScheduleResumed(Event):
    """`qframe schedule resume`."""

    connection: str
    schedule: str


class OperatorActed(Event):
    """Somebody did something on the page or by its API: `who` did `action` to `what`.

    `count` is how many queues, jobs or workers were changed.
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


class AlertEvent(Event):
    """Base of the events of alerts, told by the one worker that looks, in a thread beside its jobs.

    `rule` is that of the configuration; `subject` the queue, class or worker that it is about, ""
    for a whole connection; `text` says what is wrong, `since` since when (epoch seconds).
    """

    rule: str
    connection: str
    subject: str
    text: str
    value: float
    since: float


class AlertRaised(AlertEvent):
    """A rule of `[alerts]` is broken; `again` where it has been said before, and still is so."""

    again: bool


class AlertResolved(AlertEvent):
    """What an alert was about is over."""


E = TypeVar("E", bound=Event)
Listener = Callable[[E], object]


def listen(kind: type[E]) -> Callable[[Listener[E]], Listener[E]]:
    """Decorate a function that is to be called with every event of `kind` or a subclass."""

    def add(listener: Listener[E]) -> Listener[E]:
        _set([*_listeners, (kind, listener)])
        return listener

    return add


def forget(listener: Callable[[Any], object]) -> None:
    """Stop calling a listener; one that is not listening is ignored."""
    _set([(kind, each) for kind, each in _listeners if each != listener])


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Have the listeners there are, and no others, when the block is left."""
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
    """Make the event if anyone listens, and tell them; false when one of them returned False."""
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


def tell_own(kind: type[Event], *fields: object) -> None:
    """Tell only listeners of qframe itself: the application hears of it in the job's process."""
    own = [listener for listener in kind.listeners if _is_own(listener)]
    if own:
        event = kind(*fields)
        for listener in own:
            listener(event)


def hand_over() -> Callable[[], bool]:
    """Share the work with the process this one was forked from, the worker.

    What becomes of the job is told there to the listeners there were before. Here, they hear of
    what happens only here: the beginning of the attempt, and what the job dispatches. Listeners
    added from now on hear all that happens here; what is given says whether there are any.
    """
    before = [(kind, _here(listener)) for kind, listener in _listeners if not _is_own(listener)]
    _set(before)
    return lambda: len(_listeners) > len(before)


def _here(listener: Callable[[Any], object]) -> Callable[[Any], object]:
    def hear(event: Event) -> object:
        if isinstance(event, JobEvent) and not isinstance(event, _IN_CHILD):
            return None
        return listener(event)

    return hear


def _is_own(listener: Callable[[Any], object]) -> bool:
    return str(getattr(listener, "__module__", "")).startswith("qframe.")


def kinds() -> dict[str, type[Event]]:
    """Name all events a listener can be configured for."""
    # Not `__subclasses__()`: for each class with slots that also has the one it was made from.
    return {
        name: kind
        for name, kind in globals().items()
        if isinstance(kind, type) and issubclass(kind, Event)
    }
