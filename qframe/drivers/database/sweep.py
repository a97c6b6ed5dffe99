"""Sweep: removes expired rows from a table, a few at a time."""

from __future__ import annotations

import random

from sqlalchemy import ColumnElement, Table, and_, select
from sqlalchemy.sql import ClauseElement

from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import param

_LOOKED_AT = 5
"""Keys checked for each write: then at most a quarter as many are expired as are live.

Checking 20 (for a twentieth) cost 4 us more of a tracked job's 120.
"""


def expired(table: Table) -> ColumnElement[bool]:
    """Select the expired rows among the checked ones."""
    key, now = table.c.key, param("now")
    return and_(key > param("after"), key <= param("upto"), table.c.expires_at <= now)


class Sweep:
    """Walks around a table by its keys, from some key that was written.

    An index on `expires_at` would cost more: each write would move a row in it.
    """

    def __init__(
        self, database: Database, table: Table, every: int, *removals: ClauseElement
    ) -> None:
        self._database = database
        self._every = every
        # Each process starts at another point, because most do not live long.
        self._left = random.randrange(every)  # noqa: S311 (a starting point)
        self._after: str | None = None
        key = table.c.key
        mark = select(key).where(key > param("after")).order_by(key).limit(1)
        self._mark = database.statement(mark.offset(every * _LOOKED_AT))
        self._removals = [database.statement(each) for each in removals]

    def wrote(self, session: Session, key: str) -> None:
        """Count a write; after every few, continue the sweep."""
        if not session.is_own:
            return
        self._left -= 1
        if self._left >= 0:
            return
        self._left = self._every - 1
        after = key if self._after is None else self._after
        row = session.run(self._mark, after=after).fetchone()
        self._after, upto = ("", self._database.last_key) if row is None else (row[0], row[0])
        for each in self._removals:
            session.run(each, after=after, upto=upto, now=session.now)
