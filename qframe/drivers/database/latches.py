"""Latches: a row for what each knows, and one for every member that has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import select

from qframe.contracts.backend import Latch
from qframe.contracts.step import Arrive, Close, Extend, Open, Outcome, Push, Result
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement, param, params, upsert

_SWEPT = 20
"""Each time one is opened, so many are looked at for what has expired."""
_MEMBERS = 1000
"""So many members of an expired latch are removed at once."""
_LAST = 2**62


@dataclass(slots=True)
class _Row:
    """A latch as it is in the database. Times are microseconds."""

    size: int
    done: int
    failed: int
    closed: int
    first_failed: int | None
    failed_at: int | None
    completed_at: int | None
    every: int
    ttl: float

    @property
    def is_complete(self) -> bool:
        return bool(self.closed) and self.done + self.failed >= self.size


_STATE = ("size", "done", "failed", "closed", "first_failed", "failed_at", "completed_at")
_THEN = ("then_queue", "then_raw", "then_delay", "then_priority")


class Latches:
    """Reads and changes latches, whose rows are locked while they are."""

    def __init__(self, database: Database) -> None:
        self._make = database.statement
        self._stored = database.stored
        self._bytes = database.as_bytes
        self._latches = database.schema.latches
        self._arrived = database.schema.arrived
        self._this = self._latches.c.key == param("key")
        self._members = self._arrived.c.latch == param("key")
        self._swept = ""

    # -- operations -------------------------------------------------------------------------------

    def extendable(self, session: Session, operation: Extend, now: int) -> Result | None:
        """Refuse where there is none, or it is complete."""
        latch = self._find(session, operation.latch, now)
        if latch is None or latch.is_complete:
            return Result(Outcome.REFUSED, operation.latch)
        return None

    def open(self, session: Session, operation: Open, now: int) -> None:
        """Make one, unless it is there."""
        key, then = operation.latch, operation.then
        if self._find(session, key, now) is None:
            self._remove(session, key, _LAST)  # what has expired
            session.run(
                self._insert,
                key=key,
                then_queue=then.queue,
                then_raw=self._stored(then.raw),
                then_delay=then.delay,
                then_priority=then.priority,
                every=operation.every,
                ttl=operation.ttl,
                expires_at=now + int(operation.ttl * 1_000_000),
            )
        self._sweep(session, now)

    def change(self, session: Session, operation: Extend | Arrive | Close, now: int) -> Push | None:
        """Do one of the other operations; gives the message that is due."""
        key = operation.latch
        latch = self._find(session, key, now)
        if latch is None:
            return None
        due = False
        match operation:
            case Extend(_, size):
                latch.size = max(latch.size, size)
            case Close():
                latch.closed = 1
            case Arrive(_, member) if 0 <= member < latch.size:
                due = (self._fail if operation.failed else self._finish)(
                    session, latch, operation, now
                )
            case _:  # no member has this number
                operation = Extend(key, 0)
        if latch.is_complete and latch.completed_at is None:
            latch.completed_at = now
        state = {name: getattr(latch, name) for name in _STATE}
        expires_at = now + int(latch.ttl * 1_000_000)
        session.run(self._update, key=key, expires_at=expires_at, **state)
        if isinstance(operation, Extend) or not (due or latch.is_complete):
            return None
        queue, raw, delay, priority = session.run(self._then, key=key).fetchone()
        return Push(queue, raw.encode() if isinstance(raw, str) else raw, delay, priority)

    def _finish(self, session: Session, latch: _Row, arrival: Arrive, now: int) -> bool:
        """Note that a member is done; says whether that makes `then` due."""
        values = {"key": arrival.latch, "number": arrival.member}
        if session.run(self._add, failed=0, label="", **values).rowcount:
            latch.done += 1
        elif session.run(self._succeed, **values).rowcount:
            latch.done += 1
            latch.failed -= 1
        return latch.every > 0 and latch.done % latch.every == 0

    def _fail(self, session: Session, latch: _Row, arrival: Arrive, now: int) -> bool:
        """Note that a member has failed, unless it is done."""
        values = {"key": arrival.latch, "number": arrival.member}
        if session.run(self._add, failed=1, label=arrival.label, **values).rowcount:
            latch.failed += 1
            if latch.first_failed is None:
                latch.first_failed, latch.failed_at = arrival.member, now
        elif not session.run(self._member, **values).fetchone()[0]:
            return False
        return latch.first_failed == arrival.member

    def _find(self, session: Session, key: str, now: int) -> _Row | None:
        row = session.run(self._locked, key=key, now=now).fetchone()
        return None if row is None else _Row(*row)

    def _remove(self, session: Session, key: str, upto: int) -> None:
        session.run(self._forget, key=key, number=upto)
        if upto == _LAST:
            session.run(self._delete, key=key)

    def _sweep(self, session: Session, now: int) -> None:
        """Remove some of what has expired, round and round."""
        rows = session.run(self._some, after=self._swept, limit=_SWEPT).fetchall()
        self._swept = rows[-1][0] if len(rows) == _SWEPT else ""
        for key, expires_at in rows:
            if expires_at <= now:
                last = session.run(self._mark, key=key, offset=_MEMBERS).fetchone()
                self._remove(session, key, _LAST if last is None else last[0])

    # -- reads ------------------------------------------------------------------------------------

    def read(self, session: Session, key: str, labels: int, now: int) -> Latch | None:
        """Give a latch as it stands."""
        found = session.run(self._seen, key=key, now=now).fetchone()
        if found is None:
            return None
        row = _Row(*found)
        failed = session.run(self._labels, key=key, limit=labels).fetchall() if labels else ()
        return Latch(
            size=row.size,
            done=row.done,
            failed=row.failed,
            closed=bool(row.closed),
            first_failed=row.first_failed,
            failed_at=_seconds(row.failed_at),
            completed_at=_seconds(row.completed_at),
            labels=tuple(label for (label,) in failed),
        )

    # -- statements -------------------------------------------------------------------------------

    @cached_property
    def _seen(self) -> Statement:
        c = self._latches.c
        fields = (c[name] for name in (*_STATE, "every", "ttl"))
        return self._make(select(*fields).where(self._this, c.expires_at > param("now")))

    @cached_property
    def _locked(self) -> Statement:
        c = self._latches.c
        fields = (c[name] for name in (*_STATE, "every", "ttl"))
        found = select(*fields).where(self._this, c.expires_at > param("now"))
        return self._make(found.with_for_update())

    @cached_property
    def _then(self) -> Statement:
        c = self._latches.c
        fields = (c.then_queue, self._bytes(c.then_raw), c.then_delay, c.then_priority)
        return self._make(select(*fields).where(self._this))

    @cached_property
    def _insert(self) -> Statement:
        nothing = {"size": 0, "done": 0, "failed": 0, "closed": 0}
        given = params("key", *_THEN, "every", "ttl", "expires_at")
        return self._make(upsert(self._latches, {**nothing, **given}))

    @cached_property
    def _update(self) -> Statement:
        values = params(*_STATE, "expires_at")
        return self._make(self._latches.update().values(values).where(self._this))

    @cached_property
    def _delete(self) -> Statement:
        return self._make(self._latches.delete().where(self._this))

    @cached_property
    def _some(self) -> Statement:
        c = self._latches.c
        rows = select(c.key, c.expires_at).where(c.key > param("after")).order_by(c.key)
        return self._make(rows.limit(param("limit")))

    @cached_property
    def _add(self) -> Statement:
        values = {"latch": param("key"), **params("number", "failed", "label")}
        return self._make(upsert(self._arrived, values))

    @cached_property
    def _succeed(self) -> Statement:
        c = self._arrived.c
        this = (self._members, c.number == param("number"), c.failed == 1)
        return self._make(self._arrived.update().values(failed=0, label="").where(*this))

    @cached_property
    def _member(self) -> Statement:
        c = self._arrived.c
        return self._make(select(c.failed).where(self._members, c.number == param("number")))

    @cached_property
    def _labels(self) -> Statement:
        c = self._arrived.c
        failed = select(c.label).where(self._members, c.failed == 1)
        return self._make(failed.order_by(c.number).limit(param("limit")))

    @cached_property
    def _mark(self) -> Statement:
        c = self._arrived.c
        numbers = select(c.number).where(self._members).order_by(c.number)
        return self._make(numbers.limit(1).offset(param("offset")))

    @cached_property
    def _forget(self) -> Statement:
        upto = self._arrived.c.number <= param("number")
        return self._make(self._arrived.delete().where(self._members, upto))


def _seconds(moment: int | None) -> float | None:
    return None if moment is None else moment / 1_000_000
