"""The store in an SQL database: a table of keys, values and when they expire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import BigInteger, Table, Text, and_, cast, or_, select
from sqlalchemy.sql import ClauseElement

from qframe.contracts import Store
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import param

_KEPT = 3600
"""Seconds the last step of a caller is kept."""
_PURGE_EVERY = 60_000
"""Milliseconds between two looks for what has expired."""


class DatabaseStore(Store):
    """Keys and values beside the jobs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        table = database.schema.store
        c = table.c
        alive = or_(c.expires_at.is_(None), c.expires_at > param("now"))
        make = database.statement
        self._get = make(select(c.value).where(c.key == param("key"), alive))
        self._keys = make(
            select(c.key)
            .where(c.key >= param("prefix"), c.key < param("end"), alive)
            .order_by(c.key)
        )
        self._insert = make(
            table.insert().values(
                key=param("key"), value=param("value"), expires_at=param("expires_at")
            )
        )
        self._update = make(
            table.update()
            .where(c.key == param("key"))
            .values(value=param("value"), expires_at=param("expires_at"))
        )
        self._locked = make(select(c.value).where(c.key == param("key"), alive).with_for_update())
        self._replace = make(table.delete().where(c.key == param("key")))
        self._remove = make(table.delete().where(c.key == param("key"), alive))
        self._remove_value = make(
            table.delete().where(c.key == param("key"), c.value == param("value"), alive)
        )
        self._purge = make(
            table.delete().where(and_(c.expires_at.is_not(None), c.expires_at <= param("now")))
        )
        self._add_to = make(_adding(table, database.url.get_backend_name()))
        self._purged = 0

    def get(self, *keys: str) -> list[str | None]:
        with self.database.session() as session:
            now = self.database.now(session)
            rows = [session.run(self._get, key=key, now=now).fetchone() for key in keys]
        return [row and row[0] for row in rows]

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        with self.database.transaction() as session:
            session.run(self._replace, key=key)
            self._put(session, key, value, ttl)

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        with self.database.transaction() as session:
            session.run(self._purge, now=self.database.now(session))
            if session.run(self._get, key=key, now=self.database.now(session)).fetchone():
                return False
            self._put(session, key, value, ttl)
        return True

    def delete(self, key: str, value: str | None = None) -> bool:
        with self.database.session() as session:
            now = self.database.now(session)
            if value is None:
                return bool(session.run(self._remove, key=key, now=now).rowcount)
            return bool(session.run(self._remove_value, key=key, value=value, now=now).rowcount)

    def keys(self, prefix: str) -> Sequence[str]:
        with self.database.session() as session:
            now = self.database.now(session)
            rows = session.run(
                self._keys, prefix=prefix, end=f"{prefix}\U0010ffff", now=now
            ).fetchall()
        return [key for (key,) in rows]

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        with self.database.transaction() as session:
            self._sweep(session)
            if self.get(marker) == [step]:
                return False
            self.set(marker, step, _KEPT)
            for key in sorted(amounts):  # in one order everywhere: no two wait for each other
                session.run(self._add_to, key=key, amount=amounts[key])
        return True

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        keys = sorted(changes)
        expected = [changes[key][0] for key in keys]
        if self.get(*keys) != expected:
            return False  # without waiting for those who write
        with self.database.transaction() as session:
            held = self.held(session, changes)
            if [held[key] for key in keys] != expected:
                return False
            self.write(session, held, [(key, changes[key][1], ttl) for key in keys])
        return True

    def held(self, session: Session, keys: Iterable[str]) -> dict[str, str | None]:
        """Give what keys hold, which nobody else can change before this transaction has ended."""
        now = self.database.now(session)
        rows = {}
        for key in sorted(keys):  # in one order everywhere: no two wait for each other
            rows[key] = session.run(self._locked, key=key, now=now).fetchone()
        return {key: row and row[0] for key, row in rows.items()}

    def write(
        self,
        session: Session,
        held: Mapping[str, str | None],
        wanted: Iterable[tuple[str, str | None, float | None]],
    ) -> None:
        """Set keys of which `held` says what they hold: key, value or None, seconds to live."""
        self._sweep(session)
        now = self.database.now(session)
        for key, value, ttl in wanted:
            if value is None:
                session.run(self._replace, key=key)
            elif held[key] is None:
                session.run(self._replace, key=key)  # what has expired
                self._put(session, key, value, ttl)
            else:
                session.run(self._update, key=key, value=value, expires_at=_end(now, ttl))

    def _sweep(self, session: Session) -> None:
        """Remove what has expired, now and then: the dead leave it."""
        now = self.database.now(session)
        if now - self._purged > _PURGE_EVERY:
            session.run(self._purge, now=now)
            self._purged = now

    def _put(self, session: Session, key: str, value: str, ttl: float | None) -> None:
        expires = _end(self.database.now(session), ttl)
        session.run(self._insert, key=key, value=value, expires_at=expires)


def _end(now: int, ttl: float | None) -> int | None:
    """Give the millisecond in which something expires, None for never."""
    return None if ttl is None else now + int(ttl * 1000)


def _adding(table: Table, dialect: str) -> ClauseElement:
    """Give the statement that adds to a number, whether it is there or not."""
    total = cast(cast(table.c.value, BigInteger) + param("amount"), Text)
    values = {"key": param("key"), "value": cast(param("amount"), Text)}
    if dialect in {"mysql", "mariadb"}:
        from sqlalchemy.dialects import mysql  # noqa: PLC0415 (of one backend)

        return mysql.insert(table).values(values).on_duplicate_key_update(value=total)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 (of one backend)

        insert = postgresql.insert(table).values(values)
        return insert.on_conflict_do_update(index_elements=[table.c.key], set_={"value": total})
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415 (of one backend)

    upsert = sqlite.insert(table).values(values)
    return upsert.on_conflict_do_update(index_elements=[table.c.key], set_={"value": total})
