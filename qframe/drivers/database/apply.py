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
    OfReservation,
    Open,
    Outcome,
    Push,
    Raise,
    Record,
    Release,
    Renew,
    Result,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.facts import Facts
from qframe.drivers.database.failed import Failed
from qframe.drivers.database.latches import Latches
from qframe.drivers.database.messages import AFTER, DatabaseJob, Messages

_OF_RESERVATION = frozenset((Start, Renew, Delete, Release, Bury))
_IN_ONE_STATEMENT = frozenset((Push, Start, Renew, Delete, Bury, Set, Unset, Raise, Add))


def needs_transaction(steps: Sequence[Step]) -> bool:
    """Whether steps take more than one statement, each of which is a transaction by itself."""
    if len(steps) != 1 or len(steps[0].operations) != 1:
        return True
    return type(steps[0].operations[0]) not in _IN_ONE_STATEMENT


class Tables:
    """What the operations are made with."""

    def __init__(self, database: Database, retry_after: float) -> None:
        self.messages = Messages(database, retry_after)
        self.facts = facts = Facts(database)
        self.latches = latches = Latches(database)
        self.failed = failed = Failed(database)
        self.checks: Mapping[type, Callable[..., Result | None]] = {
            Expect: facts.expect,
            Extend: latches.extendable,
            Forget: failed.known,
        }
        self.others: Mapping[type, Callable[..., Push | None]] = {
            **dict.fromkeys((Set, Unset, Raise, Add), facts.write),
            Open: latches.open,
            **dict.fromkeys((Extend, Arrive, Close), latches.change),
            Record: failed.record,
            Forget: failed.forget,
        }


class Exchange:
    """The steps of one call."""

    __slots__ = ("_moved", "_pushed", "_session", "_tables")

    def __init__(self, tables: Tables, session: Session) -> None:
        self._tables = tables
        self._session = session
        self._pushed: list[dict[str, Any]] = []
        self._moved: list[tuple[DatabaseJob, OfReservation | None]] = []

    def apply(self, steps: Sequence[Step]) -> list[Result]:
        """Apply steps in order, each if its fence and expectations hold."""
        results = [self._apply(step) for step in steps]
        self._insert()
        return results

    def note(self, sent: float) -> None:
        """Tell the reservations what was committed; the call began at `sent` by `Backend.clock`."""
        for job, operation in self._moved:
            match operation:
                case Start(lease, notes):
                    job._attempts += not job.started  # noqa: SLF001 (the backend keeps it)
                    job.started, job.notes, job.lease = True, notes, lease
                    job.sure_until = sent + lease
                case Renew(lease):
                    job.sure_until = sent + lease
                case _:
                    job.sure_until = 0.0

    def _apply(self, step: Step) -> Result:
        job, session = step.reservation, self._session
        if job is not None and not isinstance(job, DatabaseJob):
            raise TypeError(f"{job!r} is not of this backend")
        own: Any = None
        for operation in step.operations:
            kind = type(operation)
            if kind in _OF_RESERVATION:
                own = operation
            elif kind in self._tables.checks:
                refused = self._tables.checks[kind](session, operation)
                if refused is not None:
                    return refused if job is None or self._holds(job) else LOST
        # Before the rest, as its fence guards that, too.
        if job is not None and not (self._settle(job, own) if own else self._holds(job)):
            return LOST
        result = APPLIED if own and len(step.operations) == 1 else self._do_others(step, own)
        if isinstance(own, Release | Bury):
            session.put_forward()  # what follows is behind it
        return result

    def _holds(self, job: DatabaseJob) -> bool:
        return self._tables.messages.is_held(self._session, job)

    def _settle(self, job: DatabaseJob, operation: OfReservation) -> bool:
        if isinstance(operation, Release):
            self._insert()  # it may go before what was pushed
        done = self._tables.messages.settle(self._session, job, operation)
        self._moved.append((job, operation if done else None))
        return done

    def _do_others(self, step: Step, own: OfReservation | None) -> Result:
        due: list[Push] = []
        at = self._session.now
        for operation in step.operations:
            if isinstance(operation, Push):
                self._pushed.append(self._tables.messages.row(operation, at))
            elif operation is own:
                at += AFTER if isinstance(own, Release | Bury) else 0
            elif not isinstance(operation, Expect):
                then = self._tables.others[type(operation)](self._session, operation)
                if then is not None and operation.push:  # type: ignore[union-attr] # of a latch
                    self._pushed.append(self._tables.messages.row(then, at))
                elif then is not None:
                    due.append(then)
        return Result(Outcome.APPLIED, due=tuple(due)) if due else APPLIED

    def _insert(self) -> None:
        """Add what was pushed so far, in one statement."""
        rows, self._pushed = self._pushed, []
        self._tables.messages.insert(self._session, rows)
