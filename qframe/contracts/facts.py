"""FactReading: how the facts, latches and failed records of a backend are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Open


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
    """When the latch was closed and all members had arrived, for the first time since one left."""
    labels: tuple[str, ...] = ()
    """Labels of failed members, ordered by member number, as many as the caller asked for."""


@dataclass(frozen=True, slots=True)
class FactCopy:
    """A fact with all that is kept of it, to be written elsewhere."""

    key: str
    value: str
    ttl: float | None
    """Seconds that it lasts from now; None: it does not expire."""
    rank: int | None = None
    """Its rank, if `Raise` wrote it."""


@dataclass(frozen=True, slots=True)
class LatchCopy:
    """A latch with all its members, to be made again elsewhere."""

    opened: Open
    size: int
    closed: bool
    done: Sequence[int]
    failed: Mapping[int, str]
    """The labels of the failed members, the first that failed first."""


class FactReading:
    """Reads what steps have written under keys; a backend with `Capability.FACTS` has all of it."""

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

    def copy(self, *keys: str) -> list[FactCopy | None]:
        """Return facts with their times and ranks, None for each key that does not exist."""
        raise NotImplementedError

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        """Return a latch, with the labels of at most `labels` failed members.

        None if there is none.
        """
        raise NotImplementedError

    def copy_latch(self, key: str) -> LatchCopy | None:
        """Return a latch with all its members; None if there is none."""
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


def first_first(failed: Mapping[int, str], first: int | None) -> dict[int, str]:
    """Return the labels of failed members, the one that failed first before the others."""
    before = {} if first is None or first not in failed else {first: failed[first]}
    return before | dict(failed)


def in_order(keys: Iterable[str], after: str, *, last_first: bool) -> list[str]:
    """Return the keys that follow `after`, in the order of `FactReading.scan`."""
    if last_first:
        return sorted((key for key in keys if not after or key < after), reverse=True)
    return sorted(key for key in keys if key > after)
