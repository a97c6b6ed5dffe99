"""Failed records: Laravel's `failed_jobs`, with the history of attempts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, or_, select

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Forget, Outcome, Record, Result
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import as_bytes, param, params
from qframe.exceptions import InvalidPayload
from qframe.payload import envelope

_FIELDS = (
    "uuid", "connection", "queue", "payload", "exception", "name", "attempts", "history",
    "failed_at",
)  # fmt: skip


class FailedRows:
    """Rows of `failed_jobs`, which Laravel's own commands can read."""

    def __init__(self, database: Database) -> None:
        make, raw, table = database.statement, database.as_bytes, database.schema.failed
        c, this = table.c, table.c.uuid == param("uuid")
        written = {name: c[name] for name in _FIELDS}
        fields = written | {each: raw(c[each]) for each in ("payload", "exception", "name")}
        found = select(*fields.values())
        number = select(c.id).where(this)
        of_queue = or_(c.queue == param("queue"), param("queue").is_(None))
        page = found.where(c.id < param("below"), of_queue).order_by(c.id.desc())
        self._stored, self._stored_text = database.stored, database.stored_text
        self._insert = make(table.insert().values(params(*written)))
        self._remove = make(table.delete().where(this))
        self._find = make(found.where(this))
        self._number = make(number)
        self._locked = make(found.where(this).with_for_update())
        self._page = make(page.limit(param("limit")))
        self._count = make(select(func.count()).select_from(table))

    def known(self, session: Session, operation: Forget) -> Result | None:
        """Refuse if there is no such record; also refuses the second of two concurrent callers."""
        record = self.find(session, operation.uuid, locked=True)
        if record is None or not record.is_of(operation.failed_at):
            return Result(Outcome.REFUSED, operation.uuid)
        return None

    def record(self, session: Session, operation: Record) -> None:
        """Keep a failed job as the latest record."""
        job = operation.job
        fields = {name: getattr(job, name) for name in _FIELDS}
        fields["payload"] = self._stored(job.payload)
        fields["exception"] = self._stored_text(job.exception)
        fields["name"] = self._stored_text(job.name)
        fields["history"] = self._stored_text(job.history.to_json())
        # As Laravel writes it, in UTC, with the fraction that keeps the order.
        at = datetime.fromtimestamp(job.failed_at, UTC)
        fields["failed_at"] = at.strftime("%Y-%m-%d %H:%M:%S.%f")
        session.run(self._remove, uuid=job.uuid)
        session.run(self._insert, **fields)

    def forget(self, session: Session, operation: Forget) -> None:
        session.run(self._remove, uuid=operation.uuid)

    def find(self, session: Session, uuid: str, *, locked: bool = False) -> FailedJob | None:
        row = session.run(self._locked if locked else self._find, uuid=uuid).fetchone()
        return _record(row) if row else None

    def page(
        self, session: Session, limit: int, after: str | None, queue: str | None
    ) -> list[FailedJob]:
        below = 2**62
        if after is not None:
            row = session.run(self._number, uuid=after).fetchone()
            below = row[0] if row else 0
        rows = session.run(self._page, below=below, queue=queue, limit=limit).fetchall()
        return [_record(row) for row in rows]

    def count(self, session: Session) -> int:
        return int(session.run(self._count).fetchone()[0])


def _record(row: tuple[Any, ...]) -> FailedJob:
    fields = dict(zip(_FIELDS, row, strict=True))
    raw = fields["payload"] = as_bytes(fields["payload"])
    fields["exception"] = as_bytes(fields["exception"]).decode("utf-8", "replace")
    name = fields["name"]
    fields["name"] = _name(raw) if name is None else as_bytes(name).decode("utf-8", "replace")
    fields["history"] = History.from_json(as_bytes(fields["history"]).decode("utf-8", "replace"))
    at = datetime.fromisoformat(str(fields["failed_at"])).replace(tzinfo=UTC)
    fields["failed_at"] = at.timestamp()
    # Records of PHP have neither.
    fields["attempts"] = fields["attempts"] or 0
    return FailedJob(**fields)


def _name(payload: bytes) -> str:
    """Return the name of a job that PHP recorded."""
    try:
        return envelope.display_name(envelope.parse(payload))
    except InvalidPayload:
        return "(not a payload)"
