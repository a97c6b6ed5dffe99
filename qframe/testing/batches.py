"""Batches in this process's memory: what `fake` and `run` keep them in."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from qframe.batch import Batch
from qframe.config import NullSettings
from qframe.contracts import BatchRecord, BatchStore, NewBatch, Teller
from qframe.drivers.null import NullQueue


@dataclass(slots=True)
class _Kept:
    record: BatchRecord
    new: NewBatch
    done: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    first: int | None = None
    """The member that failed before all others."""


class MemoryBatches(BatchStore):
    """Keeps batches and their counts for as long as the object lives; in one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._grown: dict[str, int] = {}

    def create(self, batch: NewBatch) -> bool:
        """Begin a batch without members."""
        if batch.id in self._kept:
            return False
        record = BatchRecord(
            id=batch.id, name=batch.name, connection=batch.connection, total=0, done=0, failed=0,
            sealed=False, told=frozenset(), told_progress=0, options=batch.options,
            created_at=time.time(),
        )  # fmt: skip
        self._kept[batch.id] = _Kept(record, batch)
        return True

    def grow(self, batch: str, count: int, once: str = "") -> int | None:
        """Add members and give the number of the first."""
        if once in self._grown:
            return self._grown[once]
        kept = self._kept.get(batch)
        if kept is None:
            return None
        record = kept.record
        if record.sealed and (record.cancelled_at is not None or record.is_finished):
            return None
        first = kept.record.total
        kept.record = dataclasses.replace(kept.record, total=first + count)
        if once:
            self._grown[once] = first
        return first

    def seal(self, batch: str) -> Teller | None:
        """Say that all first members are there."""
        kept = self._kept.get(batch)
        if kept is None:
            return None
        kept.record = dataclasses.replace(kept.record, sealed=True)
        return _finished(kept)

    def settle(self, batch: str, number: int, uuid: str, *, failed: bool) -> Teller | None:
        """Count a member, once."""
        kept = self._kept.get(batch)
        if kept is None:
            return None
        if not 0 <= number < kept.record.total:
            return None
        progressed = False
        if not failed and number not in kept.done:
            kept.done.add(number)
            kept.failed.pop(number, None)
            step = kept.new.progress_step
            progressed = step > 0 and len(kept.done) % step == 0
        elif failed and number not in kept.done and number not in kept.failed:
            kept.failed[number] = uuid
            if kept.first is None:
                kept.first = number
                if not kept.new.allows_failures:
                    self.cancel(batch)
        kept.record = dataclasses.replace(kept.record, done=len(kept.done), failed=len(kept.failed))
        due = _finished(kept)
        began = failed and number == kept.first and number in kept.failed
        return _teller(kept) if began or progressed else due

    def read(self, batch: str) -> BatchRecord | None:
        """Give a batch."""
        kept = self._kept.get(batch)
        return None if kept is None else kept.record

    def failures(self, batch: str, limit: int = 1000) -> Sequence[str]:
        """Give the uuids of the jobs by which members failed."""
        kept = self._kept.get(batch)
        return [] if kept is None else [each for _, each in sorted(kept.failed.items())][:limit]

    def first_failure(self, batch: str) -> str | None:
        """Give the uuid of the job by which the first member failed."""
        kept = self._kept.get(batch)
        first = None if kept is None or kept.first is None else kept.failed.get(kept.first)
        return first or super().first_failure(batch)

    def cancel(self, batch: str) -> bool:
        """Note that the batch is cancelled."""
        kept = self._kept.get(batch)
        if kept is None or kept.record.cancelled_at is not None or kept.record.is_finished:
            return False
        kept.record = dataclasses.replace(kept.record, cancelled_at=time.time())
        return True

    def revive(self, batch: str) -> bool:
        """Take back that the batch is cancelled."""
        kept = self._kept.get(batch)
        if kept is None or kept.record.cancelled_at is None:
            return False
        kept.record = dataclasses.replace(kept.record, cancelled_at=None)
        return True

    def told(self, batch: str, *callbacks: str, progress: int | None = None) -> None:
        """Note which callbacks were pushed."""
        kept = self._kept.get(batch)
        if kept is not None:
            record = kept.record
            progress = record.told_progress if progress is None else progress
            told = record.told.union(callbacks)
            kept.record = dataclasses.replace(record, told=told, told_progress=progress)

    def page(self, limit: int = 50, after: str | None = None) -> Sequence[BatchRecord]:
        """List batches, latest first."""
        every = [kept.record for kept in reversed(self._kept.values())]
        ids = [record.id for record in every]
        start = ids.index(after) + 1 if after in ids else 0
        return every[start : start + limit]

    def prune(
        self,
        finished: float,
        *,
        unfinished: float | None = None,
        cancelled: float | None = None,
    ) -> int:
        """Remove old ones."""
        gone = [
            record.id
            for record in (kept.record for kept in self._kept.values())
            if (record.is_told and record.finished_at is not None and record.finished_at < finished)
            or (
                not (record.is_told and record.finished_at is not None)
                and record.created_at < (unfinished or 0)
            )
            or (record.cancelled_at is not None and record.cancelled_at < (cancelled or 0))
        ]
        for identity in gone:
            del self._kept[identity]
        return len(gone)


def fake_batch(
    *, name: str = "", total: int = 1, done: int = 0, failed: int = 0, cancelled: bool = False
) -> Batch:
    """Make a batch that no backend keeps, in such a state: for `run(job, batch=...)`.

    Raises `ValueError` for counts that cannot be.
    """
    if min(done, failed) < 0 or done + failed > total:
        raise ValueError("total is at least done and failed together, and none is negative")
    store = MemoryBatches()
    identity = str(uuid.uuid4())
    new = NewBatch(
        id=identity, name=name, connection="null", options={"queue": None, "follow": {}},
        allows_failures=True, progress_step=0, teller=b"", teller_uuid="", teller_queue="",
    )  # fmt: skip
    store.create(new)
    store.grow(identity, total)
    for number in range(done + failed):
        store.settle(identity, number, str(uuid.uuid4()), failed=number >= done)
    if cancelled:
        store.cancel(identity)
    store.seal(identity)
    record = store.read(identity)
    assert record is not None  # noqa: S101 (it was created here)
    return Batch(_Holding(store), record)


class _Holding(NullQueue):
    """A connection that drops jobs and keeps batches."""

    def __init__(self, store: MemoryBatches) -> None:
        super().__init__("null", NullSettings())
        self._batches = store

    def batch_store(self) -> BatchStore:
        """Give the store in memory."""
        return self._batches


def _finished(kept: _Kept) -> Teller | None:
    """Note where a batch has finished, and give what is to be told then."""
    if not kept.record.is_finished:
        return None
    at = kept.record.finished_at or time.time()
    kept.record = dataclasses.replace(kept.record, finished_at=at)
    return _teller(kept)


def _teller(kept: _Kept) -> Teller:
    return Teller(kept.new.teller, kept.new.teller_uuid, kept.new.teller_queue)
