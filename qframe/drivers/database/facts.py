"""Facts: texts under keys, a row each."""

from __future__ import annotations

import random
from functools import cached_property

from sqlalchemy import BigInteger, Text, and_, case, cast, func, or_, select

from qframe.contracts.step import Add, Expect, Outcome, Raise, Result, Set, Unset
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement, param, params, upsert

_SWEEP_EVERY = 50
_SWEPT = 1000
"""After so many writes, so many keys are looked through for what has expired."""
_LAST = "\U0010ffff"


class Facts:
    """Reads and writes facts; what has expired is not there, and removed now and then."""

    def __init__(self, database: Database) -> None:
        self._make = database.statement
        self._stays_absent = database.is_sqlite
        self._facts = database.schema.facts
        c = self._c = database.schema.facts.c
        self._alive = or_(c.expires_at.is_(None), c.expires_at > param("now"))
        self._this = c.key == param("key")
        # Somewhere else in each process: most of them do not live long.
        self._until_sweep = random.randrange(_SWEEP_EVERY)  # noqa: S311 (a place to begin)
        self._swept: str | None = None

    # -- operations -------------------------------------------------------------------------------

    def expect(self, session: Session, operation: Expect, now: int) -> Result | None:
        """Say what a key holds that was to hold something else; nobody changes it meanwhile."""
        key = operation.key
        if not self._stays_absent:  # a row that can be locked
            session.run(self._placeholder, key=key, value="", rank=0, expires_at=0)
        row = session.run(self._locked, key=key, now=now).fetchone()
        holds = None if row is None else row[0]
        return None if holds == operation.value else Result(Outcome.REFUSED, key, holds)

    def set(self, session: Session, operation: Set, now: int) -> None:
        """Write a fact."""
        key, expires_at = operation.key, _end(operation.ttl, now)
        session.run(self._set, key=key, value=operation.value, rank=0, expires_at=expires_at)
        self._wrote(session, key, now)

    def unset(self, session: Session, operation: Unset, now: int) -> None:
        """Remove a fact, or one of a value."""
        if operation.value is None:
            session.run(self._remove, key=operation.key)
        else:
            session.run(self._remove_value, key=operation.key, value=operation.value)

    def raise_(self, session: Session, operation: Raise, now: int) -> None:
        """Write a fact unless one of a higher rank is there."""
        session.run(
            self._raise,
            key=operation.key,
            value=operation.value,
            rank=operation.rank,
            expires_at=_end(operation.ttl, now),
            now=now,
        )
        self._wrote(session, operation.key, now)

    def add(self, session: Session, operation: Add, now: int) -> None:
        """Add to a number, whether it is there or not."""
        session.run(
            self._add,
            key=operation.key,
            value=str(operation.number),
            number=operation.number,
            rank=0,
            expires_at=_end(operation.ttl, now),
            now=now,
        )
        self._wrote(session, operation.key, now)

    def _wrote(self, session: Session, key: str, now: int) -> None:
        """Look for what has expired, round and round, from some key that was written."""
        self._until_sweep -= 1
        if self._until_sweep >= 0:
            return
        self._until_sweep = _SWEEP_EVERY
        after = key if self._swept is None else self._swept
        row = session.run(self._mark, after=after, offset=_SWEPT).fetchone()
        upto = _LAST if row is None else row[0]
        session.run(self._sweep, after=after, upto=upto, now=now)
        self._swept = "" if row is None else upto

    # -- reads ------------------------------------------------------------------------------------

    def value(self, session: Session, key: str, now: int) -> str | None:
        """Give what a key holds."""
        row = session.run(self._read, key=key, now=now).fetchone()
        return None if row is None else row[0]

    def scan(
        self, session: Session, prefix: str, limit: int, after: str, now: int
    ) -> list[tuple[str, str]]:
        """List facts by key."""
        upto = prefix + _LAST
        rows = session.run(
            self._scan, prefix=prefix, upto=upto, after=after, limit=limit, now=now
        ).fetchall()
        return [(key, value) for key, value in rows]

    # -- statements -------------------------------------------------------------------------------

    @cached_property
    def _read(self) -> Statement:
        return self._make(select(self._c.value).where(self._this, self._alive))

    @cached_property
    def _locked(self) -> Statement:
        found = select(self._c.value).where(self._this, self._alive)
        return self._make(found.with_for_update())

    @cached_property
    def _placeholder(self) -> Statement:
        return self._make(upsert(self._facts, params("key", "value", "rank", "expires_at")))

    @cached_property
    def _set(self) -> Statement:
        changed = params("value", "rank", "expires_at")
        return self._make(upsert(self._facts, {"key": param("key"), **changed}, changed))

    @cached_property
    def _raise(self) -> Statement:
        c = self._c
        higher = or_(func.coalesce(c.rank, 0) <= param("rank"), c.expires_at <= param("now"))
        changed = params("value", "rank", "expires_at")
        kept = {name: case((higher, new), else_=c[name]) for name, new in changed.items()}
        return self._make(upsert(self._facts, {"key": param("key"), **changed}, kept))

    @cached_property
    def _add(self) -> Statement:
        total = cast(cast(self._c.value, BigInteger) + param("number"), Text)
        changed = params("rank", "expires_at")
        return self._make(
            upsert(
                self._facts,
                {**params("key", "value"), **changed},
                {"value": case((self._alive, total), else_=param("value")), **changed},
            )
        )

    @cached_property
    def _remove(self) -> Statement:
        return self._make(self._facts.delete().where(self._this))

    @cached_property
    def _remove_value(self) -> Statement:
        return self._make(self._facts.delete().where(self._this, self._c.value == param("value")))

    @cached_property
    def _scan(self) -> Statement:
        c = self._c
        within = and_(c.key >= param("prefix"), c.key < param("upto"), c.key > param("after"))
        return self._make(
            select(c.key, c.value).where(within, self._alive).order_by(c.key).limit(param("limit"))
        )

    @cached_property
    def _mark(self) -> Statement:
        key = self._c.key
        found = select(key).where(key > param("after")).order_by(key)
        return self._make(found.limit(1).offset(param("offset")))

    @cached_property
    def _sweep(self) -> Statement:
        c = self._c
        between = and_(c.key > param("after"), c.key <= param("upto"))
        return self._make(self._facts.delete().where(between, c.expires_at <= param("now")))


def _end(ttl: float | None, now: int) -> int | None:
    """Give the microsecond in which something expires, None for never."""
    return None if ttl is None else now + int(ttl * 1_000_000)
