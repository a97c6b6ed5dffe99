"""BatchRecord: how a batch of jobs stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch as it stands. Times are epoch seconds, None where it is not so far.

    A member is one job, or one chain of jobs, known by its number from 0; it is `done` or `failed`
    once, however often it ran. One that failed and is done after a retry is done.
    """

    id: str
    name: str
    connection: str
    total: int
    """How many members there are by now."""
    done: int
    failed: int
    closed: bool
    """Whether all that were dispatched at first are there; before, it cannot finish."""
    notified: frozenset[str]
    """What was dispatched: `catch`, `then`, `finally`; `chain` or `broken` of a link of a chain."""
    notified_progress: int
    """How many members had settled when progress was told last."""
    options: dict[str, Any]
    """What was asked for at dispatch: the callbacks, and more."""
    created_at: float
    cancelled_at: float | None = None
    finished_at: float | None = None
    """When all members had settled."""

    @property
    def settled(self) -> int:
        """How many members are done or failed."""
        return self.done + self.failed

    @property
    def pending(self) -> int:
        """How many members are neither done nor failed."""
        return self.total - self.settled

    @property
    def is_finished(self) -> bool:
        """Whether every member is done or failed."""
        return self.closed and self.settled >= self.total

    @property
    def is_notified(self) -> bool:
        """Whether all was dispatched that follows it as it ended."""
        done = self.failed == 0 and self.cancelled_at is None
        chained = "chain" not in self.options or not self.notified.isdisjoint({"chain", "broken"})
        return "finally" in self.notified and (not done or "then" in self.notified) and chained
