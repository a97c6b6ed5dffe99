"""A step: operations that a backend does together or not at all, and what came of it.

A step is about one reservation, or about none. `Start`, `Renew`, `Delete`, `Release` and `Bury` say
what becomes of the reservation; the others push messages, and change facts, latches and failed
records. Texts are keys and values of facts: any that UTF-8 can carry, without NUL; keys at most 250
characters. Seconds are counted by the backend's clock.
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
    """Make a class a value: a dataclass that type checkers take for frozen.

    Freezing it for good makes each one three times as slow to make, and a job has several.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


# -- the reservation ------------------------------------------------------------------------------


@value
class Start:
    """Take the full lease of a held job and count the attempt.

    Said again for the same reservation it counts once, and renews the lease.
    """

    lease: float
    """Seconds."""
    notes: bytes = b""
    """Kept beside the message from now on, where the backend keeps notes."""


@value
class Renew:
    """Let the lease end `lease` seconds from now, also one that has run out and still stands."""

    lease: float


@value
class Delete:
    """Remove the message: its job is done, or recorded as failed."""


@value
class Release:
    """Make the message ready again: after `delay` seconds, or at once."""

    delay: float = 0.0
    front: bool = False
    """Before those that are ready, else behind them; only without a delay."""
    counted: bool = True
    """Else the attempt that this reservation started is taken back."""
    notes: bytes | None = None
    """Kept beside the message; None leaves what there is."""
    priority: int | None = None
    """A new priority, 0 first, where the backend has priorities."""


@value
class Bury:
    """Put the message aside until it is kicked."""

    notes: bytes | None = None


# -- messages -------------------------------------------------------------------------------------


@value
class Push:
    """Add a message, opaque bytes, ready after `delay` seconds."""

    queue: str
    raw: bytes
    delay: float = 0.0
    priority: int | None = None
    """0 is first, where the backend has priorities."""


# -- facts: texts under keys ----------------------------------------------------------------------


@value
class Expect:
    """Refuse the whole step unless the key holds this value; None: unless it holds nothing."""

    key: str
    value: str | None


@value
class Set:
    """Write a fact; it is gone after `ttl` seconds, or stays (None)."""

    key: str
    value: str
    ttl: float | None = None


@value
class Unset:
    """Remove a fact; with a `value`, only if it holds that."""

    key: str
    value: str | None = None


@value
class Raise:
    """Write a fact that only moves forward: not if one of a higher rank is there.

    Such a key is written by `Raise` alone, and may be unset; `read`, `scan` and `Expect` see its
    value. Ranks are below 2**53.
    """

    key: str
    rank: int
    value: str
    ttl: float


@value
class Add:
    """Add to a whole number below 2**53; a key that is not there counts as 0.

    Such a key is written by `Add` alone, and may be unset. `ttl` begins anew each time; None lets
    it stay from now on.
    """

    key: str
    number: int
    ttl: float | None = None


# -- latches: members that arrive, and a message that is pushed then -------------------------------


@value
class Open:
    """Make a latch without members; nothing happens where there is one of this key.

    `then` is pushed when something has happened that somebody should look at: the first member
    failed, `every` further members are done (0: never), or all have arrived and it is closed. The
    latch is gone `ttl` seconds after the last operation on it, other than this one.
    """

    latch: str
    then: Push
    every: int = 0
    ttl: float = 30 * 86400.0


@value
class Extend:
    """Let the latch have `size` members, unless it has more.

    Refuses the step where there is no such latch, or it is closed and all members have arrived. One
    that the same step opens is not there yet.
    """

    latch: str
    size: int


@value
class Arrive:
    """Note that a member is done or has failed; nothing happens where there is no such latch.

    A member arrives once, however often it is said; one that failed may be done later, and one that
    is done cannot fail. `then` is due when, after this, the latch is complete; when this is the
    first member that failed; when it is done and the number of those is a multiple of `every`:
    also if it has arrived before, for the answer may have been lost. A number that no member has is
    ignored.
    """

    latch: str
    member: int
    """Its number, from 0."""
    failed: bool = False
    label: str = ""
    """Kept of a member that failed."""
    push: bool = True
    """Whether the backend pushes `then` where it is due; else the result hands it over.

    The latter only in a step about no reservation, all of it: so `OrderedBackend` asks for facts.
    """


@value
class Close:
    """Say that all members are known: the latch is complete when these have arrived.

    `then` is due if it is complete, also when it was closed before.
    """

    latch: str
    push: bool = True
    """As in `Arrive`."""


# -- failed records -------------------------------------------------------------------------------


@value
class Record:
    """Keep a failed job; one with the same uuid is replaced."""

    job: FailedJob


@value
class Forget:
    """Remove the record of a failed job; refuses the step where there is none."""

    uuid: str


# -- of steps that are made in parts (`drivers/ordered.py`); a driver never gets these -------------


@value
class Claim:
    """Take a key for a job that the step pushes: `Expect` and `Set`, where a step is one thing.

    Elsewhere the claim counts once the job is pushed, and is withdrawn where it cannot be.
    """

    key: str
    value: str
    """The job's uuid."""
    ttl: float
    holds: str | None = None
    """What the key holds now."""


@value
class Afterwards:
    """Write a fact once the messages of the step are pushed."""

    fact: Set | Raise


Settling = Delete | Release | Bury
OfReservation = Start | Renew | Delete | Release | Bury
OfFact = Expect | Set | Unset | Raise | Add
OfLatch = Open | Extend | Arrive | Close
OfFailed = Record | Forget
OfParts = Claim | Afterwards
Operation = OfReservation | Push | OfFact | OfLatch | OfFailed | OfParts


class Reservation(ABC):
    """What was delivered; a driver derives its own from it (`RedisJob`, `DatabaseJob`, ...).

    It is held at first: its lease lasts about a second. `Start` takes the full lease and counts the
    attempt. The backend keeps the fence up to date as it applies steps.
    """

    worker_died: bool = False
    """Whether its last worker may just have died: how that ended may be noted yet (`Renew`)."""

    __slots__ = (
        "_attempts", "id", "lease", "notes", "queue", "raw_body", "started", "sure_until", "unsent",
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
        """The backend's own name for the message."""
        self.raw_body = raw_body
        """The message as it was pushed, byte for byte."""
        self.notes = notes
        """What was kept beside it, b"" where there is nothing."""
        self.started = False
        """Whether this reservation was started."""
        self.sure_until = 0.0
        """Until when, by `Backend.clock`, the lease is certain to be ours without asking."""
        self.lease = 0.0
        """Seconds of the lease that `Start` took last; 0 while it is only held."""
        self.unsent = False
        """Whether messages of a broken step may be in an outbox (`drivers/ordered.py`)."""
        self._attempts = attempts

    def attempts(self) -> int:
        """How often the message was started, by this reservation included."""
        return self._attempts

    @property
    @abstractmethod
    def fence(self) -> bytes:
        """Bytes that name this reservation to `Backend.adopt`, also in another process."""

    def delete(self) -> Step:
        """Give the step that removes the message."""
        return Step(self, Delete())

    def release(self, delay: float = 0) -> Step:
        """Give the step that makes it ready again after `delay` seconds."""
        return Step(self, Release(delay))

    def bury(self) -> Step:
        """Give the step that puts it aside."""
        return Step(self, Bury())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue}>"


class Step:
    """Operations on one reservation, or on none, in the order in which they take effect.

    The fence and every expectation (`Expect`, `Extend`, `Forget`) are looked at before anything is
    changed, as things are before the step. At most one operation is about the reservation.
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


# -- what came of a step --------------------------------------------------------------------------


class Outcome(Enum):
    """What became of a step."""

    APPLIED = auto()
    LOST = auto()
    """The reservation had ended, or another had taken its message: nothing was done."""
    REFUSED = auto()
    """Something was not as expected: nothing was done."""


@value
class Result:
    """The outcome of one step.

    Of a refused one, the first `key` that was not as expected (a latch's or a failed uuid's, too)
    and what it `holds`. `due` are the messages that latches handed over.
    """

    outcome: Outcome
    key: str = ""
    holds: str | None = None
    due: tuple[Push, ...] = ()

    @property
    def applied(self) -> bool:
        """Whether the step was done."""
        return self.outcome is Outcome.APPLIED

    @property
    def lost(self) -> bool:
        """Whether the lease was lost."""
        return self.outcome is Outcome.LOST


APPLIED = Result(Outcome.APPLIED)
LOST = Result(Outcome.LOST)
