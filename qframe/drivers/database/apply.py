"""Steps to statements: all steps of one call, in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qframe.contracts.step import (
    APPLIED,
    LOST,
    Add,
    Arrive,
    Bury,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Open,
    Operation,
    Outcome,
    Push,
    Raise,
    Record,
    Release,
    Renew,
    Reservation,
    Result,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.database.connection import Database
from qframe.drivers.database.facts import Facts
from qframe.drivers.database.failed import Failed
from qframe.drivers.database.job import DatabaseJob
from qframe.drivers.database.latches import Latches
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement
from qframe.drivers.database.statements import Statements, buried_at, due_at

_OF_RESERVATION = frozenset((Start, Renew, Delete, Release, Bury))
_IN_ONE_STATEMENT = frozenset((Push, Start, Renew, Delete, Bury, Set, Unset, Raise, Add))
_IN_ORDER = frozenset((Release, Bury))
_OWN = 1
_AFTER = 2
"""Microseconds within a step: what is pushed before it, the release, what is pushed after it."""


def needs_transaction(steps: Sequence[Step]) -> bool:
    """Whether steps take more than one statement, each of which is a transaction by itself."""
    if len(steps) != 1 or len(steps[0].operations) != 1:
        return True
    return type(steps[0].operations[0]) not in _IN_ONE_STATEMENT


class Tables:
    """What the operations are made with: the statements, and those who know them."""

    def __init__(self, database: Database, retry_after: float) -> None:
        self.database = database
        self.retry_after = int(retry_after)
        self.messages = Statements(database, retry_after)
        self.facts = facts = Facts(database)
        self.latches = latches = Latches(database)
        self.failed = failed = Failed(database)
        self.checks: Mapping[type, Callable[..., Result | None]] = {
            Expect: facts.expect,
            Extend: latches.extendable,
            Forget: failed.known,
        }
        self.others: Mapping[type, Callable[..., Push | None]] = {
            Set: facts.set,
            Unset: facts.unset,
            Raise: facts.raise_,
            Add: facts.add,
            Open: latches.open,
            Extend: latches.change,
            Arrive: latches.change,
            Close: latches.change,
            Record: failed.record,
            Forget: failed.forget,
        }

    def lease(self, now: int, seconds: float) -> dict[str, int]:
        """Give a lease's end, and the `reserved_at` that lets Laravel's rule end it no earlier."""
        end = now + int(seconds * 1_000_000)
        reserved_at = -(-end // 1_000_000) - self.retry_after
        return {"lease_end": end, "reserved_at": reserved_at, "leased_at": reserved_at}

    def make_ready(self, session: Session, queue: str, now: int) -> None:
        """Move what PHP wrote to its place, and what nobody renewed to the head of its queue."""
        sql = self.messages
        session.run(sql.adopt, queue=queue)
        before = -(-now // 1_000_000) - self.retry_after
        rows = session.run(sql.expired, queue=queue, now=now, reserved_before=before).fetchall()
        if rows:
            head = self.head(session, queue, now)
            session.run_many(
                sql.make_ready,
                [
                    {"id": row, "due": head - number, "available_at": now // 1_000_000}
                    for number, (row,) in enumerate(rows)
                ],
            )

    def head(self, session: Session, queue: str, now: int) -> int:
        """Give the due time before those of all that are ready."""
        first = session.run(self.messages.first_due, queue=queue).fetchone()
        return now - 1 if first is None else min(first[0], now) - 1


class Exchange:
    """The steps of one call. What it changes in reservations is undone with the transaction."""

    __slots__ = ("_before", "_pushed", "_sent", "_session", "_tables", "now")

    def __init__(self, tables: Tables, session: Session, sent: float) -> None:
        self._tables = tables
        self._session = session
        self._sent = sent
        """By `Backend.clock`, before the call."""
        self._pushed: list[dict[str, Any]] = []
        self._before: list[tuple[DatabaseJob, bool, int, bytes, float, float]] = []
        self.now = tables.database.now(session)

    def apply(self, steps: Sequence[Step]) -> list[Result]:
        """Apply steps in order, each if its fence and expectations hold."""
        results = [self._apply(step) for step in steps]
        self._insert()
        return results

    def undo(self) -> None:
        """Let the reservations be as they were: nothing was done."""
        for job, started, attempts, notes, lease, sure_until in reversed(self._before):
            job.started, job._attempts, job.notes = started, attempts, notes  # noqa: SLF001 (the backend keeps it)
            job.lease, job.sure_until = lease, sure_until

    def _apply(self, step: Step) -> Result:
        job = self._checked(step.reservation)
        own: Operation | None = None
        checks: list[Operation] = []
        for operation in step.operations:
            kind = type(operation)
            if kind in _OF_RESERVATION:
                own = operation
            elif kind in self._tables.checks:
                checks.append(operation)
        if job is not None and (checks or own is None) and not self._holds(job):
            return LOST
        for operation in checks:
            refused = self._tables.checks[type(operation)](self._session, operation, self.now)
            if refused is not None:
                return refused
        # Before the rest, as its fence guards that, too.
        if own is not None and job is not None and not self._settle(job, own):
            return LOST
        result = APPLIED if own and len(step.operations) == 1 else self._do_others(step, own)
        if type(own) in _IN_ORDER:
            self.now = self._tables.database.next_tick()  # what follows is behind it
        return result

    def _do_others(self, step: Step, own: Operation | None) -> Result:
        due: list[Push] = []
        at = self.now
        for operation in step.operations:
            kind = type(operation)
            if kind is Push:
                self._push(operation, at)  # type: ignore[arg-type] # its type was asked for
            elif operation is own:
                at += _AFTER if kind in _IN_ORDER else 0
            elif kind is not Expect:
                then = self._tables.others[kind](self._session, operation, self.now)
                if then is not None and operation.push:  # type: ignore[union-attr] # of a latch
                    self._push(then, at)
                elif then is not None:
                    due.append(then)
        return Result(Outcome.APPLIED, due=tuple(due)) if due else APPLIED

    def _checked(self, job: Reservation | None) -> DatabaseJob | None:
        if job is not None and not isinstance(job, DatabaseJob):
            raise TypeError(f"{job!r} is not of this backend")
        return job

    def _holds(self, job: DatabaseJob) -> bool:
        found = self._session.run(self._tables.messages.holds, id=job.row, lease=job.token)
        return found.fetchone() is not None

    # -- the reservation --------------------------------------------------------------------------

    def _settle(self, job: DatabaseJob, operation: Operation) -> bool:
        """Do what becomes of the reservation; false where it is not the current one."""
        sql, lease = self._tables.messages, self._tables.lease
        attempts = job.attempts()
        sure_until = 0.0
        self._before.append((job, job.started, attempts, job.notes, job.lease, job.sure_until))
        match operation:
            case Delete():
                done = self._change(job, sql.delete)
            case Start(seconds, notes):
                attempts += not job.started  # not counted up there: it may be said twice
                values = {"attempts": attempts, "notes": self._tables.database.stored(notes)}
                done = self._change(job, sql.start, **values, **lease(self.now, seconds))
                if done:
                    job.started, job.notes, job.lease = True, notes, seconds
                    job._attempts = attempts  # noqa: SLF001 (the backend keeps it)
                    sure_until = self._sent + seconds
            case Renew(seconds):
                done = self._change(job, sql.renew, **lease(self.now, seconds))
                sure_until = self._sent + seconds if done else 0.0
            case Bury(notes):
                done = self._free(job, buried_at(self.now), notes, attempts)
            case Release(delay, front, counted, notes):
                attempts -= job.started and not counted
                done = self._free(job, self._due(job, delay, front=front), notes, attempts)
            case _:
                raise TypeError(f"{operation!r} is not about a reservation")
        job.sure_until = sure_until
        return done

    def _due(self, job: DatabaseJob, delay: float, *, front: bool) -> dict[str, int]:
        if delay > 0 or not front:
            return due_at(self.now + _OWN, delay)
        self._insert()
        self._tables.make_ready(self._session, job.queue, self.now)
        return due_at(self._tables.head(self._session, job.queue, self.now))

    def _free(
        self, job: DatabaseJob, due: Mapping[str, int], notes: bytes | None, attempts: int
    ) -> bool:
        kept = None if notes is None else self._tables.database.stored(notes)
        release = self._tables.messages.release
        return self._change(job, release, **due, notes=kept, attempts=attempts)

    def _change(self, job: DatabaseJob, statement: Statement, **values: Any) -> bool:  # noqa: ANN401 (what a column takes)
        changed = self._session.run(statement, id=job.row, lease=job.token, **values)
        return bool(changed.rowcount)

    # -- messages ---------------------------------------------------------------------------------

    def _push(self, push: Push, at: int) -> None:
        """Keep a message for one statement with those that follow."""
        self._pushed.append(
            {
                "queue": push.queue,
                "payload": self._tables.database.stored(push.raw),
                "created_at": at // 1_000_000,
                **due_at(at, push.delay),
            }
        )

    def _insert(self) -> None:
        rows, self._pushed = self._pushed, []
        insert = self._tables.messages.insert
        if len(rows) == 1:
            self._session.run(insert, **rows[0])
        elif rows:
            self._session.run_many(insert, rows)
