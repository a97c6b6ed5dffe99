"""Marks: tell whether an exchange whose answer was lost has been committed.

Each session has a row with the number of its last exchange, written in the exchange's transaction.
A repeated exchange checks it first. The check waits for a transaction in progress, because the
server may still be committing it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.sql import number, param, params, upsert
from qframe.drivers.database.sweep import Sweep, expired

_KEPT = 86_400_000_000
"""Microseconds after which a mark may be removed."""
_PATIENCE = 5
"""Seconds to wait for a transaction in progress."""
_SWEEP_EVERY = 1000


class Marks:
    """Reads and writes marks."""

    def __init__(self, database: Database) -> None:
        make, marks = database.statement, database.schema.marks
        self._database = database
        changed = {"number": number("number"), "expires_at": database.clock() + _KEPT}
        row = params("key") | changed
        self.element = upsert(marks, row, changed)
        self._write = make(self.element)
        self._touch = make(upsert(marks, row | {"number": 0}, {"number": marks.c.number}))
        self._read = make(select(marks.c.number).where(marks.c.key == param("key")))
        self._sweep = Sweep(database, marks, _SWEEP_EVERY, marks.delete().where(expired(marks)))

    def values(self, session: Session) -> dict[str, Any]:
        return {"key": session.mark.key, "number": session.mark.number, **session.at}

    def write(self, session: Session) -> None:
        """Record, in its transaction, that this exchange is done."""
        session.run(self._write, **self.values(session))
        self._sweep.wrote(session, session.mark.key)

    def is_done(self, session: Session) -> bool:
        """Whether this exchange is already committed.

        Run it in the transaction that would do it.
        """
        with session.waiting_for_locks(_PATIENCE):
            session.run(self._touch, **self.values(session))
        (found,) = session.run(self._read, key=session.mark.key).fetchone()
        return bool(found == session.mark.number)
