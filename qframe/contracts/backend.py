"""Backend: what a driver implements. It reserves messages and applies steps."""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step

if TYPE_CHECKING:
    from qframe.contracts.failed import FailedJob
    from qframe.contracts.outbox import Outbox


class Capability(Flag):
    """One thing a backend may be able to do; the rest of qframe works without it."""

    NONE = 0
    RESERVE = auto()
    """Messages wait and can be reserved (not `sync`, not `null`)."""
    AHEAD = auto()
    """Several can be held at once, and only a start counts an attempt."""
    UNCOUNT = auto()
    """A started attempt can be taken back."""
    NOTES = auto()
    """Notes are kept beside the message."""
    BURY = auto()
    """A message can be put aside."""
    ADOPT = auto()
    """Another process can settle a reservation by its fence."""
    WAIT = auto()
    """`wait` ends when there is work; else it only sleeps."""
    LIST = auto()
    """The queues that hold messages can be listed."""
    SIZE = auto()
    """Messages can be counted."""
    PURGE = auto()
    """Waiting messages can be deleted."""
    SEARCH = auto()
    """A waiting message can be found by what it holds, and taken."""
    BROWSE = auto()
    """Messages can be listed, a page at a time."""
    PRIORITY = auto()
    """Messages have priorities."""
    FACTS = auto()
    """It keeps facts, latches and failed records."""
    JOINT = auto()
    """A step of any operations is one thing: all of it is done, or nothing."""
    DURABLE = auto()
    """What was pushed survives the death of every process of ours."""
    WITHIN = auto()
    """Steps can be applied in a transaction of the caller's own."""
    OUTBOX = auto()
    """Steps for other backends can be kept in such a transaction."""


class Place(Enum):
    """Where a message is."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    RUNNING = "running"
    BURIED = "buried"


class Standing(Enum):
    """How a reservation stands, by what has been committed."""

    OURS = "ours"
    """It is the current one of its message."""
    LOCKED = "locked"
    """It is, and a transaction that is not over is about to change that."""
    TAKEN = "taken"
    """The message is there, and the reservation is not the current one."""
    GONE = "gone"
    """The message is not there any more."""


@dataclass(frozen=True, slots=True)
class Found:
    """A message that was found: where it is, and what the backend knows it by."""

    queue: str
    raw_body: bytes
    place: Place
    handle: Any
    at: float | None = None
    """When it is due, or has become ready, an epoch time, where the backend knows it."""


class Page(NamedTuple):
    """Some messages of a queue that are in one place, in their order."""

    found: list[Found]
    after: str
    """Names the place behind the last one, for the next page; "" where nothing follows."""


class Span(NamedTuple):
    """Places in a row that messages of a queue are in, from `first` until before `end`."""

    of: str
    """Which row of places it is, as the backend names it."""
    first: int
    end: int
    in_order: bool
    """Whether messages are in them in the order in which they were pushed, by and large."""


@dataclass(frozen=True, slots=True)
class Latch:
    """A latch as it stands. Times are epoch seconds by the backend's clock, None for not so far."""

    size: int
    done: int
    failed: int
    closed: bool
    first_failed: int | None
    """The member that failed first."""
    failed_at: float | None
    """When it did."""
    completed_at: float | None
    """When it was closed and all had arrived, for the first time."""
    labels: tuple[str, ...] = ()
    """Labels of members that failed, by their numbers: as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Health:
    """A sign of life: kind and version in a few words, and what is unsafe, a sentence each."""

    version: str
    warnings: tuple[str, ...] = ()


class Change(NamedTuple):
    """One thing that a migration does: in a few words, and its statement."""

    what: str
    sql: str


@dataclass(slots=True)
class Timing:
    """The times a backend works with; a test may change them."""

    hold: float = 1.0
    """Seconds the lease of a held message lasts, and one more for each `bytes_a_second`."""
    bytes_a_second: int = 65_536
    """So slow a line may be before a held message is lost on it."""
    most_bytes: int = 262_144
    """A call of `reserve` gives no further message once it gave so many bytes."""
    skew: float = 0.0
    """Added to the backend's clock: a test lets time pass by it."""


class Backend(ABC):
    """Messages in queues, and facts under keys. Raises `BackendUnavailable`; safe in threads.

    - A message that was pushed is there until its reservation is deleted, or it is purged.
    - Two pushes of the same bytes are two messages; they come back byte for byte.
    - A queue gives its messages in the order in which they became ready: when they were pushed,
      released or kicked, or their delay ended. One that is released to the front comes before all
      that are ready; so does one whose lease ran out, in any order among these.
    - A reservation stands until it is settled, or another takes its message once its lease has run
      out. A backend may also end it as soon as the lease has run out.
    - `apply` says a request again by itself whose answer was lost, and it counts once; a step that
      a caller says again is another step.
    """

    capabilities: Capability = Capability.NONE
    timing: Timing
    look_every: float = 1.0
    """Seconds an idle worker waits at most before it looks whether it is to pause or restart."""
    has_one_writer: bool = False
    """Whether an open transaction that has written keeps all others from writing (SQLite)."""
    needs_facts: ClassVar[bool] = False
    """Whether its constructor takes, as third argument, what gives the backend of its facts."""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 (any base's)
        """Take away what it has no methods for: who says "all but" cannot know what comes later."""
        super().__init_subclass__(**options)
        for capability, methods in _METHODS.items():
            if any(getattr(cls, name) is getattr(Backend, name) for name in methods):
                cls.capabilities &= ~capability

    @abstractmethod
    def apply(self, *steps: Step) -> list[Result]:
        """Apply steps in order, each by itself, in one exchange; gives a result for each."""

    def tell(self, steps: Sequence[Step], heard: Callable[[list[Result]], None]) -> None:
        """Apply steps, without waiting for the answer where the leases are certain to be ours.

        `heard` gets the results, at the next call of this thread at the latest. Only for steps
        that may be said twice: `Start`, and what is fenced by its reservation. The reservation
        counts as started when this returns; a result that says otherwise comes later.
        """
        heard(self.apply(*steps))

    @abstractmethod
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        """Hold up to `limit` messages, strictly in the order of the queues; never waits.

        What is due, or whose lease ran out, becomes ready before. The steps in `first` are applied
        before that, in the same exchange; their results come second. A held message whose lease
        runs out goes back uncounted.
        """

    def within(self, transaction: object) -> Backend:
        """Give this backend as seen through a transaction of the caller's own, for one thread.

        What it applies is committed with the caller's rows, or not at all; it never begins, commits
        or rolls back. A backend without transactions gives itself, and does things at once. Raises
        `InvalidTransaction`.
        """
        raise NotImplementedError

    def outbox(self) -> Outbox:
        """Give the table beside its own that keeps steps for other backends."""
        raise NotImplementedError

    def hear(self) -> None:  # noqa: B027 (there may be nothing to hear)
        """Hear what this thread was not answered so far (`tell`)."""

    def standing(self, reservation: Reservation) -> Standing:
        """Say how a reservation stands, whose end may have been told within a transaction."""
        raise NotImplementedError

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:  # noqa: ARG002 (the contract's)
        """Return when `reserve` may find something, after `timeout`, or when `wake` is readable.

        Where waiting is taking, the next `reserve` of this thread gives what was taken; it goes
        back at once with a wait for other queues, or for none.
        """
        if wake is None:
            time.sleep(max(0.0, timeout))
        else:
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            poll.poll(max(0.0, timeout) * 1000)

    def adopt(self, fence: bytes) -> Reservation | None:
        """Give the started reservation a fence names, if its lease lasts: its worker has died."""
        raise NotImplementedError

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        """Count the messages of a queue; a lease that ran out and a delay that ended are ready."""
        raise NotImplementedError

    def queues(self) -> list[str]:
        """Name the queues that hold messages, sorted."""
        raise NotImplementedError

    def purge(self, queue: str) -> int:
        """Delete the messages of a queue that are ready or delayed; gives how many there were."""
        raise NotImplementedError

    def kick(self, queue: str) -> int:
        """Make the buried messages of a queue ready; gives how many there were."""
        raise NotImplementedError

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        """Find messages of a queue that hold these bytes, wherever they are, in any order.

        With `within`, only in these places.
        """
        raise NotImplementedError

    def spans(self, queue: str) -> list[Span]:  # noqa: ARG002 (the contract's)
        """Name all places that messages of a queue are in; none: it can only be searched whole."""
        return []

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        """Give the first messages in some places, each with its place.

        Others than of this queue may be among them, where queues share a row of places.
        """
        raise NotImplementedError

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        """List messages of a queue that are ready, delayed, buried or running (or held).

        Those come first that are taken first, the running ones in any order; `after` is what the
        page before came with. Where the backend lists by position, messages that come or go
        meanwhile may be given twice, or be missed.
        """
        raise NotImplementedError

    def notes_of(self, found: Found) -> bytes:  # noqa: ARG002 (the contract's)
        """Give the notes beside a message that was found; b"" where there are none any more."""
        return b""

    def take(self, found: Found) -> Reservation | None:
        """Hold a message that was found ready, delayed or buried; None where it has moved on."""
        raise NotImplementedError

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        """Give the values of facts, None for each that is not there."""
        raise NotImplementedError

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        """List the facts whose keys begin with `prefix` and come after `after`, by key.

        `last_first`: in reverse order, those whose keys come before `after`, if that is given.
        """
        raise NotImplementedError

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        """Give a latch, with the labels of at most so many members that failed."""
        raise NotImplementedError

    def find_failed(self, uuid: str) -> FailedJob | None:
        """Give the record of a failed job."""
        raise NotImplementedError

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        """List failed jobs, the last recorded first, those that follow the uuid `after`.

        None follow a uuid that is not there.
        """
        raise NotImplementedError

    def count_failed(self) -> int:
        """Count the failed jobs."""
        raise NotImplementedError

    # -- the rest ---------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:  # noqa: B027 (most take any)
        """Raise `InvalidQueueName` for a queue this backend cannot have."""

    def longest_message(self) -> int | None:
        """Ask the server how long a message may be; None where it sets no limit."""
        return None

    def clock(self) -> float:
        """Give the seconds of a clock of this process that counts suspension."""
        return suspending_clock() + self.timing.skew

    @abstractmethod
    def described(self) -> str:
        """Say in a few words where the messages are, never with a password."""

    def path(self) -> Path | None:
        """Give the file that the messages are in, by its full path; None: they are in no file."""
        return None

    @abstractmethod
    def check(self) -> Health:
        """Ask for a sign of life."""

    def queues_elsewhere(self) -> dict[str, list[str]]:
        """Name the queues that others have in the same place, by what tells them from its own.

        That is Redis' prefix. It may take some seconds, and need not find all.
        """
        return {}

    def migrate(self) -> list[Change] | None:
        """Make what is missing of its tables; gives what was done, None where it has no tables.

        Any number of processes may do so at once, and again.
        """
        return None

    def migration(self, *, ask: bool = True) -> list[Change] | None:  # noqa: ARG002 (the contract's)
        """Give what `migrate` would do, without doing it.

        `ask=False` needs no server: all that makes the tables, whether they are there or not.
        """
        return None

    def tables(self) -> list[str]:
        """Name its tables."""
        return []

    def close(self) -> None:  # noqa: B027 (there may be nothing to close)
        """Close this thread's connections, and those nobody uses; the next call opens others."""

    def leave(self) -> None:
        """Close what this thread alone has, which is about to end."""
        self.close()


def in_order(keys: Iterable[str], after: str, *, last_first: bool) -> list[str]:
    """Give keys in the order of `Backend.scan`, those that follow `after`."""
    if last_first:
        return sorted((key for key in keys if not after or key < after), reverse=True)
    return sorted(key for key in keys if key > after)


def position(after: str) -> int:
    """Read where a page begins, as a backend that counts positions names it; 0 for all else."""
    digits = after.isdecimal() and after.isascii() and len(after) <= len(str(_LARGEST))
    return min(int(after), _LARGEST) if digits else 0


_LARGEST = 2**63 - 1
_METHODS = {
    Capability.ADOPT: ["adopt"],
    Capability.WAIT: ["wait"],
    Capability.LIST: ["queues"],
    Capability.SIZE: ["sizes"],
    Capability.PURGE: ["purge"],
    Capability.SEARCH: ["search", "take"],
    Capability.BROWSE: ["browse"],
    Capability.FACTS: ["read", "scan", "latch", "find_failed", "list_failed", "count_failed"],
    Capability.WITHIN: ["within"],
    Capability.OUTBOX: ["outbox"],
}
"""What a class has to have of its own to have a capability."""


suspending_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    suspending_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""A clock that also counts while the machine sleeps, where there is one."""
