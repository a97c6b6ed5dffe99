"""Facts: texts under keys, one row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import BigInteger, Text, and_, case, cast, func, or_, select

from qframe.contracts.facts import FactCopy
from qframe.contracts.step import Add, Expect, Outcome, Raise, Result, Set, Unset
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import Statement, param, params, upsert
from qframe.drivers.database.sweep import Sweep, expired

_SWEEP_EVERY = 50
"""Writes between two sweeps."""
_AT_ONCE = 32
"""Keys that one statement reads."""


class DatabaseFacts:
    """Reads and writes facts. Expired facts do not exist; a sweep removes them now and then."""

    def __init__(self, database: Database) -> None:
        make, facts = database.statement, database.schema.facts
        c, now = facts.c, param("now")
        this = c.key == param("key")
        alive = or_(c.expires_at.is_(None), c.expires_at > now)
        key, changed = params("key"), params("value", "expires_at")
        ranked = params("value", "rank", "expires_at")
        read = select(c.value).where(this, alive)
        whole = select(c.value, c.expires_at).where(this)
        higher = or_(func.coalesce(c.rank, 0) <= param("rank"), c.expires_at <= now)
        raised = {name: case((higher, new), else_=c[name]) for name, new in ranked.items()}
        total = cast(cast(c.value, BigInteger) + param("number"), Text)
        added = {**changed, "value": case((alive, total), else_=param("value"))}
        # One bound on each side: of two on the same side, the server may choose the worse one.
        below = select(c.key, c.value).where(c.key < param("upto"), alive).limit(param("limit"))
        first, following = c.key >= param("prefix"), c.key > param("after")
        self._has_one_writer = database.is_sqlite
        self._stored, self._text = database.stored_text, database.read_text
        self._behind = database.behind
        self._read = make(read)
        several = c.key.in_([param(f"key{place}") for place in range(_AT_ONCE)])
        self._read_several = make(select(c.key, c.value).where(several, alive))
        copied = select(c.key, c.value, c.expires_at, c.rank).where(several, alive)
        self._copied = make(copied)
        self._locked = make(whole.with_for_update())
        self._placeholder = make(upsert(facts, key | changed))
        self._set = make(upsert(facts, key | changed, changed))
        self._raise = make(upsert(facts, key | ranked, raised))
        self._add = make(upsert(facts, key | changed, added))
        self._remove = make(facts.delete().where(this))
        self._remove_value = make(facts.delete().where(this, c.value == param("value")))
        self._scan = make(below.where(first).order_by(c.key))
        self._scan_on = make(below.where(following).order_by(c.key))
        self._scan_back = make(below.where(first).order_by(c.key.desc()))
        gone = and_(first, c.key < param("upto"), c.expires_at <= now)
        self._one_expired = make(select(c.key).where(gone).limit(1))
        self._remove_expired = make(facts.delete().where(gone))
        self._sweep = Sweep(database, facts, _SWEEP_EVERY, facts.delete().where(expired(facts)))

    def expect(self, session: Session, operation: Expect) -> Result | None:
        """Return the refusal if the key holds another value; otherwise the key stays locked."""
        key = operation.key
        holds = (
            self.value(session, key) if self._has_one_writer else self._locked_value(session, key)
        )
        return None if holds == operation.value else Result(Outcome.REFUSED, key, holds)

    def _locked_value(self, session: Session, key: str) -> str | None:
        """Return the value of a key and lock its row, creating it if there is none.

        Also locks the row of an expired fact; otherwise two transactions would find nothing, and
        both write. A row that is removed during the wait was not locked.
        """
        while True:
            row = session.run(self._locked, key=key).fetchone()
            if row is not None:
                value, end = row
                return self._text(value) if end is None or end > session.now else None
            if session.run(self._placeholder, key=key, value="", expires_at=0).rowcount:
                return None

    def unset(self, session: Session, operation: Unset) -> None:
        if operation.value is None:
            session.run(self._remove, key=operation.key)
        else:
            value = self._stored(operation.value)
            session.run(self._remove_value, key=operation.key, value=value)

    def set(self, session: Session, operation: Set) -> None:
        self._write(session, self._set, operation, self._stored(operation.value))

    def raise_(self, session: Session, operation: Raise) -> None:
        value = self._stored(operation.value)
        self._write(session, self._raise, operation, value, rank=operation.rank)

    def add(self, session: Session, operation: Add) -> None:
        number = operation.number
        self._write(session, self._add, operation, str(number), number=number)

    def _write(
        self, session: Session, statement: Statement, operation: Set | Raise | Add, value: str,
        **values: int,
    ) -> None:  # fmt: skip
        key, ttl, now = operation.key, operation.ttl, session.now
        end = None if ttl is None else now + int(ttl * 1_000_000)
        session.run(statement, key=key, value=value, expires_at=end, now=now, **values)
        self._sweep.wrote(session, key)

    def value(self, session: Session, key: str) -> str | None:
        row = session.run(self._read, key=key, now=session.now).fetchone()
        return None if row is None else self._text(row[0])

    def values(self, session: Session, keys: Sequence[str]) -> list[str | None]:
        """Return the values of many keys, with few statements."""
        if len(keys) == 1:
            return [self.value(session, keys[0])]
        found: dict[str, str] = {}
        for names in self._named(keys):
            rows = session.run(self._read_several, now=session.now, **names).fetchall()
            found |= {key: self._text(value) for key, value in rows}
        return [found.get(key) for key in keys]

    def copy(self, session: Session, keys: Sequence[str]) -> list[FactCopy | None]:
        found: dict[str, FactCopy] = {}
        for names in self._named(keys):
            rows = session.run(self._copied, now=session.now, **names).fetchall()
            for key, value, end, rank in rows:
                ttl = None if end is None else (end - session.now) / 1_000_000
                found[key] = FactCopy(key, self._text(value), ttl, rank)
        return [found.get(key) for key in keys]

    @staticmethod
    def _named(keys: Sequence[str]) -> Iterator[dict[str, str]]:
        """Name keys as the parameters of a statement that reads several."""
        for begin in range(0, len(keys), _AT_ONCE):
            some = keys[begin : begin + _AT_ONCE]
            yield {f"key{place}": some[min(place, len(some) - 1)] for place in range(_AT_ONCE)}

    def scan(
        self, session: Session, prefix: str, limit: int, after: str, *, last_first: bool
    ) -> list[tuple[str, str]]:
        upto, most = self._behind(prefix), {"limit": limit, "now": session.now}
        if last_first:
            upto = min(after or upto, upto)
            rows = session.run(self._scan_back, prefix=prefix, upto=upto, **most).fetchall()
        elif after >= prefix:
            rows = session.run(self._scan_on, after=after, upto=upto, **most).fetchall()
        else:
            rows = session.run(self._scan, prefix=prefix, upto=upto, **most).fetchall()
        return [(key, self._text(value)) for key, value in rows]

    def has_expired(self, session: Session, prefix: str) -> bool:
        return (
            session.run(self._one_expired, **self._expired(session, prefix)).fetchone() is not None
        )

    def remove_expired(self, session: Session, prefix: str) -> None:
        session.run(self._remove_expired, **self._expired(session, prefix))

    def _expired(self, session: Session, prefix: str) -> dict[str, Any]:
        return {"prefix": prefix, "upto": self._behind(prefix), "now": session.now}
