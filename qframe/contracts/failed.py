"""The contract of the place where jobs that ran out of tries are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.contracts.history import History


@dataclass(frozen=True, slots=True)
class FailedJob:
    """One failed job: what Laravel's `failed_jobs` row holds, and the attempts before it."""

    uuid: str
    connection: str
    queue: str
    payload: bytes
    exception: str
    """The traceback with its causes; the last line names the error."""
    name: str
    attempts: int
    history: History
    failed_at: float


class FailedStore(ABC):
    """Failed jobs by uuid. Raises `BackendUnavailable`."""

    @abstractmethod
    def add(self, record: FailedJob) -> None:
        """Keep a failed job; one with the same uuid is replaced."""

    @abstractmethod
    def find(self, uuid: str) -> FailedJob | None:
        """Give one failed job."""

    @abstractmethod
    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> Sequence[FailedJob]:
        """List failed jobs, latest first, those that follow the uuid `after`."""

    @abstractmethod
    def count(self) -> int:
        """Count the failed jobs."""

    @abstractmethod
    def forget(self, uuid: str) -> bool:
        """Remove one; says whether it was there. Of two callers at once, one is told true."""

    @abstractmethod
    def flush(self, before: float | None = None) -> int:
        """Remove all, or those that failed before an epoch time; gives how many."""
