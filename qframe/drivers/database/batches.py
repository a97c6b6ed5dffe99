"""Batches in an SQL database: a row each, and a row for each member that is done or failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, and_, case, not_, or_, select
from sqlalchemy.sql import ClauseElement

from qframe.contracts import BatchRecord, BatchStore, NewBatch, Store, Teller
from qframe.drivers.database.connection import Database
from qframe.drivers.database.job import stored
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement, param

_DONE, _FAILED = 1, 2
"""The `state` of a member."""
_KEPT = 30 * 86400
"""Seconds the answer to a growth is kept that may be said again."""
_CHUNK = 500
"""So many members are removed at most in one step, so that no step holds the lock for long."""


class BatchStatements:
    """The statements of batches, each compiled when it is first run: few processes need many."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._batches, self._members = database.schema.batches, database.schema.members
        c, m = self._batches.c, self._members.c
        self._this = and_(c.id == param("id"), c.sealed.is_not(None))
        """A row of ours: where Laravel wrote one, our columns are null."""
        self._open = and_(
            c.cancelled_ms.is_(None), not_(and_(c.sealed == 1, c.pending_jobs == c.failed_jobs))
        )
        self._member = and_(m.batch_id == param("id"), m.number == param("number"))
        # As `BatchRecord.is_told`; within `follow` the quotes of payloads are escaped.
        told = and_(
            c.told.contains("finally"),
            or_(c.told.contains("then"), c.failed_jobs > 0, c.cancelled_ms.is_not(None)),
            or_(
                not_(c.options.contains('"chain":')),
                c.told.contains("chain"),
                c.told.contains("broken"),
            ),
        )
        self._old = or_(
            and_(c.finished_ms < param("finished"), told),
            and_(or_(c.finished_ms.is_(None), not_(told)), c.created_ms < param("unfinished")),
            c.cancelled_ms < param("cancelled"),
        )

    def _insert(self, table: Table, values: dict[str, Any]) -> Statement:
        """Make what inserts a row unless its key is there; its count says whether."""
        dialect = self.database.url.get_backend_name()
        if dialect == "postgresql":
            from sqlalchemy.dialects import postgresql  # noqa: PLC0415 (of one backend)

            insert: ClauseElement = postgresql.insert(table).values(values).on_conflict_do_nothing()
        else:
            how = "OR IGNORE" if dialect == "sqlite" else "IGNORE"
            insert = table.insert().values(values).prefix_with(how)
        return self.database.statement(insert)

    @cached_property
    def create(self) -> Statement:
        given = (
            "id", "name", "connection", "options", "allows_failures", "progress_step", "teller",
            "teller_uuid", "teller_queue", "created_at", "created_ms",
        )  # fmt: skip
        zero = ("total_jobs", "pending_jobs", "failed_jobs", "sealed", "told_progress")
        values = {name: param(name) for name in given} | dict.fromkeys(zero, 0)
        return self._insert(self._batches, {**values, "failed_job_ids": "[]", "told": ""})

    @cached_property
    def grow(self) -> Statement:
        c = self._batches.c
        more = {name: c[name] + param("count") for name in ("total_jobs", "pending_jobs")}
        return self.database.statement(
            self._batches.update().values(more).where(self._this, or_(c.sealed == 0, self._open))
        )

    @cached_property
    def total(self) -> Statement:
        return self.database.statement(select(self._batches.c.total_jobs).where(self._this))

    @cached_property
    def add(self) -> Statement:
        """Insert a member."""
        names = {"batch_id": "id", "number": "number", "state": "state", "uuid": "uuid"}
        return self._insert(self._members, {name: param(said) for name, said in names.items()})

    @cached_property
    def withdraw(self) -> Statement:
        return self.database.statement(self._members.delete().where(self._member))

    @cached_property
    def succeed(self) -> Statement:
        """Let a failed member be done."""
        return self.database.statement(
            self._members.update()
            .values(state=_DONE, uuid=None)
            .where(self._member, self._members.c.state == _FAILED)
        )

    @cached_property
    def count(self) -> Statement:
        c = self._batches.c
        first = and_(param("new_failure") == 1, c.first_failed.is_(None))
        cancels = and_(first, c.allows_failures == 0, c.cancelled_ms.is_(None))
        done, failed = c.pending_jobs - param("done"), c.failed_jobs + param("failed")
        finishes = and_(c.finished_ms.is_(None), c.sealed == 1, done == failed)
        # What is looked at is set after it was: MySQL sets one by one.
        return self._setting(
            *_moment(cancels, c.cancelled_at, c.cancelled_ms),
            (c.first_failed, case((first, param("number")), else_=c.first_failed)),
            *_moment(finishes, c.finished_at, c.finished_ms),
            (c.pending_jobs, done),
            (c.failed_jobs, failed),
            where=c.total_jobs > param("number"),
        )

    @cached_property
    def seal(self) -> Statement:
        c = self._batches.c
        ends = and_(c.finished_ms.is_(None), c.pending_jobs == c.failed_jobs)
        return self._setting((c.sealed, 1), *_moment(ends, c.finished_at, c.finished_ms))

    def _setting(
        self, *values: tuple[Column[Any], Any], where: ColumnElement[bool] | None = None
    ) -> Statement:
        change = self._batches.update().ordered_values(*values).where(self._this)
        return self.database.statement(change if where is None else change.where(where))

    @cached_property
    def counts(self) -> Statement:
        c = self._batches.c
        settled = case((and_(c.sealed == 1, c.pending_jobs == c.failed_jobs), 1), else_=0)
        done = c.total_jobs - c.pending_jobs
        return self.database.statement(
            select(settled, done, c.progress_step, c.first_failed).where(self._this)
        )

    @cached_property
    def teller(self) -> Statement:
        c = self._batches.c
        raw = self.database.as_bytes(c.teller)
        return self.database.statement(select(raw, c.teller_uuid, c.teller_queue).where(self._this))

    @cached_property
    def cancel(self) -> Statement:
        return self.database.statement(
            self._batches.update()
            .values(cancelled_at=param("now_s"), cancelled_ms=param("now"))
            .where(self._this, self._open)
        )

    @cached_property
    def revive(self) -> Statement:
        c = self._batches.c
        return self.database.statement(
            self._batches.update()
            .values(cancelled_at=None, cancelled_ms=None)
            .where(self._this, c.cancelled_ms.is_not(None))
        )

    @cached_property
    def told(self) -> Statement:
        c = self._batches.c
        return self.database.statement(
            select(c.told, c.told_progress).where(self._this).with_for_update()
        )

    @cached_property
    def tell(self) -> Statement:
        c = self._batches.c
        return self._setting((c.told, param("told")), (c.told_progress, param("progress")))

    @property
    def _columns(self) -> tuple[Column[Any], ...]:
        """Give what `_record` reads."""
        c = self._batches.c
        return (
            c.id, c.name, c.connection, c.total_jobs, c.pending_jobs, c.failed_jobs, c.sealed,
            c.told, c.told_progress, c.options, c.created_ms, c.cancelled_ms, c.finished_ms,
        )  # fmt: skip

    @cached_property
    def read(self) -> Statement:
        return self.database.statement(select(*self._columns).where(self._this))

    @cached_property
    def failures(self) -> Statement:
        m = self._members.c
        return self.database.statement(
            select(m.uuid)
            .where(m.batch_id == param("id"), m.state == _FAILED)
            .order_by(m.number)
            .limit(param("limit"))
        )

    @cached_property
    def first_failure(self) -> Statement:
        c, m = self._batches.c, self._members.c
        first = select(c.first_failed).where(self._this).scalar_subquery()
        return self.database.statement(
            select(m.uuid)
            .where(m.batch_id == param("id"), m.state == _FAILED)
            .order_by(case((m.number == first, 0), else_=1), m.number)
            .limit(1)
        )

    @cached_property
    def created(self) -> Statement:
        return self.database.statement(select(self._batches.c.created_ms).where(self._this))

    @cached_property
    def page(self) -> Statement:
        c = self._batches.c
        same = and_(c.created_ms == param("before"), c.id < param("id"))
        return self.database.statement(
            select(*self._columns)
            .where(c.sealed.is_not(None), or_(c.created_ms < param("before"), same))
            .order_by(c.created_ms.desc(), c.id.desc())
            .limit(param("limit"))
        )

    @cached_property
    def old(self) -> Statement:
        c = self._batches.c
        return self.database.statement(select(c.id).where(c.sealed.is_not(None), self._old))

    @cached_property
    def remove(self) -> Statement:
        return self.database.statement(self._batches.delete().where(self._this, self._old))

    @cached_property
    def orphans(self) -> Statement:
        """Find the batches that have members and are not there."""
        batch = self._members.c.batch_id
        return self.database.statement(
            select(batch).distinct().where(batch.not_in(select(self._batches.c.id)))
        )

    @cached_property
    def last(self) -> Statement:
        """Find the last of a batch's next so many members."""
        m = self._members.c
        members = select(m.number).where(m.batch_id == param("id")).order_by(m.number)
        return self.database.statement(members.limit(1).offset(_CHUNK - 1))

    @cached_property
    def forget(self) -> Statement:
        m = self._members.c
        return self.database.statement(
            self._members.delete().where(m.batch_id == param("id"), m.number <= param("upto"))
        )


def _moment(
    condition: ColumnElement[bool], seconds: Column[Any], milliseconds: Column[Any]
) -> list[tuple[Column[Any], Any]]:
    """Set a time, Laravel's and ours, where a condition holds."""
    return [
        (seconds, case((condition, param("now_s")), else_=seconds)),
        (milliseconds, case((condition, param("now")), else_=milliseconds)),
    ]


class DatabaseBatchStore(BatchStore):
    """Rows of Laravel's `job_batches`; those that Laravel wrote itself are left alone.

    A member is counted by one update of the batch's row, the last thing its transaction does but
    for the push of the teller: that row is what all its workers share.
    """

    def __init__(self, database: Database, store: Store) -> None:
        self.database = database
        self.sql = BatchStatements(database)
        self._store = store

    def create(self, batch: NewBatch) -> bool:
        with self.database.transaction() as session:
            now = self.database.now(session)
            return bool(
                session.run(
                    self.sql.create,
                    id=batch.id,
                    name=batch.name,
                    connection=batch.connection,
                    options=batch.options_text(),
                    allows_failures=int(batch.allows_failures),
                    progress_step=batch.progress_step,
                    teller=stored(batch.teller),
                    teller_uuid=batch.teller_uuid,
                    teller_queue=batch.teller_queue,
                    created_at=now // 1000,
                    created_ms=now,
                ).rowcount
            )

    def grow(self, batch: str, count: int, once: str = "") -> int | None:
        if not once:
            return self._grow(batch, count)
        key = f"batch:{batch}:grown:{once}"
        with self.database.transaction():
            (before,) = self._store.get(key)
            first = self._grow(batch, count) if before is None else int(before)
            if before is None and first is not None:
                self._store.set(key, str(first), _KEPT)
        return first

    def _grow(self, batch: str, count: int) -> int | None:
        with self.database.transaction() as session:
            if not session.run(self.sql.grow, id=batch, count=count).rowcount:
                return None
            return int(session.run(self.sql.total, id=batch).fetchone()[0]) - count

    def seal(self, batch: str) -> Teller | None:
        with self.database.transaction() as session:
            session.run(self.sql.seal, id=batch, **self._times(session))
            found = session.run(self.sql.counts, id=batch).fetchone()
            return self._due(session, batch) if found is not None and found[0] else None

    def settle(self, batch: str, number: int, uuid: str, *, failed: bool) -> Teller | None:
        with self.database.transaction() as session:
            return self.take(session, batch, number, uuid, failed=failed)

    def take(
        self, session: Session, batch: str, number: int, uuid: str, *, failed: bool
    ) -> Teller | None:
        """Count a member in the transaction that removes its job, and gives the teller if due.

        As late in it as may be: from here to its end, no other member can be counted.
        """
        state = _FAILED if failed else _DONE
        values: dict[str, Any] = {"id": batch, "number": number}
        new = session.run(
            self.sql.add, state=state, uuid=uuid if failed else None, **values
        ).rowcount
        changed = new or (not failed and session.run(self.sql.succeed, **values).rowcount)
        if changed:
            counted = session.run(
                self.sql.count,
                done=int(not failed),
                failed=int(failed) if new else -1,
                new_failure=int(failed),
                **values,
                **self._times(session),
            )
            if not counted.rowcount:  # there is no such batch, or it has no such member
                session.run(self.sql.withdraw, **values)
                return None
        found = session.run(self.sql.counts, id=batch).fetchone()
        if found is None:
            return None
        settled, done, step, first_failed = found
        # Also where nothing has changed: whoever counted before may not have pushed it.
        tells = first_failed == number if failed else step and done % step == 0
        return self._due(session, batch) if settled or tells else None

    def _times(self, session: Session) -> dict[str, int]:
        now = self.database.now(session)
        return {"now": now, "now_s": now // 1000}

    def _due(self, session: Session, batch: str) -> Teller:
        raw, uuid, queue = session.run(self.sql.teller, id=batch).fetchone()
        return Teller(raw.encode() if isinstance(raw, str) else bytes(raw), uuid, queue)

    def read(self, batch: str) -> BatchRecord | None:
        with self.database.session() as session:
            row = session.run(self.sql.read, id=batch).fetchone()
        return None if row is None else _record(row)

    def failures(self, batch: str, limit: int = 1000) -> Sequence[str]:
        with self.database.session() as session:
            rows = session.run(self.sql.failures, id=batch, limit=limit).fetchall()
        return [uuid for (uuid,) in rows]

    def first_failure(self, batch: str) -> str | None:
        with self.database.session() as session:
            row = session.run(self.sql.first_failure, id=batch).fetchone()
        return None if row is None else row[0]

    def cancel(self, batch: str) -> bool:
        with self.database.transaction() as session:
            return bool(session.run(self.sql.cancel, id=batch, **self._times(session)).rowcount)

    def revive(self, batch: str) -> bool:
        with self.database.transaction() as session:
            return bool(session.run(self.sql.revive, id=batch).rowcount)

    def told(self, batch: str, *callbacks: str, progress: int | None = None) -> None:
        with self.database.transaction() as session:
            found = session.run(self.sql.told, id=batch).fetchone()
            if found is None:
                return
            told = {*found[0].split(), *callbacks}
            session.run(
                self.sql.tell,
                id=batch,
                told=" ".join(sorted(told)),
                progress=max(found[1], progress or 0),
            )

    def page(self, limit: int = 50, after: str | None = None) -> Sequence[BatchRecord]:
        with self.database.session() as session:
            before: tuple[int] | None = (2**62,)
            if after is not None:
                before = session.run(self.sql.created, id=after).fetchone()
            if before is None:
                return []
            rows = session.run(self.sql.page, before=before[0], id=after, limit=limit).fetchall()
        return [_record(row) for row in rows]

    def prune(
        self,
        finished: float,
        *,
        unfinished: float | None = None,
        cancelled: float | None = None,
    ) -> int:
        moments = {"finished": finished, "unfinished": unfinished, "cancelled": cancelled}
        ms = {name: -1 if at is None else int(at * 1000) for name, at in moments.items()}
        count = 0
        with self.database.session() as session:
            old = session.run(self.sql.old, **ms).fetchall()
            for (batch,) in old:
                count += int(session.run(self.sql.remove, id=batch, **ms).rowcount)
            # With them the members of those that were removed by Laravel, or halfway.
            for (batch,) in session.run(self.sql.orphans).fetchall():
                self._forget_members(session, batch)
        return count

    def _forget_members(self, session: Session, batch: str) -> None:
        last = (0,)
        while last is not None:
            last = session.run(self.sql.last, id=batch).fetchone()
            session.run(self.sql.forget, id=batch, upto=2**31 - 1 if last is None else last[0])


def _record(row: tuple[Any, ...]) -> BatchRecord:
    (
        identity, name, connection, total, pending, failed, sealed, told, told_progress, options,
        created, cancelled, finished,
    ) = row  # fmt: skip
    return BatchRecord(
        id=identity,
        name=name,
        connection=connection,
        total=total,
        done=total - pending,
        failed=failed,
        sealed=bool(sealed),
        told=frozenset(told.split()),
        told_progress=told_progress,
        options=json.loads(options),
        created_at=created / 1000,
        cancelled_at=None if cancelled is None else cancelled / 1000,
        finished_at=None if finished is None else finished / 1000,
    )
