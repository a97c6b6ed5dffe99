"""Batches as people see them, and queueing their failed jobs again."""

from __future__ import annotations

from pydantic import BaseModel

from qframe.contracts.batch import BatchRecord
from qframe.payload.timing import iso


class BatchState(BaseModel):
    """The state of a batch. `state`: `running`, `finished` or `cancelled`."""

    id: str
    name: str
    connection: str
    state: str
    progress: float
    done: int
    failed: int
    pending: int
    total: int
    created_at: str
    cancelled_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, record: BatchRecord) -> BatchState:
        return cls(
            id=record.id,
            name=record.name,
            connection=record.connection,
            state=state_of(record),
            progress=round(record.settled / record.total, 4) if record.total else 1.0,
            done=record.done,
            failed=record.failed,
            pending=record.pending,
            total=record.total,
            created_at=iso(record.created_at),
            cancelled_at=None if record.cancelled_at is None else iso(record.cancelled_at),
            finished_at=None if record.finished_at is None else iso(record.finished_at),
        )


def state_of(record: BatchRecord) -> str:
    if record.cancelled_at is not None:
        return "cancelled"
    return "finished" if record.is_finished else "running"
