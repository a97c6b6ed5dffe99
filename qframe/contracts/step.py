"""Step: operations that a backend applies together or not at all, and their result.

A step is about one reservation, or about none. `Start`, `Renew`, `Delete`, `Release` and `Bury`
change the reservation; the others push messages, and change facts, latches and failed records.
Keys and values of facts are any text that UTF-8 can encode, without NUL; keys have at most 250
characters. Seconds count by the backend's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from qframe.contracts.failed import FailedJob

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a value: a dataclass that type checkers treat as frozen.

    Freezing it at run time makes an instance three times as slow to create, and a job has several.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


# -- the reservation ------------------------------------------------------------------------------


@value
class Start:
    """Take the full lease of a held job and count the attempt.

    Repeated for the same reservation it counts once, and renews the lease.
    """

    lease: float
    """Seconds."""
    notes: bytes = b""
    """Notes to keep beside the message, where the backend keeps notes."""


@value
class Renew:
    """Set the lease to end `lease` seconds from now, even if it ran out and nobody took the job."""

    lease: float


@value
class Delete:
    """Remove the message: its job is done, or recorded as failed."""


@value
class Release:
    """Make the message ready again: after `delay` seconds, or at once."""

    delay: float = 0.0
    front: bool = False
    """Put the message before the ready ones instead of behind them; only without a delay."""
    counted: bool = True
    """Whether the started attempt counts; False takes it back."""
    notes: bytes | None = None
    """New notes beside the message; None leaves them unchanged."""
    priority: int | None = None
    """A new priority, 0 first, where the backend has priorities."""


@value
class Bury:
    """Put the message aside until it is kicked."""

    notes: bytes | None = None


# -- messages -------------------------------------------------------------------------------------


@value
class Push:
    """Add a message of opaque bytes, ready after `delay` seconds."""

    queue: str
    raw: bytes
    delay: float = 0.0
    priority: int | None = None
    """0 comes first, where the backend has priorities."""
    id: str = ""
    """Names this push when it may be made again, for brokers that deduplicate; "" names none."""
    attempts: int = 0
    """How often the message was started elsewhere; kept where the backend can (`NOTES`)."""
    notes: bytes = b""
    """Notes to keep beside it, as `Release` does."""
    buried: bool = False
    """Whether it is put aside at once, where the backend can search for what is buried."""


# -- facts: texts under keys ----------------------------------------------------------------------


@value
class Expect:
    """Refuse the whole step unless the key holds this value; None: unless it holds none."""

    key: str
    value: str | None


@value
class Set:
    """Write a fact, which expires after `ttl` seconds (None: never)."""

    key: str
    value: str
    ttl: float | None = None


@value
class Unset:
    """Remove a fact; if `value` is given, only if the fact has this value."""

    key: str
    value: str | None = None


@value
class Raise:
    """Write a fact unless one of a higher rank is there.

    Only `Raise` may write such a key; `Unset` may remove it. `read`, `scan` and `Expect` see its
    value. Ranks are below 2**53.
    """

    key: str
    rank: int
    value: str
    ttl: float


@value
class Add:
    """Add to a whole number below 2**53; a missing key counts as 0.

    Only `Add` may write such a key; `Unset` may remove it. Each `Add` restarts `ttl`; None removes
    it.
    """

    key: str
    number: int
    ttl: float | None = None


# -- latches: count arriving members, then push a message ------------------------------------------


@value
class Open:
    """Create a latch without members; does nothing if the key has one.

    The backend pushes `then` when the first member fails, when `every` further members are done
    (0: never), and when the latch is closed and all members have arrived. The latch expires `ttl`
    seconds after the last operation on it, not counting another `Open`.
    """

    latch: str
    then: Push
    every: int = 0
    ttl: float = 30 * 86400.0


@value
class Extend:
    """Raises the size of the latch to `size` members, if it has fewer.

    Refuses the step if there is no such latch, or if it is closed and all members have arrived. A
    latch that the same step opens does not exist yet.
    """

    latch: str
    size: int


@value
class Arrive:
    """Record that a member is done or has failed; does nothing if there is no such latch.

    A member arrives once, however often the operation is repeated. A failed member may be done
    later; a done member cannot fail. `then` is due if the latch is complete after this, if this is
    the first member that failed, or if the number of done members is a multiple of `every`. It is
    due again if the member had arrived before, because the answer may have been lost. The backend
    ignores a number that no member has.
    """

    latch: str
    member: int
    """The member's number, from 0."""
    failed: bool = False
    label: str = ""
    """The label to keep if the member failed."""
    push: bool = True
    """Whether the backend pushes `then` if it is due; otherwise the result returns it.

    False only in a step about no reservation, for all its operations; `OrderedBackend` uses it.
    """


@value
class Leave:
    """Take back that a member has arrived; does nothing if it has not, or there is no such latch.

    The latch is not complete any more, until all members have arrived again. If the member was the
    first that failed, the next failure counts as the first.
    """

    latch: str
    member: int


@value
class Close:
    """Declare that all members are known: the latch is complete when they have arrived.

    `then` is due if the latch is complete, also if it was closed before.
    """

    latch: str
    push: bool = True
    """As in `Arrive`."""


# -- failed records -------------------------------------------------------------------------------


@value
class Record:
    """Keep the record of a failed job; replaces a record with the same uuid."""

    job: FailedJob


@value
class Forget:
    """Remove the record of a failed job; refuses the step if there is none."""

    uuid: str
    failed_at: float | None = None
    """Remove only the record of this failure; a job that was retried may have failed anew."""


# -- only for steps in parts (`drivers/ordered.py`); drivers never get these -----------------------


@value
class Claim:
    """Take a key for a job that the step pushes: `Expect` and `Set` where steps are atomic.

    Elsewhere the claim counts once the job is pushed, and is withdrawn if the push fails.
    """

    key: str
    value: str
    """The job's uuid."""
    ttl: float
    holds: str | None = None
    """The value that the key holds now."""
    lasts: bool = False
    """Whether it does not expire until it is proven or withdrawn."""


@value
class Afterwards:
    """Write a fact after the step's messages are pushed."""

    fact: Set | Raise


Settling = Delete | Release | Bury
OfReservation = Start | Renew | Delete | Release | Bury
OfFact = Expect | Set | Unset | Raise | Add
OfLatch = Open | Extend | Arrive | Leave | Close
OfFailed = Record | Forget
OfParts = Claim | Afterwards
Operation = OfReservation | Push | OfFact | OfLatch | OfFailed | OfParts


class Reservation(ABC):
    """One delivery of a message; a driver derives its own class (`RedisJob`, `DatabaseJob`, ...).

    It starts out held: its lease lasts about a second. `Start` takes the full lease and counts the
    attempt. The backend keeps the fence up to date while it applies steps.
    """

    worker_died: bool = False
    """Whether the last worker may have died just now and can still record how (by `Renew`)."""

    __slots__ = (
        "attempts", "came_from", "id", "lease", "notes", "queue", "raw_body", "started",
        "sure_until", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        queue: str,
        id: str,  # noqa: A002 (the contract's name)
        raw_body: bytes,
        attempts: int,
        notes: bytes = b"",
    ) -> None:
        self.queue = queue
        self.id = id
        """The backend's own id of the message."""
        self.raw_body = raw_body
        """The message as it was pushed, byte for byte."""
        self.notes = notes
        """The notes kept beside the message; b"" if there are none."""
        self.started = False
        """Whether this reservation was started."""
        self.sure_until = 0.0
        """Until when, by `Backend.clock`, the lease is certainly valid without a check."""
        self.lease = 0.0
        """Seconds of the lease that `Start` took last; 0 while the message is only held."""
        self.unsent = False
        """Whether an outbox may hold messages of an interrupted step (`drivers/ordered.py`)."""
        self.attempts = attempts
        """How often the message was started, including this reservation."""

    came_from: str
    """The connection that gave it, set by a backend of several (`drivers/failover`) alone."""

    @property
    @abstractmethod
    def fence(self) -> bytes:
        """Bytes that identify this reservation to `Backend.adopt`, also in another process."""

    def handle(self, release: Release) -> str:  # noqa: ARG002 (for drivers whose handles change)
        """Return a text by which `Backend.wake` finds the message after this release."""
        return self.id

    def delete(self) -> Step:
        """Return the step that removes the message."""
        return Step(self, Delete())

    def release(self, delay: float = 0) -> Step:
        """Return the step that makes the message ready again after `delay` seconds."""
        return Step(self, Release(delay))

    def bury(self) -> Step:
        """Return the step that buries the message."""
        return Step(self, Bury())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue}>"


class Step:
    """Operations on one reservation, or on none, in the order in which they take effect.

    The backend checks the fence and every expectation (`Expect`, `Extend`, `Forget`) before it
    changes anything, against the state before the step. At most one operation may be about the
    reservation.
    """

    __slots__ = ("operations", "reservation")

    def __init__(self, reservation: Reservation | None, *operations: Operation) -> None:
        self.reservation = reservation
        self.operations: Sequence[Operation] = operations

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return self.reservation is other.reservation and (*self.operations,) == (*other.operations,)

    __hash__ = None  # type: ignore[assignment] # a value that may hold anything

    def __repr__(self) -> str:
        return f"Step({self.reservation!r}, {', '.join(map(repr, self.operations))})"


Own = TypeVar("Own", bound=Reservation)


def plain_start(steps: Sequence[Step], kind: type[Own]) -> tuple[Own | None, Own, Start] | None:
    """Return the job to delete (None: no job), the job to start, and its start.

    So most jobs move: "delete this, start the next". Returns None for all other steps, and if the
    reservations are not of this kind.
    """
    job, operations = steps[-1].reservation, steps[-1].operations
    start = operations[0] if len(operations) == 1 else None
    if type(start) is not Start or not isinstance(job, kind):
        return None
    if len(steps) == 1:
        return None, job, start
    done, operations = steps[0].reservation, steps[0].operations
    is_pair = len(steps) == 2 and len(operations) == 1  # noqa: PLR2004 (a pair)
    if is_pair and type(operations[0]) is Delete and isinstance(done, kind):
        return done, job, start
    return None


# -- results --------------------------------------------------------------------------------------


class Outcome(Enum):
    """What happened to a step."""

    APPLIED = auto()
    LOST = auto()
    """The reservation had ended, or another worker had taken the message; nothing changed."""
    UNKNOWN = auto()
    """The reservation had ended, perhaps by this call: the answer to its first request was lost."""
    REFUSED = auto()
    """An expectation did not hold; nothing changed."""


@value
class Result:
    """The outcome of one step.

    If it was refused: `key` is the first key (or latch, or failed uuid) that did not match, and
    `holds` its value. `due` has the messages that latches returned.
    """

    outcome: Outcome
    key: str = ""
    holds: str | None = None
    due: tuple[Push, ...] = ()

    @property
    def applied(self) -> bool:
        """Whether the step was applied."""
        return self.outcome is Outcome.APPLIED

    @property
    def lost(self) -> bool:
        """Whether the lease was lost."""
        return self.outcome is Outcome.LOST

    def of_end(self, *, unanswered: bool) -> Result:
        """Return what became of the end of a reservation.

        A reservation that is gone was ended by this end if that had been sent before and was
        `unanswered`. Whoever settles decides that here; a backend answers `UNKNOWN` or `LOST`.
        """
        is_ended = self.outcome is Outcome.UNKNOWN or (self.lost and unanswered)
        return APPLIED if is_ended else self


APPLIED = Result(Outcome.APPLIED)
LOST = Result(Outcome.LOST)
UNKNOWN = Result(Outcome.UNKNOWN)
