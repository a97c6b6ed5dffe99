"""Request: one call of `apply` or `reserve` to a server, retried where needed, applied once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from qframe.contracts.step import (
    APPLIED,
    LOST,
    UNKNOWN,
    Delete,
    Push,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers.database.apply import DatabaseSteps, Tables, needs_transaction
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.errors import ConnectionLost, TryAgain
from qframe.exceptions import BackendUnavailable
from qframe.forks import cached_property

T = TypeVar("T")

_PATIENCE = 10.0
"""Seconds for which a transaction is retried that the database rolls back."""
_PAUSE = 0.02
"""The longest pause between two tries, in seconds."""
_REPEATABLE = {Start, Renew, Delete}
"""Operations that are safe to repeat because of their fence."""


def pause() -> None:
    """Wait for a random moment, so that two conflicting transactions do not meet again."""
    time.sleep(random.uniform(0, _PAUSE))  # noqa: S311 (spreads the retries)


def insisting(act: Callable[[], T]) -> T:
    """Retry `act` for a while if the database rolls its transaction back."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return act()
        except TryAgain:
            if time.monotonic() > end:
                raise
            pause()


class Request:
    """Steps, and queues to reserve from behind them; `sent` is the time by `Backend.clock`."""

    def __init__(
        self, tables: Tables, steps: Sequence[Step], queues: Sequence[str], limit: int, sent: float
    ) -> None:
        self._tables = tables
        self._steps = steps
        self._queues = queues
        self._limit = limit
        self._sent = sent
        self._in_doubt = False
        """Whether a try may have been applied."""
        self._again = False
        """Whether an answer was lost: the steps may have been applied."""
        self._deleted: list[Reservation] = []
        """Deletions that were committed before a later statement was rolled back."""
        self._alone = False
        self.exchange: DatabaseSteps
        self.jobs: Sequence[Reservation] = ()
        self.results: list[Result] = []

    @cached_property
    def _only_pushes(self) -> bool:
        return self._are_single({Push}) and not any(
            isinstance(each, Push) and (each.attempts or each.notes or each.buried)
            for step in self._steps
            for each in step.operations
        )

    @cached_property
    def _needs_mark(self) -> bool:
        """Whether a repetition would do more than once."""
        return bool(self._steps) and not self._are_single(_REPEATABLE)

    def _are_single(self, kinds: set[type]) -> bool:
        return all(
            len(step.operations) == 1 and type(step.operations[0]) in kinds for step in self._steps
        )

    def done(self, database: Database, *, lazy: bool) -> None:
        """Do it, in one transaction if it takes several statements."""
        end = time.monotonic() + _PATIENCE
        # Before anything can fail; otherwise it would have the number of a finished exchange.
        database.session().mark.number += 1
        while True:
            try:
                with database.session() as session:
                    session.lazy = lazy and all(step.reservation for step in self._steps)
                    self._do(session, database)
                    self.exchange.note(self._sent)
            except TryAgain:
                if time.monotonic() > end:
                    raise
                if self._alone:
                    self._deleted += self.exchange.deleted()
                pause()
            except BackendUnavailable as error:
                self._in_doubt = self._in_doubt or error.in_doubt
                if self._again or not isinstance(error, ConnectionLost):
                    error.in_doubt = self._in_doubt
                    raise
                self._again = True
            else:
                return

    def _do(self, session: Session, database: Database) -> None:
        messages = self._tables.messages
        marks = self._tables.marks if self._needs_mark else None
        alone = self._is_alone(database) and not (self._again and marks)
        if self._queues and not messages.claims_at_once:
            alone = False
        self._alone = alone
        if not alone:
            session.begin()
            if self._again and marks is not None and marks.is_done(session):
                session.commit()
                return
        self.exchange = DatabaseSteps(self._tables, session, marked=alone and marks is not None)
        self.results = [APPLIED] * len(self._steps)  # the results, in case no answer comes
        results = self.exchange.apply(self._steps)
        self.results = self._as_repeated(results) if self._again or self._deleted else results
        if self._queues:
            self.jobs = messages.reserve(session, self._queues, self._limit, self._sent)
        if not alone:
            if marks is not None:
                marks.write(session)
            session.commit()

    def _is_alone(self, database: Database) -> bool:
        """Whether each of its statements is a transaction by itself."""
        if self._needs_mark:
            one = database.is_postgresql or len(self._steps) == 1
            return one and self._only_pushes and not self._queues
        return not needs_transaction(self._steps)

    def _as_repeated(self, results: list[Result]) -> list[Result]:
        """After a repetition, a deletion that finds its job gone may be this request's own."""
        if self._needs_mark:
            return results
        return [
            self._of_deletion(step.reservation)
            if result.lost and type(step.operations[0]) is Delete
            else result
            for step, result in zip(self._steps, results, strict=True)
        ]

    def _of_deletion(self, job: Reservation | None) -> Result:
        if job in self._deleted:
            return APPLIED
        return UNKNOWN if self._again else LOST
