"""Look: queries in one statement when the next message of several queues is due."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, func, select

from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.sql import Statement, param
from qframe.drivers.database.statements import lease_end
from qframe.drivers.database.zones import Heads


class NextDue:
    """When the next message is due. `retry_after` is the length of PHP's reservations.

    Each queue has its own subquery, answered by the first row of an index.
    """

    def __init__(self, database: Database, retry_after: int) -> None:
        self._database = database
        self._jobs = database.schema.jobs
        self._end = lease_end(self._jobs, retry_after)
        self._statement = cache(self._made)
        self._heads = Heads(database, 0)

    def seconds(self, session: Session, queues: Sequence[str], *, leases: bool = True) -> float:
        """Return the seconds until a message is due, at most 0 if one is ready.

        `leases` includes leases that run out. The shortest lasts a second, so not every look needs
        it.
        """
        values: dict[str, Any] = {f"queue{number}": queue for number, queue in enumerate(queues)}
        values |= session.at
        now, *moments = session.run(self._statement(len(queues), leases), **values).fetchone()
        first = min((moment for moment in moments if moment is not None), default=NEVER)
        if first < 0:
            first = self._first_with_priorities(session, queues, moments)
        return float(first - now) / 1_000_000

    def _first_with_priorities(
        self, session: Session, queues: Sequence[str], moments: Sequence[int | None]
    ) -> int:
        """Return the first moment, where a number below zero is of a zone and no moment yet."""
        self._database.leveled.update(queues)
        known = [moment for moment in moments if moment is not None and moment >= 0]
        heads = (head for queue in queues for head in self._heads.read(session, queue)[1])
        return min([*known, *(head.moment for head in heads)])

    def _made(self, queues: int, leases: bool) -> Statement:
        parts = [self._database.clock()]
        for number in range(queues):
            queue = param(f"queue{number}")
            parts.append(self._first_due(queue))
            if leases:
                parts.append(self._first_end(queue))
        return self._database.statement(select(*parts))

    def _first_due(self, queue: ColumnElement[str]) -> ColumnElement[Any]:
        c = self._jobs.c
        waits = select(c.due_at).where(c.queue == queue, c.reserved_at.is_(None))
        return waits.order_by(c.due_at).limit(1).scalar_subquery()

    def _first_end(self, queue: ColumnElement[str]) -> ColumnElement[Any]:
        c = self._jobs.c
        reserved = select(func.min(self._end)).where(c.queue == queue, c.reserved_at.is_not(None))
        return reserved.scalar_subquery()
