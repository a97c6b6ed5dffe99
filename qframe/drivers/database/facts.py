"""Facts: texts under keys, a row each."""

from __future__ import annotations

from sqlalchemy import BigInteger, Text, and_, case, cast, func, or_, select

from qframe.contracts.step import Add, Expect, Outcome, Raise, Result, Set, Unset
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import Statement, param, params, upsert
from qframe.drivers.database.sweep import LAST, Sweep, expired

_SWEEP_EVERY = 50
"""So many writes."""


class Facts:
    """Reads and writes facts; what has expired is not there, and removed now and then."""

    def __init__(self, database: Database) -> None:
        make, facts = database.statement, database.schema.facts
        c, now = facts.c, param("now")
        this = c.key == param("key")
        alive = or_(c.expires_at.is_(None), c.expires_at > now)
        changed = params("value", "rank", "expires_at")
        written = {**params("key"), **changed}
        read = select(c.value).where(this, alive)
        higher = or_(func.coalesce(c.rank, 0) <= param("rank"), c.expires_at <= now)
        raised = {name: case((higher, new), else_=c[name]) for name, new in changed.items()}
        total = cast(cast(c.value, BigInteger) + param("number"), Text)
        added = {**changed, "value": case((alive, total), else_=param("value"))}
        within = and_(c.key >= param("prefix"), c.key < param("upto"), c.key > param("after"))
        scanned = select(c.key, c.value).where(within, alive).order_by(c.key)
        self._stays_absent = database.is_sqlite
        self._read = make(read)
        self._locked = make(read.with_for_update())
        self._placeholder = make(upsert(facts, written))
        self._set = make(upsert(facts, written, changed))
        self._raise = make(upsert(facts, written, raised))
        self._add = make(upsert(facts, written, added))
        self._remove = make(facts.delete().where(this))
        self._remove_value = make(facts.delete().where(this, c.value == param("value")))
        self._scan = make(scanned.limit(param("limit")))
        self._sweep = Sweep(database, facts, _SWEEP_EVERY, facts.delete().where(expired(facts)))

    def expect(self, session: Session, operation: Expect) -> Result | None:
        """Say what a key holds that was to hold something else; nobody changes it meanwhile."""
        key = operation.key
        if not self._stays_absent:  # a row that can be locked
            session.run(self._placeholder, key=key, value="", rank=0, expires_at=0)
        row = session.run(self._locked, key=key, now=session.now).fetchone()
        holds = None if row is None else row[0]
        return None if holds == operation.value else Result(Outcome.REFUSED, key, holds)

    def write(self, session: Session, operation: Set | Unset | Raise | Add) -> None:
        """Change a fact."""
        match operation:
            case Unset(key, None):
                session.run(self._remove, key=key)
            case Unset(key, value):
                session.run(self._remove_value, key=key, value=value)
            case Set(key, value, ttl):
                self._write(session, self._set, key, value, ttl)
            case Raise(key, rank, value, ttl):
                self._write(session, self._raise, key, value, ttl, rank=rank)
            case Add(key, number, ttl):
                self._write(session, self._add, key, str(number), ttl, number=number)

    def _write(
        self, session: Session, statement: Statement, key: str, value: str, ttl: float | None,
        *, rank: int = 0, number: int = 0,
    ) -> None:  # fmt: skip
        now = session.now
        expires_at = None if ttl is None else now + int(ttl * 1_000_000)
        values = {"rank": rank, "number": number, "expires_at": expires_at, "now": now}
        session.run(statement, key=key, value=value, **values)
        self._sweep.wrote(session, key)

    def value(self, session: Session, key: str) -> str | None:
        """Give what a key holds."""
        row = session.run(self._read, key=key, now=session.now).fetchone()
        return None if row is None else row[0]

    def scan(self, session: Session, prefix: str, limit: int, after: str) -> list[tuple[str, str]]:
        """List facts by key."""
        values = {"prefix": prefix, "upto": prefix + LAST, "after": after, "limit": limit}
        return [(k, v) for k, v in session.run(self._scan, now=session.now, **values).fetchall()]
