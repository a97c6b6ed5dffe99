"""The statements about messages: each is built when it is first used."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, Select, and_, case, cast, func, or_, select

from qframe.drivers.database.connection import Database
from qframe.drivers.database.schema import LATEST, NEVER
from qframe.drivers.database.sql import Statement, param, params

MOST = 1000
"""How many rows are made ready at most in one step, so that no step holds the lock for long."""
_LEASE = params("reserved_at", "leased_at", "lease_end")


class Statements:
    """All statements of one jobs table. `retry_after` is what PHP's reservations last."""

    def __init__(self, database: Database, retry_after: float) -> None:
        self._make = database.statement
        self._bytes = database.as_bytes
        self._jobs = database.schema.jobs
        c = self._c = database.schema.jobs.c
        ours = c.reserved_at.is_not_distinct_from(c.leased_at)
        self._fenced = and_(c.id == param("id"), c.lease == param("lease"), ours)
        self._end = case(
            (c.reserved_at == c.leased_at, c.lease_end),
            else_=c.reserved_at * 1_000_000 + int(retry_after * 1_000_000),
        )
        self._of_queue = c.queue == param("queue")
        self._waits = and_(self._of_queue, c.reserved_at.is_(None))
        self._due = func.coalesce(c.due, c.available_at * 1_000_000)

    def _some(self, *conditions: ColumnElement[bool]) -> Select[Any]:
        """Give the ids of some rows of a queue; in a table of their own for MariaDB."""
        rows = select(self._c.id).where(self._of_queue, *conditions).limit(MOST)
        return select(rows.subquery().c.id)

    # -- push and reserve -------------------------------------------------------------------------

    @cached_property
    def insert(self) -> Statement:
        values = params("queue", "payload", "available_at", "created_at", "due")
        return self._make(self._jobs.insert().values(attempts=0, **values))

    @cached_property
    def adopt(self) -> Statement:
        """Give rows that PHP wrote their exact due time."""
        c = self._c
        rows = self._some(c.reserved_at.is_(None), c.due.is_(None))
        return self._make(
            self._jobs.update().values(due=c.available_at * 1_000_000).where(c.id.in_(rows))
        )

    @cached_property
    def expired(self) -> Statement:
        """Find leases that ran out, the last first.

        `reserved_before` follows from the rest, and is what the index finds them by.
        """
        c = self._c
        by_index = c.reserved_at <= param("reserved_before")
        return self._make(
            select(c.id)
            .where(self._of_queue, by_index, self._end <= param("now"))
            .order_by(self._end.desc(), c.id.desc())
            .limit(MOST)
            .with_for_update(skip_locked=True)
        )

    @cached_property
    def make_ready(self) -> Statement:
        values = params("due", "available_at")
        return self._make(
            self._jobs.update()
            .values(reserved_at=None, leased_at=None, **values)
            .where(self._c.id == param("id"))
        )

    @cached_property
    def first_due(self) -> Statement:
        due = self._c.due
        return self._make(select(due).where(self._waits).order_by(due).limit(1))

    @cached_property
    def ready(self) -> Statement:
        c = self._c
        return self._make(
            select(c.id, self._bytes(c.payload), c.attempts, self._bytes(c.notes))
            .where(self._waits, c.due <= param("now"))
            .order_by(c.due, c.id)
            .limit(param("limit"))
            .with_for_update(skip_locked=True)
        )

    @cached_property
    def hold(self) -> Statement:
        return self._make(
            self._jobs.update()
            .values(lease=param("lease"), started=None, **_LEASE)
            .where(self._c.id == param("id"))
        )

    # -- the reservation --------------------------------------------------------------------------

    @cached_property
    def holds(self) -> Statement:
        return self._make(select(self._c.id).where(self._fenced).with_for_update())

    @cached_property
    def start(self) -> Statement:
        return self._fenced_update(started=1, **params("attempts", "notes"), **_LEASE)

    @cached_property
    def renew(self) -> Statement:
        return self._fenced_update(**_LEASE)

    @cached_property
    def delete(self) -> Statement:
        return self._make(self._jobs.delete().where(self._fenced))

    @cached_property
    def release(self) -> Statement:
        """Bury, too: `due` is never then."""
        free = {"reserved_at": None, "leased_at": None, "lease": None}
        notes = func.coalesce(param("notes"), self._c.notes)
        return self._fenced_update(notes=notes, **free, **params("due", "available_at", "attempts"))

    def _fenced_update(self, **values: Any) -> Statement:  # noqa: ANN401 (SQL, or a value)
        return self._make(self._jobs.update().values(values).where(self._fenced))

    @cached_property
    def adopted(self) -> Statement:
        c = self._c
        return self._make(
            select(c.queue, self._bytes(c.payload), c.attempts, self._bytes(c.notes)).where(
                self._fenced, c.started == 1
            )
        )

    # -- messages that wait -----------------------------------------------------------------------

    @cached_property
    def next_end(self) -> Statement:
        """Find when the next lease of a queue ends."""
        reserved = self._c.reserved_at.is_not(None)
        return self._make(select(func.min(self._end)).where(self._of_queue, reserved))

    @cached_property
    def sizes(self) -> Statement:
        """Count in one statement, so that a message that moves meanwhile is counted once."""
        c = self._c
        reserved = select(func.count()).where(self._of_queue, c.reserved_at.is_not(None))
        running = reserved.where(self._end > param("now"))
        delayed = and_(self._due > param("now"), self._due < NEVER)
        return self._make(
            select(
                func.count(),
                func.sum(case((delayed, 1), else_=0)),
                func.sum(case((c.due >= NEVER, 1), else_=0)),
                reserved.scalar_subquery(),
                running.scalar_subquery(),
            ).where(self._waits)
        )

    @cached_property
    def names(self) -> Statement:
        return self._make(select(self._c.queue).distinct().order_by(self._c.queue))

    @cached_property
    def purge(self) -> Statement:
        c = self._c
        waits = and_(c.reserved_at.is_(None), or_(c.due.is_(None), c.due < NEVER))
        ended = and_(c.reserved_at.is_not(None), self._end <= param("now"))
        return self._make(self._jobs.delete().where(self._of_queue, or_(waits, ended)))

    @cached_property
    def buried(self) -> Statement:
        """Find what is buried, the first buried first."""
        c = self._c
        rows = select(c.id).where(self._waits, c.due >= NEVER).order_by(c.due, c.id)
        return self._make(rows.with_for_update(skip_locked=True))

    @cached_property
    def search(self) -> Statement:
        """Find messages that hold bytes; what else is needed tells where each is."""
        c = self._c
        held = and_(c.reserved_at == c.leased_at, c.started.is_(None))
        return self._make(
            select(
                c.id,
                self._bytes(c.payload),
                self._due,
                case((c.reserved_at.is_not(None), self._end), else_=None),
                case((held, 1), else_=0),
            )
            .where(self._of_queue, self._contains)
            .order_by(c.id)
            .limit(param("limit"))
        )

    @property
    def _contains(self) -> ColumnElement[bool]:
        payload = self._c.payload
        if self._jobs.metadata.info["backend"] == "postgresql":
            return func.strpos(payload, param("text")) > 0
        return func.instr(cast(payload, LargeBinary), param("text")) > 0

    @cached_property
    def waiting(self) -> Statement:
        """Find one message that nobody holds."""
        c = self._c
        free = or_(c.reserved_at.is_(None), self._end <= param("now"))
        return self._make(
            select(c.id, self._bytes(c.payload), c.attempts, self._bytes(c.notes))
            .where(c.id == param("id"), free)
            .with_for_update()
        )


def due_at(now: int, delay: float = 0) -> dict[str, int]:
    """Give when a row is due, exactly for us and in seconds for PHP, never too early."""
    if delay <= 0:
        return {"due": now, "available_at": now // 1_000_000}
    due = min(now + int(delay * 1_000_000), NEVER - 1)
    return {"due": due, "available_at": min(-(-due // 1_000_000), LATEST - 1)}


def buried_at(now: int) -> dict[str, int]:
    """Give the due time of a row that is buried, in the order in which rows are."""
    return {"due": NEVER + now, "available_at": LATEST}
