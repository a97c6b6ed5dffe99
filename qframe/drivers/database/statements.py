"""The hot statements of the queue, written in SQLAlchemy Core and compiled once per database.

They run on the DBAPI cursor (see `Statement`): on SQLite, Core's own execution takes longer than
the statement itself, three times per job.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, case, func, or_, select

from qframe.drivers.database.connection import Database
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.sql import param

BATCH = 100
"""How many rows are moved to ready at most in one step, so that no step holds the lock for long."""


class Statements:
    """All statements of one jobs table."""

    def __init__(self, database: Database) -> None:
        jobs = database.schema.jobs
        make = database.statement
        c = jobs.c
        ours = and_(c.id == param("id"), c.lease == param("lease"), c.reserved_at == c.leased_at)
        free = {"reserved_at": None, "lease": None, "lease_until": None, "leased_at": None}

        self.insert = make(
            jobs.insert().values(
                queue=param("queue"),
                payload=param("payload"),
                attempts=0,
                available_at=param("available_at"),
                created_at=param("created_at"),
                due_at=param("due_at"),
            )
        )
        self.adopt = make(
            jobs.update()
            .values(due_at=c.available_at * 1000)
            .where(c.id.in_(_some(jobs, c.reserved_at.is_(None), c.due_at.is_(None))))
        )
        self.reclaim = make(
            jobs.update().values(**free).where(c.id.in_(_some(jobs, _expired(jobs))))
        )
        self.take = make(
            select(c.id, database.as_bytes(c.payload), c.attempts, c.history)
            .where(c.queue == param("queue"), c.reserved_at.is_(None), c.due_at <= param("now"))
            .order_by(c.due_at, c.id)
            .limit(param("limit"))
            .with_for_update(skip_locked=True)
        )
        self.hold = make(
            jobs.update()
            .values(
                reserved_at=param("reserved_at"),
                leased_at=param("reserved_at"),
                lease=param("lease"),
                lease_until=param("until"),
            )
            .where(c.id == param("id"))
        )
        self.start = make(
            jobs.update()
            .values(
                attempts=c.attempts + 1,
                history=param("history"),
                reserved_at=param("reserved_at"),
                leased_at=param("reserved_at"),
                lease_until=param("until"),
            )
            .where(ours)
        )
        self.renew = make(
            jobs.update()
            .values(
                reserved_at=param("reserved_at"),
                leased_at=param("reserved_at"),
                lease_until=param("until"),
            )
            .where(ours)
        )
        self.own = make(
            select(c.id, database.as_bytes(c.payload), c.attempts, c.history, c.queue).where(ours)
        )
        self.delete = make(jobs.delete().where(ours))
        self.release = make(
            jobs.update()
            .values(
                due_at=param("due_at"),
                available_at=param("available_at"),
                history=param("history"),
                **free,
            )
            .where(ours)
        )
        self.give_back = make(
            jobs.update()
            .values(attempts=param("attempts"), history=param("history"), **free)
            .where(ours)
        )
        self.give_back_later = make(
            jobs.update()
            .values(
                attempts=param("attempts"),
                due_at=param("due_at"),
                available_at=param("available_at"),
                history=param("history"),
                **free,
            )
            .where(ours)
        )
        in_queue = c.queue == param("queue")
        waiting = and_(in_queue, c.reserved_at.is_(None))
        self.next_due = make(select(c.due_at).where(waiting).order_by(c.due_at).limit(1))
        expiry = case(
            (c.reserved_at == c.leased_at, c.lease_until),
            else_=c.reserved_at * 1000 + param("ms"),  # PHP's
        )
        self.next_expiry = make(
            select(func.min(expiry)).where(in_queue, c.reserved_at.is_not(None))
        )
        reserved = select(func.count()).where(in_queue, c.reserved_at.is_not(None))
        due = func.coalesce(c.due_at, c.available_at * 1000)
        # One statement, so that a job that moves meanwhile is counted once.
        self.count = make(
            select(
                func.count(),
                func.sum(case((and_(due > param("now"), due < NEVER), 1), else_=0)),
                func.sum(case((c.due_at == NEVER, 1), else_=0)),
                reserved.scalar_subquery(),
            ).where(waiting)
        )
        unburied = and_(waiting, or_(c.due_at.is_(None), c.due_at < NEVER))
        clearable = or_(unburied, and_(in_queue, _expired(jobs)))
        self.clear = make(jobs.delete().where(clearable))
        self.locked = make(
            select(database.as_bytes(c.payload)).where(clearable, c.payload.like(param("like")))
        )
        self.kick = make(
            jobs.update()
            .values(due_at=param("due_at"), available_at=param("available_at"))
            .where(waiting, c.due_at == NEVER)
        )
        expired = or_(c.reserved_at.is_(None), _expired(jobs))
        self.find = make(
            select(
                c.id,
                database.as_bytes(c.payload),
                c.queue,
                c.attempts,
                case((expired, None), else_=expiry - param("now")),
            ).where(
                c.payload.like(param("like")),
                or_(in_queue, param("queue").is_(None)),
            )
        )
        self.remove = make(jobs.delete().where(c.id == param("id"), expired))
        self.names = make(select(c.queue).distinct().order_by(c.queue))


def _some(jobs: Table, *conditions: ColumnElement[bool]) -> Select[Any]:
    """Give the ids of a batch of one queue's rows; in a table of their own for MariaDB."""
    batch = select(jobs.c.id).where(jobs.c.queue == param("queue"), *conditions).limit(BATCH)
    return select(batch.subquery().c.id)


def _expired(jobs: Table) -> ColumnElement[bool]:
    """Tell a reserved row whose lease ran out.

    By its own lease, or by Laravel's rule where PHP has reserved it: it wrote no lease, or
    another `reserved_at` than the one that belongs to the lease.
    """
    c = jobs.c
    ours = and_(c.lease_until <= param("now"), c.reserved_at == c.leased_at)
    foreign = and_(
        or_(c.lease_until.is_(None), c.reserved_at != c.leased_at),
        c.reserved_at <= param("reserved_before"),
    )
    return and_(c.reserved_at.is_not(None), or_(ours, foreign))
