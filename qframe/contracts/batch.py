"""BatchRecord: the state of a batch of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The state of one batch. Times are epoch seconds; None if not yet.

    A member is a job or a chain of jobs, identified by its number from 0. It counts as `done` or
    `failed` once, however often it ran. A failed member that succeeds on a retry counts as done.
    """

    id: str
    name: str
    connection: str
    total: int
    """The number of members so far."""
    done: int
    failed: int
    closed: bool
    """Whether the dispatch has added all its members; the batch cannot finish before."""
    notified: frozenset[str]
    """What followed: `catch`, `then`, `finally`; in a chain's link also `chain` or `broken`."""
    notified_progress: int
    """The number of settled members at the last progress notification."""
    options: dict[str, Any]
    """The options of the dispatch: callbacks and others."""
    created_at: float
    cancelled_at: float | None = None
    finished_at: float | None = None
    """When the last member settled."""

    @property
    def settled(self) -> int:
        """The number of members that are done or failed."""
        return self.done + self.failed

    @property
    def pending(self) -> int:
        """The number of members that are neither done nor failed."""
        return self.total - self.settled

    @property
    def is_finished(self) -> bool:
        """Whether every member is done or failed."""
        return self.closed and self.settled >= self.total

    @property
    def is_notified(self) -> bool:
        """Whether everything that follows the end of the batch was dispatched."""
        done = self.failed == 0 and self.cancelled_at is None
        chained = "chain" not in self.options or not self.notified.isdisjoint({"chain", "broken"})
        return "finally" in self.notified and (not done or "then" in self.notified) and chained
