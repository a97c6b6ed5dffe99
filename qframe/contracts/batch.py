"""The contract of the place where batches and the counts of their members are kept."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    sealed: bool
    """Whether all that were dispatched at first are there; before, it cannot finish."""
    told: frozenset[str]
    """What was dispatched: `catch`, `then`, `finally`; `chain` or `broken` of a link of a chain."""
    told_progress: int
    """How many members had settled when progress was told last."""
    options: dict[str, Any]
    """What was asked for at dispatch: the callbacks, whether failures are allowed, and more."""
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
        return self.sealed and self.settled >= self.total

    @property
    def is_told(self) -> bool:
        """Whether all was dispatched that follows it as it ended."""
        done = self.failed == 0 and self.cancelled_at is None
        chained = "chain" not in self.options or not self.told.isdisjoint({"chain", "broken"})
        return "finally" in self.told and (not done or "then" in self.told) and chained


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch about to be begun.

    `teller` is the payload, as it is to be stored, of the job that tells what has happened: it is
    pushed to `teller_queue` in the step that counts a member where there is something to tell.
    """

    id: str
    name: str
    connection: str
    options: dict[str, Any]
    allows_failures: bool
    """Else the first failure cancels the batch."""
    progress_step: int
    """Progress is told each time so many members are done; 0: never."""
    teller: bytes
    teller_uuid: str
    teller_queue: str

    def options_text(self) -> str:
        """Encode the options."""
        return json.dumps(self.options, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Teller:
    """The job that tells what has happened, due now."""

    raw: bytes
    uuid: str
    queue: str


class BatchStore(ABC):
    """Batches by id; every change is one atomic step. Raises `BackendUnavailable`.

    The teller is due where the first member fails, where all members have settled, and where
    progress is to be told. Its push belongs to the step that makes it due where batch and queue
    share a backend; elsewhere whoever made the step pushes it, and once more where the step may
    have been made before.
    """

    @abstractmethod
    def create(self, batch: NewBatch) -> bool:
        """Begin a batch without members; false, and nothing changed, where its id is taken."""

    @abstractmethod
    def grow(self, batch: str, count: int, once: str = "") -> int | None:
        """Add members and give the number of the first.

        Said again with the same word `once` it gives the same number and adds nothing.
        None where there is no such batch, or where it is sealed and finished or cancelled.
        """

    @abstractmethod
    def seal(self, batch: str) -> Teller | None:
        """Say that all first members are there; gives the teller where all have settled by now."""

    @abstractmethod
    def settle(self, batch: str, number: int, uuid: str, *, failed: bool) -> Teller | None:
        """Count a member, once: again changes nothing, but that a failed one may become done.

        Gives the teller where it is due, also where it was made due by this very count before.
        `uuid` is the job's by which the member failed.
        """

    @abstractmethod
    def read(self, batch: str) -> BatchRecord | None:
        """Give a batch."""

    @abstractmethod
    def failures(self, batch: str, limit: int = 1000) -> Sequence[str]:
        """Give the uuids of the jobs by which members failed, in the members' order."""

    def first_failure(self, batch: str) -> str | None:
        """Give the uuid of the job by which the first member failed: first in time.

        Where that one is done after a retry, it is another's.
        """
        return next(iter(self.failures(batch, 1)), None)

    @abstractmethod
    def cancel(self, batch: str) -> bool:
        """Note that the batch is cancelled; says whether it was neither that nor finished."""

    @abstractmethod
    def revive(self, batch: str) -> bool:
        """Take back that the batch is cancelled; says whether it was.

        A failure does not cancel it again where one had done so: it was not the first.
        """

    @abstractmethod
    def told(self, batch: str, *callbacks: str, progress: int | None = None) -> None:
        """Note which callbacks were pushed, and of how many settled members progress was told."""

    @abstractmethod
    def page(self, limit: int = 50, after: str | None = None) -> Sequence[BatchRecord]:
        """List batches, latest first, those that follow the id `after`."""

    @abstractmethod
    def prune(
        self,
        finished: float,
        *,
        unfinished: float | None = None,
        cancelled: float | None = None,
    ) -> int:
        """Remove those that finished before an epoch time, and give how many were removed.

        Not such as have not been told of (`is_told`): what follows is still to be dispatched.
        Where it is given, also these and unfinished ones created before a time, and cancelled ones
        cancelled before one.
        """
