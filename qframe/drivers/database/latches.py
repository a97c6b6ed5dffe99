"""Latches: a row for each latch, and one for every member that has arrived."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, exists, select, tuple_

from qframe.contracts.facts import Latch, LatchCopy, first_first
from qframe.contracts.step import Arrive, Close, Extend, Leave, Open, Outcome, Push, Result
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import as_bytes, param, params, upsert
from qframe.drivers.database.sweep import Sweep, expired

_MEMBERS = 20_000
"""Members of expired latches that are removed at once."""
_STATE = ("size", "done", "failed", "closed", "first_failed", "failed_at", "completed_at")
_THEN = ("then_queue", "then_raw", "then_delay", "then_priority")


@dataclass
class _Row:
    size: int
    done: int
    failed: int
    closed: int
    first_failed: int | None
    failed_at: float | None
    completed_at: float | None
    every: int
    ttl: float

    @property
    def is_complete(self) -> bool:
        return bool(self.closed) and self.done + self.failed >= self.size


class Latches:
    """Reads and changes latches; a changing call locks the latch's row."""

    def __init__(self, database: Database) -> None:
        make = database.statement
        latches, members = database.schema.latches, database.schema.arrived
        c, m = latches.c, members.c
        this, of_latch = c.key == param("key"), m.latch == param("key")
        member = and_(of_latch, m.number == param("number"))
        found = select(*(c[name] for name in (*_STATE, "every", "ttl")))
        found = found.where(this, c.expires_at > param("now"))
        empty = {"size": 0, "done": 0, "failed": 0, "closed": 0}
        opened = params("key", *_THEN, "every", "ttl", "expires_at")
        arrived = {"latch": param("key"), **params("number", "failed", "label")}
        then = (c.then_queue, database.as_bytes(c.then_raw), c.then_delay, c.then_priority)
        labels = select(m.label).where(of_latch, m.failed == 1).order_by(m.number)
        self._stored = database.stored
        self._stored_text, self._text = database.stored_text, database.read_text
        self._seen = make(found)
        self._locked = make(found.with_for_update())
        self._then = make(select(*then).where(this))
        self._open = make(upsert(latches, {**empty, **opened}))
        self._update = make(latches.update().values(params(*_STATE, "expires_at")).where(this))
        self._arrive = make(upsert(members, arrived))
        self._succeed = make(
            members.update().values(failed=0, label="").where(member, m.failed == 1)
        )
        self._member = make(select(m.failed).where(member))
        self._leave = make(members.delete().where(member))
        self._labels = make(labels.limit(param("limit")))
        self._members = make(select(m.number, m.failed, m.label).where(of_latch).order_by(m.number))
        self._clear = make(latches.delete().where(this))
        self._clear_members = make(members.delete().where(of_latch))
        gone = select(m.latch, m.number).join(latches, c.key == m.latch).where(expired(latches))
        some = gone.limit(_MEMBERS).subquery()  # a table of its own, as MariaDB requires
        self._sweep = Sweep(
            database,
            latches,
            1,
            members.delete().where(tuple_(m.latch, m.number).in_(select(*some.c))),
            latches.delete().where(expired(latches), ~exists().where(m.latch == c.key)),
        )

    def extendable(self, session: Session, operation: Extend) -> Result | None:
        """Refuse if there is no latch, or if it is complete."""
        latch = self._find(session, operation.latch)
        if latch is None or latch.is_complete:
            return Result(Outcome.REFUSED, operation.latch)
        return None

    def open(self, session: Session, operation: Open) -> None:
        key, then = operation.latch, operation.then
        if self._find(session, key) is None:
            session.run(self._clear_members, key=key)  # of an expired latch
            session.run(self._clear, key=key)
            session.run(
                self._open,
                key=key,
                then_queue=then.queue,
                then_raw=self._stored(then.raw),
                then_delay=then.delay,
                then_priority=then.priority,
                every=operation.every,
                ttl=operation.ttl,
                expires_at=session.now + int(operation.ttl * 1_000_000),
            )
        self._sweep.wrote(session, key)

    def change(self, session: Session, operation: Extend | Arrive | Leave | Close) -> Push | None:
        """Apply one of the other operations. Returns the message that is due."""
        key = operation.latch
        latch = self._find(session, key)
        if latch is None:
            return None
        due = quiet = False
        if isinstance(operation, Extend):
            latch.size, quiet = max(latch.size, operation.size), True
        elif isinstance(operation, Close):
            latch.closed = 1
        elif isinstance(operation, Leave):
            quiet = True
            self._take_back(session, latch, operation)
        elif 0 <= operation.member < latch.size:
            due = (self._fail if operation.failed else self._finish)(session, latch, operation)
        else:
            quiet = True  # no member has this number
        if latch.is_complete and latch.completed_at is None:
            latch.completed_at = session.now / 1_000_000
        expires_at = session.now + int(latch.ttl * 1_000_000)
        session.run(self._update, key=key, expires_at=expires_at, **vars(latch))
        if quiet or not (due or latch.is_complete):
            return None
        queue, raw, delay, priority = session.run(self._then, key=key).fetchone()
        return Push(queue, as_bytes(raw), delay, priority)

    def _finish(self, session: Session, latch: _Row, arrival: Arrive) -> bool:
        """Record that a member is done. Returns whether `then` is due."""
        values = {"key": arrival.latch, "number": arrival.member}
        if session.run(self._arrive, failed=0, label="", **values).rowcount:
            latch.done += 1
        elif session.run(self._succeed, **values).rowcount:
            latch.done += 1
            latch.failed -= 1
        return latch.every > 0 and latch.done % latch.every == 0

    def _fail(self, session: Session, latch: _Row, arrival: Arrive) -> bool:
        """Record that a member has failed, unless it is done."""
        values = {"key": arrival.latch, "number": arrival.member}
        label = self._stored_text(arrival.label)
        if session.run(self._arrive, failed=1, label=label, **values).rowcount:
            latch.failed += 1
            if latch.first_failed is None:
                latch.first_failed, latch.failed_at = arrival.member, session.now / 1_000_000
        elif not session.run(self._member, **values).fetchone()[0]:
            return False
        return latch.first_failed == arrival.member

    def _take_back(self, session: Session, latch: _Row, leaving: Leave) -> None:
        values = {"key": leaving.latch, "number": leaving.member}
        found = session.run(self._member, **values).fetchone()
        if found is None:
            return
        session.run(self._leave, **values)
        latch.failed -= found[0]
        latch.done -= not found[0]
        latch.completed_at = None
        if latch.first_failed == leaving.member:
            latch.first_failed = latch.failed_at = None

    def _find(self, session: Session, key: str) -> _Row | None:
        row = session.run(self._locked, key=key, now=session.now).fetchone()
        return None if row is None else _Row(*row)

    def read(self, session: Session, key: str, labels: int) -> Latch | None:
        found = session.run(self._seen, key=key, now=session.now).fetchone()
        if found is None:
            return None
        size, done, failed, closed, first, failed_at, completed_at = found[: len(_STATE)]
        rows = session.run(self._labels, key=key, limit=labels).fetchall() if labels else ()
        seen = tuple(self._text(label) for (label,) in rows)
        return Latch(size, done, failed, bool(closed), first, failed_at, completed_at, seen)

    def copy(self, session: Session, key: str) -> LatchCopy | None:
        found = session.run(self._seen, key=key, now=session.now).fetchone()
        if found is None:
            return None
        size, _, _, closed, first, _, _, every, ttl = found
        queue, raw, delay, priority = session.run(self._then, key=key).fetchone()
        opened = Open(key, Push(queue, as_bytes(raw), delay, priority), every, ttl)
        rows = session.run(self._members, key=key).fetchall()
        failed = {number: self._text(label) for number, is_failed, label in rows if is_failed}
        done = [number for number, is_failed, _ in rows if not is_failed]
        return LatchCopy(opened, size, bool(closed), done, first_first(failed, first))
