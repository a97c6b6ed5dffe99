"""The store in an SQL database: a table of keys, values and when they expire."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, or_, select

from qframe.contracts import Store
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import param


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
        self._replace = make(table.delete().where(c.key == param("key")))
        self._remove = make(table.delete().where(c.key == param("key"), alive))
        self._remove_value = make(
            table.delete().where(c.key == param("key"), c.value == param("value"), alive)
        )
        self._purge = make(
            table.delete().where(and_(c.expires_at.is_not(None), c.expires_at <= param("now")))
        )

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

    def _put(self, session: Session, key: str, value: str, ttl: float | None) -> None:
        now = self.database.now(session)
        expires = None if ttl is None else now + int(ttl * 1000)
        session.run(self._insert, key=key, value=value, expires_at=expires)
