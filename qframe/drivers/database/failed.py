"""Failed records: Laravel's `failed_jobs`, and the attempts before the failure."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sqlalchemy import func, or_, select

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Forget, Outcome, Record, Result
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement, param, params
from qframe.exceptions import InvalidPayload
from qframe.payload import envelope

_WRITTEN = (
    "uuid", "connection", "queue", "payload", "exception", "failed_at", "attempts", "history",
    "name",
)  # fmt: skip


class Failed:
    """Rows of `failed_jobs`, which Laravel's own commands can read."""

    def __init__(self, database: Database) -> None:
        self._make = database.statement
        self._stored = database.stored
        self._table = database.schema.failed
        c = self._c = self._table.c
        self._this = c.uuid == param("uuid")
        text = database.as_bytes
        self._fields = (
            c.uuid, c.connection, c.queue, text(c.payload), text(c.exception), c.attempts,
            c.history, c.failed_at, c.name,
        )  # fmt: skip

    # -- operations -------------------------------------------------------------------------------

    def known(self, session: Session, operation: Forget, now: int) -> Result | None:
        """Refuse where there is no such record; of two callers at once one is told so."""
        if session.run(self._locked, uuid=operation.uuid).fetchone() is None:
            return Result(Outcome.REFUSED, operation.uuid)
        return None

    def record(self, session: Session, operation: Record, now: int) -> None:
        """Keep a failed job as the latest."""
        job = operation.job
        session.run(self._remove, uuid=job.uuid)
        session.run(
            self._insert,
            uuid=job.uuid,
            connection=job.connection,
            queue=job.queue,
            payload=self._stored(job.payload),
            exception=job.exception,
            attempts=job.attempts,
            history=job.history.to_json(),
            name=job.name,
            failed_at=_moment(job.failed_at),
        )

    def forget(self, session: Session, operation: Forget, now: int) -> None:
        """Remove a record."""
        session.run(self._remove, uuid=operation.uuid)

    # -- reads ------------------------------------------------------------------------------------

    def find(self, session: Session, uuid: str) -> FailedJob | None:
        """Give one failed job."""
        row = session.run(self._find, uuid=uuid).fetchone()
        return _record(row) if row else None

    def page(
        self, session: Session, limit: int, after: str | None, queue: str | None
    ) -> list[FailedJob]:
        """List failed jobs, the latest first."""
        below = 2**62
        if after is not None:
            row = session.run(self._number, uuid=after).fetchone()
            below = row[0] if row else 0
        rows = session.run(self._page, below=below, queue=queue, limit=limit).fetchall()
        return [_record(row) for row in rows]

    def count(self, session: Session) -> int:
        """Count failed jobs."""
        return int(session.run(self._count).fetchone()[0])

    # -- statements -------------------------------------------------------------------------------

    @cached_property
    def _insert(self) -> Statement:
        return self._make(self._table.insert().values(params(*_WRITTEN)))

    @cached_property
    def _remove(self) -> Statement:
        return self._make(self._table.delete().where(self._this))

    @cached_property
    def _find(self) -> Statement:
        return self._make(select(*self._fields).where(self._this))

    @cached_property
    def _number(self) -> Statement:
        return self._make(select(self._c.id).where(self._this))

    @cached_property
    def _locked(self) -> Statement:
        return self._make(select(self._c.id).where(self._this).with_for_update())

    @cached_property
    def _page(self) -> Statement:
        c = self._c
        of_queue = or_(c.queue == param("queue"), param("queue").is_(None))
        rows = select(*self._fields).where(c.id < param("below"), of_queue)
        return self._make(rows.order_by(c.id.desc()).limit(param("limit")))

    @cached_property
    def _count(self) -> Statement:
        return self._make(select(func.count()).select_from(self._table))


def _moment(epoch: float) -> str:
    """Write a time as Laravel does, in UTC, with the fraction that keeps an order."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _record(row: tuple[Any, ...]) -> FailedJob:
    uuid, connection, queue, text, exception, attempts, history, failed_at, name = row
    raw = text.encode() if isinstance(text, str) else bytes(text)
    if isinstance(exception, bytes):
        exception = exception.decode("utf-8", "replace")
    return FailedJob(
        uuid=uuid,
        connection=connection,
        queue=queue,
        payload=raw,
        exception=exception,
        name=_name(raw) if name is None else name,
        attempts=attempts or 0,
        history=History.from_json(history),
        failed_at=datetime.fromisoformat(str(failed_at)).replace(tzinfo=UTC).timestamp(),
    )


def _name(payload: bytes) -> str:
    """Name a job that PHP recorded."""
    try:
        return envelope.display_name(envelope.parse(payload))
    except InvalidPayload:
        return "(not a payload)"
