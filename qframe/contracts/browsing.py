"""Browsing: what a backend that looks at its waiting messages can do beside working on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation


class Place(Enum):
    """Where a message is."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    RUNNING = "running"
    BURIED = "buried"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: where a message is, and how the backend identifies it."""

    queue: str
    raw_body: bytes
    place: Place
    handle: Any
    at: float | None = None
    """When it is or was due or became ready (epoch seconds); None if the backend does not know."""
    lease_ends: float | None = None
    """When the lease of a held or running message ends (epoch seconds); None if it is unknown."""


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


class Browsing:
    """Counts, lists, searches and removes messages that wait. A backend may have any of these."""

    def sizes(self, queue: str) -> Sizes:
        """Count the messages of a queue. Ended delays and leases that ran out count as ready."""
        raise NotImplementedError

    def queues(self) -> list[str]:
        """List the queues that hold messages, sorted."""
        raise NotImplementedError

    def queues_elsewhere(self) -> dict[str, list[str]]:
        """List queues that other applications have in the same place, by what separates them.

        For Redis that is the prefix. It may take some seconds and need not find all of them.
        """
        return {}

    def purge(self, queue: str) -> int:
        """Delete the ready and delayed messages of a queue. Returns how many there were."""
        raise NotImplementedError

    def kick(self, queue: str) -> int:
        """Make the buried messages of a queue ready. Returns how many there were."""
        raise NotImplementedError

    def wake(self, queue: str, handle: str) -> bool:
        """Make one delayed message ready; `handle` is what `Reservation.handle` returned.

        Returns False, and does nothing, if the message is not delayed or not there.
        """
        raise NotImplementedError

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        """List the messages of a queue that are ready, delayed, buried or running (or held).

        Messages that will be reserved first come first; running ones have any order. `after` is the
        cursor of the previous page. Where a backend lists by position, messages that move between
        two calls may appear twice or not at all.
        """
        raise NotImplementedError

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:  # noqa: ARG002 (the contract's)
        """Count the delayed messages of a queue by when they are due.

        The result has a number for each of so many steps of `step` seconds from `since` (epoch
        time); [] if the backend cannot tell.
        """
        return []

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

    def count_before(self, found: Found) -> int | None:  # noqa: ARG002 (the contract's)
        """Count the ready messages that will be reserved before a ready one that was found.

        None if it has moved, or only reading all of them would tell.
        """
        return None

    def take(self, found: Found) -> Reservation | None:
        """Hold a ready, delayed or buried message that was found. None if it has moved.

        If nothing follows, a delayed message comes back no earlier than it is due.
        """
        raise NotImplementedError

    def notes_of(self, found: Found) -> bytes:  # noqa: ARG002 (the contract's)
        """Return the notes beside a found message; b"" if there are none or it has moved."""
        return b""


def position(after: str) -> int:
    """Parse a page cursor of a backend that counts positions; 0 for anything else."""
    digits = after.isdecimal() and after.isascii() and len(after) <= len(str(_LARGEST))
    return min(int(after), _LARGEST) if digits else 0


def signed(after: str) -> int:
    """Parse a page cursor that may be negative; 0 for anything else."""
    return -position(after[1:]) if after.startswith("-") else position(after)


_LARGEST = 2**63 - 1
