"""The statements about messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    LargeBinary,
    and_,
    case,
    cast,
    func,
    null,
    or_,
    select,
    text,
)

from qframe.drivers.database.connection import Database
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.sql import param, params

_MOST = 1000
"""How many rows are made ready at most in one step, so that no step holds the lock for long."""
_LEASE = {"leased_at": param("reserved_at"), **params("reserved_at", "lease_end")}


class Statements:
    """All statements of one jobs table. `retry_after` is what PHP's reservations last."""

    def __init__(self, database: Database, retry_after: int) -> None:
        self._make = database.statement
        self._jobs = database.schema.jobs
        c = self._c = self._jobs.c
        raw = database.as_bytes
        self._message = (c.id, raw(c.payload), c.attempts, raw(c.notes))
        self._this = c.id == param("id")
        self._of_queue = c.queue == param("queue")
        self._waits = and_(self._of_queue, c.reserved_at.is_(None))
        self._due = func.coalesce(c.due, _microseconds(c.available_at))
        by_php = _microseconds(c.reserved_at) + retry_after * 1_000_000
        self._end = case((c.reserved_at == c.leased_at, c.lease_end), else_=by_php)
        self._expired = and_(c.reserved_at.is_not(None), self._end <= param("now"))
        self._push_and_reserve()
        self._settle()
        self._look()

    def _push_and_reserve(self) -> None:
        c, make, jobs = self._c, self._make, self._jobs
        pushed = params("queue", "payload", "available_at", "created_at", "due")
        self.insert = make(jobs.insert().values(attempts=text("0"), **pushed))
        # Rows that PHP wrote get their exact due time.
        unseen = select(c.id).where(self._waits, c.due.is_(None)).limit(_MOST)
        some = select(*unseen.subquery().c)  # from a table of its own, for MariaDB
        due = _microseconds(c.available_at)
        self.adopt = make(jobs.update().values(due=due).where(c.id.in_(some)))
        # Leases that ran out, the last first; `reserved_before` follows from the rest, and is what
        # the index finds them by.
        by_index = c.reserved_at <= param("reserved_before")
        late = select(c.id).where(self._of_queue, by_index, self._end <= param("now"))
        late = late.order_by(self._end.desc(), c.id.desc()).limit(_MOST)
        self.expired = make(late.with_for_update(skip_locked=True))
        unreserved = {"reserved_at": null(), "leased_at": null()}
        self._freed = {**unreserved, **params("due", "available_at")}
        self.make_ready = make(jobs.update().values(self._freed).where(self._this))
        self.first_due = make(select(c.due).where(self._waits).order_by(c.due).limit(1))
        ready = select(*self._message).where(self._waits, c.due <= param("now"))
        ready = ready.order_by(c.due, c.id).limit(param("limit"))
        self.ready = make(ready.with_for_update(skip_locked=True))
        held = {"lease": param("lease"), "started": null(), **_LEASE}
        self.hold = make(jobs.update().values(held).where(self._this))

    def _settle(self) -> None:
        c, make, jobs = self._c, self._make, self._jobs
        ours = c.reserved_at.is_not_distinct_from(c.leased_at)
        fenced = and_(self._this, c.lease == param("lease"), ours)
        self.holds = make(select(c.id).where(fenced).with_for_update())
        self.delete = make(jobs.delete().where(fenced))
        self.renew = make(jobs.update().values(_LEASE).where(fenced))
        once = c.attempts + case((c.started.is_(None), text("1")), else_=text("0"))
        started = {"attempts": once, "started": text("1"), "notes": param("notes"), **_LEASE}
        self.start = make(jobs.update().values(started).where(fenced))
        counted = c.attempts - case((c.started.is_(None), 0), else_=param("uncounted"))
        notes = func.coalesce(param("notes"), c.notes)
        released = {"attempts": counted, "notes": notes, "lease": null(), **self._freed}
        self.release = make(jobs.update().values(released).where(fenced))
        self.adopted = make(select(c.queue, *self._message).where(fenced, c.started == 1))

    def _look(self) -> None:
        c, make, now = self._c, self._make, param("now")
        reserved = and_(self._of_queue, c.reserved_at.is_not(None))
        running = select(func.count()).where(reserved)
        delayed, buried = and_(self._due > now, self._due < NEVER), self._due >= NEVER
        counts = (
            func.count(),
            func.count(case((delayed, 1))),
            func.count(case((buried, 1))),
            running.scalar_subquery(),
            running.where(self._end > now).scalar_subquery(),
        )
        # One statement, so that a message that moves meanwhile is counted once.
        self.sizes = make(select(*counts).where(self._waits))
        self.next_end = make(select(func.min(self._end)).where(reserved))
        self.names = make(select(c.queue).distinct().order_by(c.queue))
        waiting = and_(c.reserved_at.is_(None), or_(c.due.is_(None), c.due < NEVER))
        gone = or_(waiting, self._expired)
        self.purge = make(self._jobs.delete().where(self._of_queue, gone))
        aside = select(c.id).where(self._waits, c.due >= NEVER).order_by(c.due, c.id)
        self.buried = make(aside.with_for_update(skip_locked=True))
        end = case((c.reserved_at.is_not(None), self._end))
        held = case((and_(c.reserved_at == c.leased_at, c.started.is_(None)), 1), else_=0)
        found = select(c.id, self._message[1], self._due, end, held)
        found = found.where(self._of_queue, self._contains()).order_by(c.id)
        self.search = make(found.limit(param("limit")))
        free = or_(c.reserved_at.is_(None), self._expired)
        self.waiting = make(select(*self._message).where(self._this, free).with_for_update())

    def _contains(self) -> ColumnElement[bool]:
        payload = self._c.payload
        if self._jobs.metadata.info["backend"] == "postgresql":
            return func.strpos(payload, param("text")) > 0
        return func.instr(cast(payload, LargeBinary), param("text")) > 0


def _microseconds(seconds: Column[Any]) -> ColumnElement[Any]:
    """Read a column of Laravel's in the unit of ours."""
    return cast(seconds, BigInteger) * 1_000_000
