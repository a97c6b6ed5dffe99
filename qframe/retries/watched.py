"""WatchedRetry: one retry of chosen failed jobs as it is stored, and how it moves on.

Values only: who drives it passes in the time and the outcomes. A job that is retried is `open`
until its first attempt has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from qframe.payload.text import one_line
from qframe.retries.terms import FIRST, RetryTerms

LATEST = 50
"""A share is one of so many latest outcomes: a service that dies later is noticed as soon."""
PATIENCE = 3600.0
"""Seconds after which the outcome of a retried job is no longer waited for."""
_CATCH_UP = 1.0
"""Seconds of the pace that are made up for after a pause."""
_TROUBLES = 10
_GOOD, _BAD = ".", "x"


class RetryStage(StrEnum):
    """How far a watched retry is."""

    FIRST = "first"
    """The first jobs are retried, and their outcome is awaited."""
    REST = "rest"
    """The others are retried at the pace."""
    DONE = "done"
    STOPPED = "stopped"


class ChosenJob(NamedTuple):
    """One failure of a job that is to be retried."""

    uuid: str
    failed_at: float
    life: int
    """How often it will have been retried by hand: what its status then says."""


class OpenJob(NamedTuple):
    """A retried job without an outcome yet."""

    uuid: str
    connection: str
    life: int
    since: float


class WatchedRetry(BaseModel):
    """A watched retry. Times are epoch seconds."""

    id: str
    of: str
    """What was chosen, in words."""
    who: str
    first: int
    then: str
    stop_if: str
    fresh: bool = False
    from_step: str = ""
    total: int
    begun_at: float
    number: int = 0
    """Grows with each change, so that no text is repeated."""
    at: int = 0
    """The next one of the list."""
    stage: RetryStage = RetryStage.FIRST
    why: str = ""
    """Why it was stopped."""
    ended_at: float | None = None
    due: float = 0.0
    """When the pace allows the next job."""
    retried: int = 0
    done: int = 0
    failed: int = 0
    """How many failed again, already at their first attempt."""
    unknown: int = 0
    """How many have no outcome that could be learned."""
    kept: int = 0
    """How many could not be retried, and are still failed jobs."""
    gone: int = 0
    """How many were retried or removed by others before their turn."""
    latest: str = ""
    open: list[OpenJob] = []
    troubles: list[str] = []

    @classmethod
    def read(cls, text: str) -> WatchedRetry | None:
        """Read the stored text; None if it is none, or of another version."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    @property
    def terms(self) -> RetryTerms:
        """Its terms. Raises `ConfigurationError` if another version wrote them."""
        return RetryTerms.read(self.first, self.then, self.stop_if)

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return self.stage in {RetryStage.FIRST, RetryStage.REST}

    # -- what happened ----------------------------------------------------------------------------

    def opened(self, job: OpenJob, now: float) -> None:
        """Note that a job was retried."""
        self.at += 1
        self.retried += 1
        self.open.append(job)
        self.due = max(self.due, now - _CATCH_UP) + 1 / self.terms.per_second

    def left(self, trouble: str = "") -> None:
        """Note that the next job was not retried: it is gone, or kept because of a trouble."""
        self.at += 1
        if not trouble:
            self.gone += 1
            return
        self.kept += 1
        self.tell(trouble)

    def tell(self, trouble: str) -> None:
        """Keep a trouble, unless it is known or there are many."""
        line = one_line(trouble, 300)
        if line not in self.troubles and len(self.troubles) < _TROUBLES:
            self.troubles.append(line)

    def learned(self, ended: dict[OpenJob, bool | None]) -> None:
        """Note outcomes: whether each job did well; None: nobody will know."""
        for each, well in ended.items():
            self.open.remove(each)
            if well is None:
                self.unknown += 1
                continue
            self.done += well
            self.failed += not well
            self.latest = (self.latest + (_GOOD if well else _BAD))[-LATEST:]

    def stop(self, why: str, now: float) -> None:
        """End it before its end."""
        self.stage, self.why, self.ended_at = RetryStage.STOPPED, why, now

    # -- what follows -----------------------------------------------------------------------------

    def judge(self, now: float) -> None:
        """Stop it if too many have failed, end it, or go on from the first to the rest."""
        rule, bad = self.terms.rule, self.latest.count(_BAD)
        if self.at >= self.total and not self.open:
            self.stage, self.ended_at = RetryStage.DONE, now
        elif rule.is_broken(bad, max(len(self.latest), self._least()), self.failed):
            self.stop(f"{self.stop_if}: {self._told(bad)}", now)
        elif self.stage is RetryStage.FIRST and self.retried >= self.first and not self.open:
            if self.first and not self.latest:
                self.stop("the outcome of none of the first is known", now)
            else:
                self.stage = RetryStage.REST

    def _least(self) -> int:
        """Return how many outcomes a share is of, at least: few say little."""
        if self.stage is RetryStage.REST:
            return max(self.first, FIRST)
        return self.first if self.open or self.retried < self.first else 0

    def _told(self, bad: int) -> str:
        if self.terms.rule.percent:
            return f"{bad} of the latest {len(self.latest)} failed"
        return f"{self.failed:,} failed"

    def may_retry(self, now: float) -> bool:
        """Whether another job may be retried now."""
        if not self.is_active or self.at >= self.total or now < self.due:
            return False
        if self.stage is RetryStage.FIRST:
            return self.retried < self.first
        return len(self.open) < self.terms.most_open

    def overdue(self, now: float) -> Sequence[OpenJob]:
        """Return the open jobs whose outcome is no longer waited for."""
        return [each for each in self.open if now - each.since >= PATIENCE]
