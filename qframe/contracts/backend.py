"""Backend: the interface of a driver. A backend reserves messages and applies steps."""

from __future__ import annotations

import math
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from qframe.contracts.browsing import Browsing
from qframe.contracts.facts import FactReading
from qframe.contracts.step import Reservation, Result, Step
from qframe.contracts.tables import Migratable

if TYPE_CHECKING:
    from qframe.contracts.outbox import Outbox


class Capability(Flag):
    """Abilities that a backend may have; the rest of qframe works without any of them."""

    NONE = 0
    RESERVE = auto()
    """The backend keeps messages and workers can reserve them (not `sync`, not `null`)."""
    AHEAD = auto()
    """A worker can hold several messages before it starts one."""
    COUNTS = auto()
    """Only `Start` counts an attempt; a message that was merely held comes back uncounted.

    Without it, a message whose worker died while it held it counts as started.
    """
    UNCOUNT = auto()
    """`Release(counted=False)` takes a started attempt back."""
    ORDER = auto()
    """A queue delivers messages in the order in which they became ready."""
    FENCE = auto()
    """The server knows whether a reservation is valid; else its worker's clock decides."""
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
    WAKE = auto()
    """The backend can make one delayed message ready."""
    OUTBOX = auto()
    """The backend can keep steps for other backends in such a transaction."""


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
class Health:
    """The answer to a health check: kind and version, and one sentence for each unsafe setting."""

    version: str
    warnings: tuple[str, ...] = ()
    longest_job: float = math.inf
    """Seconds after which the server ends the lease of a job that still runs."""


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


class Transactional:
    """Applies steps in transactions of the caller; for `Capability.WITHIN` and `OUTBOX`."""

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

    def standing(self, reservation: Reservation) -> Standing:
        """Check whether a reservation is still valid; a transaction may have settled it."""
        raise NotImplementedError


class Backend(Browsing, FactReading, Transactional, Migratable, ABC):
    """Keeps messages in queues, and facts under keys. Thread-safe. Raises `BackendUnavailable`.

    - A pushed message stays until its reservation is deleted or its queue is purged.
    - Two pushes of the same bytes are two messages. The backend returns them byte for byte.
    - With `Capability.ORDER`, a queue delivers its messages in the order in which they became
      ready: when they were pushed, released or kicked, or when their delay ended. A message that
      was released to the front, or whose lease ran out, comes before all ready messages; among
      themselves these have any order.
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
    keeps_failed: ClassVar[bool] = False
    """Whether failed jobs are recorded although no worker takes any."""
    needs_facts: ClassVar[bool] = False
    """Whether the constructor takes, third, a function that returns the backend of its facts."""
    needs_backends: ClassVar[bool] = False
    """Whether the constructor takes, last, a function that returns the backend of a connection."""
    payload_keys: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Keys in the payload of each job that qframe runs from here."""
    wires: frozenset[str] = frozenset()
    """The other programs in whose form it writes messages that ask for it: `celery`."""

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

    def apply_again(self, *steps: Step) -> list[Result]:
        """Apply steps that only push, which an earlier call of another process may have applied."""
        return self.apply(*steps)

    @abstractmethod
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        """Hold up to `limit` messages, strictly in the order of `queues`. Never waits.

        First, delayed messages that are due and messages whose lease ran out become ready. The
        backend applies the steps in `first` before that, in the same exchange, and returns their
        results second. If the lease of a held message runs out, the message goes back uncounted.
        """

    def read_replies(self) -> None:
        """Read all outstanding answers to this thread's calls of `apply_async`."""

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

    def remove_expired(self, prefix: str) -> None:
        """Remove the expired facts whose keys begin with `prefix` at once, if they are still kept.

        Nobody sees expired facts, but a database keeps their rows until a sweep comes by.
        """

    def check_queue(self, name: str) -> None:
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

    def close(self) -> None:
        """Close this thread's connections and unused ones; the next call opens new ones."""

    def leave(self) -> None:
        """Close the connections that only this thread uses; the thread is about to end."""
        self.close()


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
    Capability.WAKE: ["wake"],
    Capability.OUTBOX: ["outbox"],
}
"""Methods that a class must define to have a capability."""


suspending_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    suspending_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""A monotonic clock that also counts while the machine sleeps, where the system has one."""
