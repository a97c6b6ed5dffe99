"""Failed jobs in an SQL database: Laravel's `failed_jobs`, and the attempts before the failure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, or_, select

from qframe import payload
from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.database.connection import Database
from qframe.drivers.database.job import stored
from qframe.drivers.database.sql import param
from qframe.exceptions import InvalidPayload


class DatabaseFailedStore(FailedStore):
    """Rows of `failed_jobs`, which Laravel's own commands can read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        table = database.schema.failed
        c = table.c
        make = database.statement
        text = database.as_bytes
        fields = (
            c.uuid, c.connection, c.queue, text(c.payload), text(c.exception), c.attempts,
            c.history, c.failed_at,
        )  # fmt: skip
        self._insert = make(
            table.insert().values({c.name: param(c.name) for c in table.columns if c.name != "id"})
        )
        self._remove = make(table.delete().where(c.uuid == param("uuid")))
        self._find = make(select(*fields).where(c.uuid == param("uuid")))
        self._number = make(select(c.id).where(c.uuid == param("uuid")))
        self._page = make(
            select(*fields)
            .where(c.id < param("below"), or_(c.queue == param("queue"), param("queue").is_(None)))
            .order_by(c.id.desc())
            .limit(param("limit"))
        )
        self._count = make(select(func.count()).select_from(table))
        self._flush = make(table.delete().where(c.failed_at < param("before")))

    def add(self, record: FailedJob) -> None:
        with self.database.transaction() as session:
            session.run(self._remove, uuid=record.uuid)
            session.run(
                self._insert,
                uuid=record.uuid,
                connection=record.connection,
                queue=record.queue,
                payload=stored(record.payload),
                exception=record.exception,
                attempts=record.attempts,
                history=record.history.to_json(),
                failed_at=_moment(record.failed_at),
            )

    def find(self, uuid: str) -> FailedJob | None:
        with self.database.session() as session:
            row = session.run(self._find, uuid=uuid).fetchone()
        return _record(row) if row else None

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> Sequence[FailedJob]:
        with self.database.session() as session:
            below = 2**62
            if after is not None:
                row = session.run(self._number, uuid=after).fetchone()
                below = row[0] if row else below
            rows = session.run(self._page, below=below, queue=queue, limit=limit).fetchall()
        return [_record(row) for row in rows]

    def count(self) -> int:
        with self.database.session() as session:
            return int(session.run(self._count).fetchone()[0])

    def forget(self, uuid: str) -> bool:
        with self.database.session() as session:
            return bool(session.run(self._remove, uuid=uuid).rowcount)

    def flush(self, before: float | None = None) -> int:
        with self.database.session() as session:
            moment = "9999-12-31 00:00:00" if before is None else _moment(before)
            return int(session.run(self._flush, before=moment).rowcount)


def _moment(epoch: float) -> str:
    """Write a time as Laravel does, in UTC, with the fraction that keeps an order."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _record(row: tuple[Any, ...]) -> FailedJob:
    uuid, connection, queue, text, exception, attempts, history, failed_at = row
    raw = text.encode() if isinstance(text, str) else bytes(text)
    if isinstance(exception, bytes):
        exception = exception.decode("utf-8", "replace")
    try:
        name = payload.display_name(payload.parse(raw))
    except InvalidPayload:
        name = "(not a payload)"
    return FailedJob(
        uuid=uuid,
        connection=connection,
        queue=queue,
        payload=raw,
        exception=exception,
        name=name,
        attempts=attempts or 0,
        history=History.from_json(history),
        failed_at=datetime.fromisoformat(str(failed_at)).replace(tzinfo=UTC).timestamp(),
    )
