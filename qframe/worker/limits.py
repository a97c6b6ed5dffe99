"""Limits: how often a job may be started, for how long an attempt may run, and what follows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from qframe.contracts.history import KEPT, History, PastAttempt
from qframe.contracts.job import Job
from qframe.exceptions import JobInterrupted, JobTimedOut, MaxAttemptsExceeded, ModelMissing
from qframe.jobs.definition import JobDefinition
from qframe.payload import envelope
from qframe.payload.envelope import OWN_TIMEOUT
from qframe.payload.timing import iso
from qframe.worker.options import LONGEST, WorkerOptions

TIMED_OUT = "timed out"
DIED = "worker died"
"""How an attempt ended whose worker died, in the history."""


class JobFacts(NamedTuple):
    """What decides a job's fate."""

    name: str
    attempts: int
    history: History

    @classmethod
    def of(cls, job: Job) -> JobFacts:
        return cls(job.name, job.attempts(), job.history)

    def before(self) -> JobFacts:
        return JobFacts(self.name, self.attempts - 1, self.history.without_last())


class Limits:
    """The limits of one job: of the class as deployed, else the payload's, else the worker's."""

    def __init__(
        self,
        declared: type[JobDefinition] | None,
        message: Mapping[str, Any],
        options: WorkerOptions,
    ) -> None:
        self._declared = declared
        self._message = message
        self._options = options

        timeout = None if declared is None else declared.timeout
        if timeout is None or OWN_TIMEOUT in message:
            sent = message.get("timeout") is not None
            timeout = self._sent("timeout", options.timeout) if sent else options.timeout
        self.timeout = min(timeout, LONGEST)
        """Seconds an attempt may take; 0 is no limit."""
        self.end_at_a_moment = message.get("retryUntil") is not None or "expiresAt" in message
        """Whether the job has a moment after which it does not start."""

    @property
    def tries(self) -> int:
        """How often the job may be started; 0 is no limit."""
        tries = None if self._declared is None else self._declared.tries
        return int(self._sent("maxTries", self._options.tries)) if tries is None else tries

    @property
    def retry_until(self) -> float | None:
        """Until when the job is retried, whatever `tries` says; fixed at dispatch."""
        return envelope.number(self._message, "retryUntil")

    @property
    def expires_at(self) -> float | None:
        """When a job that has not started is skipped; fixed at dispatch."""
        return envelope.number(self._message, "expiresAt")

    @property
    def max_exceptions(self) -> int:
        """How many attempts may raise; 0 is no limit."""
        own = self._declared.max_exceptions if self._declared is not None else None
        return int(own if own is not None else self._sent("maxExceptions", 0))

    @property
    def fails_on_timeout(self) -> bool:
        if self._declared is not None:
            return self._declared.fail_on_timeout
        return self._message.get("failOnTimeout") is True

    @property
    def are_open(self) -> bool:
        """Whether no count limits the attempts, but at most a moment."""
        return not self.max_exceptions and (self.retry_until is not None or not self.tries)

    def _sent(self, key: str, otherwise: float) -> float:
        if self._message.get(key) is None:
            return otherwise
        value = envelope.number(self._message, key)
        return otherwise if value is None or value < 0 else value

    def exhausted(self, attempts: int, history: History) -> bool:
        """Whether a job started this often may not start again.

        Attempts that the job ended by releasing itself do not count.
        """
        if self.retry_until is not None:
            return time.time() > self.retry_until
        return self.tries > 0 and attempts - history.releases >= self.tries

    def timed_out_for_good(self, history: History) -> bool:
        """Whether the last attempt timed out and the job may have no second timeout."""
        ran = history.attempts
        return bool(ran) and ran[-1].ended == TIMED_OUT and self.fails_on_timeout

    def forbids(self, job: JobFacts) -> bool:
        """Whether a job after these attempts may not start."""
        return self.exhausted(job.attempts, job.history) or (
            job.attempts > 0 and self.timed_out_for_good(job.history)
        )

    def expired(self, job: JobFacts) -> bool:
        """Whether a job that never started is too old for it."""
        if self.expires_at is None or job.attempts or job.history.steps:
            return False
        return time.time() > self.expires_at

    def end_with(self, error: BaseException, job: JobFacts) -> bool:
        if isinstance(error, JobTimedOut) and self.fails_on_timeout:
            return True
        if isinstance(error, ModelMissing) and not error.is_retried:
            return True
        raised = job.history.exceptions + (ending(error) == "error")
        if 0 < self.max_exceptions <= raised:
            return True
        return self.exhausted(job.attempts, job.history)

    def backoffs(self) -> list[float]:
        """Returns the seconds before the next attempts if the class says nothing."""
        return envelope.backoffs(self._message) or list(self._options.backoff)


def exceeded(job: JobFacts, limits: Limits) -> MaxAttemptsExceeded | JobTimedOut:
    """Returns the error for a job without attempts left, with how each attempt ended."""
    ran = job.history.attempts
    if limits.timed_out_for_good(job.history):
        last = _described(ran[-1])
        return JobTimedOut(f"{job.name} fails at its first timeout (fail_on_timeout): {last}")
    if limits.retry_until is not None:
        why = f"may be tried until {iso(limits.retry_until)} UTC"
    else:
        why = f"may be started {_times(limits.tries)}"
    past = "; ".join([*_unnoted(job), *map(_described, ran)])
    return MaxAttemptsExceeded(
        f"{job.name} {why} and was started {_times(job.attempts)}" + (f": {past}" if past else "")
    )


_VANISHED = "its worker died, was killed, lost the backend, or was ended at the hard timeout"


def _unnoted(job: JobFacts) -> list[str]:
    """Returns how attempts must have ended that a backend could not record."""
    known = {attempt.number for attempt in job.history.attempts}
    missing = [number for number in range(1, job.attempts + 1) if number not in known]
    if not missing or len(known) >= KEPT:
        return []
    which = ", ".join(map(str, missing))
    return [f"attempt {which}: nothing on record, so {_VANISHED}"]


def _described(attempt: PastAttempt) -> str:
    where = (
        f"attempt {attempt.number} on {attempt.host}, pid {attempt.pid}, "
        f"started {iso(attempt.started_at)} UTC"
    )
    if not attempt.ended:
        return f"{where}, never ended: {_VANISHED}"
    return f"{where}, {attempt.ended}" + (f" ({attempt.error})" if attempt.error else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def ending(error: BaseException) -> str:
    """Returns how an attempt that raised `error` ended, for the history."""
    if isinstance(error, JobTimedOut):
        return TIMED_OUT
    return "interrupted" if isinstance(error, JobInterrupted) else "error"
