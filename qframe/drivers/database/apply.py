"""DatabaseSteps: runs the statements of all steps of one call, in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qframe.contracts import step as op
from qframe.contracts.step import APPLIED, LOST, OfReservation, Outcome, Push, Result, Step
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.facts import DatabaseFacts
from qframe.drivers.database.failed import FailedRows
from qframe.drivers.database.latches import Latches
from qframe.drivers.database.marks import Marks
from qframe.drivers.database.messages import DatabaseJob, Messages

SOON = 1.0
"""Seconds within which waiting workers look by themselves, so a later message needs no NOTIFY."""
_ONE_STATEMENT = {Push, op.Start, op.Renew, op.Delete, op.Set, op.Unset, op.Raise, op.Add}


def needs_transaction(steps: Sequence[Step]) -> bool:
    """Whether the steps take more than one statement; a single one is a transaction by itself."""
    if not steps:
        return False
    if len(steps) != 1 or len(steps[0].operations) != 1:
        return True
    return type(steps[0].operations[0]) not in _ONE_STATEMENT


class Tables:
    """The tables that operations use, by type of operation."""

    def __init__(self, database: Database, retry_after: float, aging: float) -> None:
        self.marks = Marks(database)
        self.messages = messages = Messages(database, retry_after, aging, self.marks)
        self.facts = facts = DatabaseFacts(database)
        self.latches = latches = Latches(database)
        self.failed = failed = FailedRows(database)
        self.settles: Mapping[type, Callable[..., bool]] = {
            op.Start: messages.start,
            op.Renew: messages.renew,
            op.Delete: messages.delete,
            op.Release: messages.release,
            op.Bury: messages.bury,
        }
        self.checks: Mapping[type, Callable[..., Result | None]] = {
            op.Expect: facts.expect,
            op.Extend: latches.extendable,
            op.Forget: failed.known,
        }
        self.changes: Mapping[type, Callable[..., Push | None]] = {
            op.Set: facts.set,
            op.Unset: facts.unset,
            op.Raise: facts.raise_,
            op.Add: facts.add,
            op.Open: latches.open,
            **dict.fromkeys((op.Extend, op.Arrive, op.Leave, op.Close), latches.change),
            op.Record: failed.record,
            op.Forget: failed.forget,
        }


class DatabaseSteps:
    """The steps of one call. `filled` are the queues that get a message soon.

    If `marked`, the session's mark is written in the same statement as the pushes.
    """

    __slots__ = ("_marked", "_moved", "_pushed", "_session", "_tables", "filled")

    def __init__(self, tables: Tables, session: Session, *, marked: bool = False) -> None:
        self._marked = marked
        self._tables = tables
        self._session = session
        self._pushed: list[dict[str, Any]] = []
        self._moved: list[tuple[DatabaseJob, OfReservation | None]] = []
        self.filled: set[str] = set()

    def apply(self, steps: Sequence[Step]) -> list[Result]:
        """Apply steps in order, each one if its fence and expectations hold."""
        results = [self._apply(step) for step in steps]
        self._insert()
        return results

    def note(self, sent: float) -> None:
        """Update the reservations after the commit; the call began at `sent` by `Backend.clock`."""
        for job, operation in self._moved:
            if isinstance(operation, op.Start):
                job.begin(operation, sent)
            elif isinstance(operation, op.Renew):
                job.sure_until = sent + operation.lease / 3
            else:
                job.sure_until = 0.0

    def deleted(self) -> list[DatabaseJob]:
        """Return the reservations whose messages were deleted so far."""
        return [job for job, operation in self._moved if type(operation) is op.Delete]

    def _apply(self, step: Step) -> Result:
        job, tables, session = step.reservation, self._tables, self._session
        if job is not None and not isinstance(job, DatabaseJob):
            raise TypeError(f"{job!r} is not of this backend")
        own: Any = None
        for operation in step.operations:
            kind = type(operation)
            if kind in tables.settles:
                own = operation
            elif kind in tables.checks:
                refused = tables.checks[kind](session, operation)
                if refused is not None:
                    return refused if job is None or tables.messages.is_held(session, job) else LOST
        if type(own) is op.Release:
            self._insert()  # it may be reserved before what the earlier steps pushed
            if len(step.operations) > 1:
                session.pin()  # but after what its own step pushes
        # First, because its fence guards the other operations, too.
        if job is not None and not self._settle(job, own):
            return LOST
        return self._change(step)

    def _settle(self, job: DatabaseJob, own: Any) -> bool:  # noqa: ANN401 (an operation, or None)
        """Apply the operation on the reservation. Returns False if it is no longer current."""
        if own is None:
            return self._tables.messages.is_held(self._session, job)
        done = self._tables.settles[type(own)](self._session, job, own)
        self._moved.append((job, own if done else None))
        if done and type(own) is op.Release:
            self._note_filled(job.queue, own.delay)
        return done

    def _change(self, step: Step) -> Result:
        """Apply the operations that are not on the reservation."""
        session, tables = self._session, self._tables
        due: list[Push] = []
        for operation in step.operations:
            kind = type(operation)
            push: Any = operation if kind is Push else None
            if kind in tables.changes:
                push = tables.changes[kind](session, operation)
            elif kind is op.Release or kind is op.Bury:
                session.put_forward()  # later operations are ordered behind it
            if push is None:
                continue
            if kind is Push or operation.push:  # type: ignore[union-attr] # of a latch
                self._pushed.append(tables.messages.row(session, push))
                self._note_filled(push.queue, push.delay)
            else:
                due.append(push)
        return Result(Outcome.APPLIED, due=tuple(due)) if due else APPLIED

    def _note_filled(self, queue: str, delay: float) -> None:
        if delay < SOON:
            self.filled.add(queue)

    def _insert(self) -> None:
        if self._pushed:
            self._tables.messages.insert(self._session, self._pushed, marked=self._marked)
            self._pushed = []
