"""Backend: the interface of a driver. A backend reserves messages and applies steps."""

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
    """Abilities that a backend may have; the rest of qframe works without any of them."""

    NONE = 0
    RESERVE = auto()
    """The backend keeps messages and workers can reserve them (not `sync`, not `null`)."""
    AHEAD = auto()
    """A worker can hold several messages at once; only `Start` counts an attempt."""
    UNCOUNT = auto()
    """`Release(counted=False)` takes a started attempt back."""
    NOTES = auto()
    """The backend keeps notes beside a message."""
    BURY = auto()
    """The backend can bury messages."""
    ADOPT = auto()
    """Another process can settle a reservation by its fence."""
    WAIT = auto()
    """`wait` returns when there is work; otherwise it only sleeps."""
    LIST = auto()
    """The backend can list the queues that hold messages."""
    SIZE = auto()
    """The backend can count messages."""
    PURGE = auto()
    """The backend can delete waiting messages."""
    SEARCH = auto()
    """The backend can search waiting messages by their content, and take one."""
    BROWSE = auto()
    """The backend can list messages page by page."""
    PRIORITY = auto()
    """Messages have priorities."""
    FACTS = auto()
    """The backend keeps facts, latches and failed records."""
    JOINT = auto()
    """A step is atomic, whatever operations it has: the backend applies all of them or none."""
    DURABLE = auto()
    """A pushed message survives the death of every qframe process."""
    WITHIN = auto()
    """The backend can apply steps in a transaction of the caller."""
    OUTBOX = auto()
    """The backend can keep steps for other backends in such a transaction."""


class Place(Enum):
    """Where a message is."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    RUNNING = "running"
    BURIED = "buried"


class Standing(Enum):
    """Whether a reservation is still valid, as far as committed transactions tell."""

    OURS = "ours"
    """The message's current reservation is this one."""
    LOCKED = "locked"
    """It is this one, but an open transaction is about to change that."""
    TAKEN = "taken"
    """The message exists under another reservation."""
    GONE = "gone"
    """The message no longer exists."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: where a message is, and how the backend identifies it."""

    queue: str
    raw_body: bytes
    place: Place
    handle: Any
    at: float | None = None
    """When it is or was due or became ready (epoch seconds); None if the backend does not know."""


class Page(NamedTuple):
    """One page of the messages of a queue that are in one place, in order."""

    found: list[Found]
    after: str
    """Cursor for the next page; "" if this page is the last."""


class Span(NamedTuple):
    """A range of positions with messages of a queue: `first` up to but excluding `end`."""

    of: str
    """The backend's name for the list that the positions belong to."""
    first: int
    end: int
    in_order: bool
    """Whether the messages are roughly in the order in which they were pushed."""


@dataclass(frozen=True, slots=True)
class Latch:
    """The state of a latch. Times are epoch seconds by the backend's clock; None if not yet."""

    size: int
    done: int
    failed: int
    closed: bool
    first_failed: int | None
    """The member that failed first."""
    failed_at: float | None
    """When that member failed."""
    completed_at: float | None
    """When the latch was closed and all members had arrived, for the first time."""
    labels: tuple[str, ...] = ()
    """Labels of failed members, ordered by member number, as many as the caller asked for."""


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a health check: kind and version, and one sentence for each unsafe setting."""

    version: str
    warnings: tuple[str, ...] = ()


class Change(NamedTuple):
    """One change of a migration: a short description and its SQL statement."""

    what: str
    sql: str


@dataclass(slots=True)
class Timing:
    """Times and sizes that a backend works with; tests may change them."""

    hold: float = 1.0
    """Seconds that the lease of a held message lasts, plus one for each `bytes_a_second`."""
    bytes_a_second: int = 65_536
    """The slowest connection, in bytes a second, on which a held message is not lost."""
    most_bytes: int = 262_144
    """`reserve` returns no further message once it has returned this many bytes."""
    skew: float = 0.0
    """Seconds added to the backend's clock, so that a test can let time pass."""


class Backend(ABC):
    """Keeps messages in queues, and facts under keys. Thread-safe. Raises `BackendUnavailable`.

    - A pushed message stays until its reservation is deleted or its queue is purged.
    - Two pushes of the same bytes are two messages. The backend returns them byte for byte.
    - A queue delivers its messages in the order in which they became ready: when they were pushed,
      released or kicked, or when their delay ended. A message that was released to the front, or
      whose lease ran out, comes before all ready messages; among themselves these have any order.
    - A reservation lasts until it is settled, or until another worker reserves the message after
      the lease has run out. A backend may also end it as soon as the lease has run out.
    - `apply` repeats a request whose answer was lost, and its steps count once. A step that the
      caller applies again is another step.
    """

    capabilities: Capability = Capability.NONE
    timing: Timing
    look_every: float = 1.0
    """Seconds after which an idle worker checks for a pause or restart at the latest."""
    has_one_writer: bool = False
    """Whether an open transaction that has written blocks all other writers (SQLite)."""
    needs_facts: ClassVar[bool] = False
    """Whether the constructor takes, third, a function that returns the backend of its facts."""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 (any base's)
        """Remove capabilities whose methods the class does not define.

        A class that declares "all but X" cannot know the capabilities of later versions.
        """
        super().__init_subclass__(**options)
        for capability, methods in _METHODS.items():
            if any(getattr(cls, name) is getattr(Backend, name) for name in methods):
                cls.capabilities &= ~capability

    @abstractmethod
    def apply(self, *steps: Step) -> list[Result]:
        """Apply steps in order, each one atomic, in one exchange.

        Returns one result for each step.
        """

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        """Apply steps without waiting for the answer, where the leases are certainly still valid.

        The backend calls `on_result` during this thread's next call at the latest. Only for steps
        that may be sent twice: `Start`, and steps fenced by their reservation. The reservation
        counts as started when this method returns; a result that contradicts it comes later.
        """
        on_result(self.apply(*steps))

    @abstractmethod
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        """Hold up to `limit` messages, strictly in the order of `queues`. Never waits.

        First, delayed messages that are due and messages whose lease ran out become ready. The
        backend applies the steps in `first` before that, in the same exchange, and returns their
        results second. If the lease of a held message runs out, the message goes back uncounted.
        """

    def within(self, transaction: object) -> Backend:
        """Return this backend bound to a transaction of the caller, for one thread.

        The caller's commit or rollback decides about the applied steps; the backend never begins,
        commits or rolls back. A backend without transactions returns itself and applies steps at
        once. Raises `InvalidTransaction`.
        """
        raise NotImplementedError

    def outbox(self) -> Outbox:
        """Return the table, beside the backend's own, that keeps steps for other backends."""
        raise NotImplementedError

    def read_replies(self) -> None:  # noqa: B027 (a backend may have no answers outstanding)
        """Read all outstanding answers to this thread's calls of `apply_async`."""

    def standing(self, reservation: Reservation) -> Standing:
        """Check whether a reservation is still valid; a transaction may have settled it."""
        raise NotImplementedError

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:  # noqa: ARG002 (the contract's)
        """Return when `reserve` may find something, after `timeout`, or when `wake` is readable.

        `timeout` is in seconds. A backend that can wait only by taking a message keeps it for this
        thread's next `reserve`; it returns the message to its queue on a wait for other queues, or
        a `reserve` without it.
        """
        if wake is None:
            time.sleep(max(0.0, timeout))
        else:
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            poll.poll(max(0.0, timeout) * 1000)

    def adopt(self, fence: bytes) -> Reservation | None:
        """Return the started reservation with this fence, whose worker has died.

        None if it has ended.
        """
        raise NotImplementedError

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        """Count the messages of a queue. Ended delays and leases that ran out count as ready."""
        raise NotImplementedError

    def queues(self) -> list[str]:
        """List the queues that hold messages, sorted."""
        raise NotImplementedError

    def purge(self, queue: str) -> int:
        """Delete the ready and delayed messages of a queue. Returns how many there were."""
        raise NotImplementedError

    def kick(self, queue: str) -> int:
        """Make the buried messages of a queue ready. Returns how many there were."""
        raise NotImplementedError

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        """Find messages of a queue that contain these bytes, in any place and any order.

        `within` limits the search to a range of positions.
        """
        raise NotImplementedError

    def spans(self, queue: str) -> list[Span]:  # noqa: ARG002 (the contract's)
        """Return the ranges that hold messages of a queue; [] if only a full search is possible."""
        return []

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        """Return the first messages of a range, each with its position.

        Where queues share a list, messages of other queues may be among them.
        """
        raise NotImplementedError

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        """List the messages of a queue that are ready, delayed, buried or running (or held).

        Messages that will be reserved first come first; running ones have any order. `after` is the
        cursor of the previous page. Where a backend lists by position, messages that move between
        two calls may appear twice or not at all.
        """
        raise NotImplementedError

    def notes_of(self, found: Found) -> bytes:  # noqa: ARG002 (the contract's)
        """Return the notes beside a found message; b"" if there are none or it has moved."""
        return b""

    def take(self, found: Found) -> Reservation | None:
        """Hold a ready, delayed or buried message that was found. None if it has moved."""
        raise NotImplementedError

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        """Return the values of facts, None for each key that does not exist."""
        raise NotImplementedError

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        """List the facts whose keys begin with `prefix` and come after `after`, sorted by key.

        `last_first` lists in reverse order, the keys before `after` if that is given.
        """
        raise NotImplementedError

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        """Return a latch, with the labels of at most `labels` failed members.

        None if there is none.
        """
        raise NotImplementedError

    def find_failed(self, uuid: str) -> FailedJob | None:
        """Return the record of a failed job. None if there is none."""
        raise NotImplementedError

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        """List failed jobs, the latest record first, starting behind the uuid `after`.

        The list is empty if `after` does not exist.
        """
        raise NotImplementedError

    def count_failed(self) -> int:
        """Count the failed jobs."""
        raise NotImplementedError

    # -- other calls ------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:  # noqa: B027 (most backends accept any name)
        """Raise `InvalidQueueName` for a name that this backend cannot use."""

    def longest_message(self) -> int | None:
        """Return the server's limit for the length of a message in bytes; None if it has none."""
        return None

    def clock(self) -> float:
        """Return seconds of a monotonic clock that also counts while the machine sleeps."""
        return suspending_clock() + self.timing.skew

    @abstractmethod
    def described(self) -> str:
        """Describe in a few words where the messages are, never with a password."""

    def path(self) -> Path | None:
        """Return the full path of the file with the messages; None if they are in no file."""
        return None

    @abstractmethod
    def check(self) -> Health:
        """Check that the backend answers, and look for unsafe settings."""

    def queues_elsewhere(self) -> dict[str, list[str]]:
        """List queues that other applications have in the same place, by what separates them.

        For Redis that is the prefix. It may take some seconds and need not find all of them.
        """
        return {}

    def migrate(self) -> list[Change] | None:
        """Create or update the backend's tables. Returns the changes; None if it has no tables.

        Safe to repeat, and to run in any number of processes at once.
        """
        return None

    def migration(self, *, ask: bool = True) -> list[Change] | None:  # noqa: ARG002 (the contract's)
        """Return the changes that `migrate` would make, without making them.

        `ask=False` needs no server: it returns all changes that create the tables from nothing.
        """
        return None

    def tables(self) -> list[str]:
        """List the backend's tables."""
        return []

    def close(self) -> None:  # noqa: B027 (a backend may have no connections)
        """Close this thread's connections and unused ones; the next call opens new ones."""

    def leave(self) -> None:
        """Close the connections that only this thread uses; the thread is about to end."""
        self.close()


def in_order(keys: Iterable[str], after: str, *, last_first: bool) -> list[str]:
    """Return the keys that follow `after`, in the order of `Backend.scan`."""
    if last_first:
        return sorted((key for key in keys if not after or key < after), reverse=True)
    return sorted(key for key in keys if key > after)


def position(after: str) -> int:
    """Parse a page cursor of a backend that counts positions; 0 for anything else."""
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
"""Methods that a class must define to have a capability."""


suspending_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    suspending_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""A monotonic clock that also counts while the machine sleeps, where the system has one."""
