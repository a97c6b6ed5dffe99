"""What follows a failed attempt: another one after a backoff, or the end."""

from __future__ import annotations

import logging
import time
from typing import Any

from qframe import payload, tracebacks
from qframe.contracts import Attempt, History, Job
from qframe.contracts.history import KEPT
from qframe.exceptions import JobInterrupted, JobTimedOut, MaxAttemptsExceeded
from qframe.queueable import Queueable
from qframe.timing import iso
from qframe.worker.options import WorkerOptions

log = logging.getLogger("qframe")

TIMED_OUT = "timed out"
DIED = "worker died"
"""How an attempt ended, in the history."""


class Limits:
    """The limits of one job: of the class as deployed, else the payload's, else the worker's."""

    def __init__(
        self, job_class: type[Queueable] | None, message: dict[str, Any], options: WorkerOptions
    ) -> None:
        self._class = job_class
        self._message = message
        self._options = options

        tries = timeout = None
        if job_class is not None:
            tries, timeout = job_class.tries, job_class.timeout
        if tries is None:
            tries = int(self._sent("maxTries", options.tries))
        if timeout is None:
            timeout = self._sent("timeout", options.timeout)
        self.tries = tries
        """How often the job may be started; 0 is without limit."""
        self.timeout = timeout
        """How many seconds an attempt may take; 0 is without limit."""
        self.retry_until: float | None = None
        """Until when the job is tried again whatever `tries` says; fixed at dispatch."""
        self.expires_at: float | None = None
        """When the job, not started by then, is skipped; fixed at dispatch."""
        if message.get("retryUntil") is not None:
            self.retry_until = payload.number(message, "retryUntil")
        if "expiresAt" in message:
            self.expires_at = payload.number(message, "expiresAt")

    @property
    def end_at_a_moment(self) -> bool:
        """Whether the job may be too old for its first attempt."""
        return self.retry_until is not None or self.expires_at is not None

    @property
    def max_exceptions(self) -> int:
        """How many attempts may raise; 0 is without limit."""
        own = self._class.max_exceptions if self._class is not None else None
        return int(own if own is not None else self._sent("maxExceptions", 0))

    @property
    def fails_on_timeout(self) -> bool:
        """Whether the first timeout is the end."""
        if self._class is not None:
            return self._class.fail_on_timeout
        return self._message.get("failOnTimeout") is True

    def _sent(self, key: str, otherwise: float) -> float:
        if self._message.get(key) is None:
            return otherwise
        value = payload.number(self._message, key)
        return otherwise if value is None or value < 0 else value

    def exhausted(self, attempts: int, history: History) -> bool:
        """Whether a job started this often may not be started once more.

        Attempts that the job ended by releasing itself are not counted.
        """
        if self.retry_until is not None:
            return time.time() > self.retry_until
        return self.tries > 0 and attempts - history.releases >= self.tries

    def timed_out_for_good(self, history: History) -> bool:
        """Whether the last attempt, ended from outside, was the one timeout the job may have."""
        ran = history.attempts
        return bool(ran) and ran[-1].ended == TIMED_OUT and self.fails_on_timeout

    def ends_with(self, error: BaseException, job: Job) -> bool:
        """Whether this failed attempt was the last."""
        if isinstance(error, JobTimedOut) and self.fails_on_timeout:
            return True
        raised = job.history.exceptions + (ending(error) == "error")
        if 0 < self.max_exceptions <= raised:
            return True
        return self.exhausted(job.attempts(), job.history)

    def backoff(self, instance: Queueable | None, job: Job, error: BaseException) -> float:
        """Give the seconds before the next attempt: the class's, the payload's, the worker's."""
        failures = max(1, job.attempts() - job.history.releases)
        seconds: list[float] | None = None
        if instance is not None:
            try:
                seconds = instance.backoff_after(failures, error)
            except Exception:
                log.exception("%s.backoff raised; the worker's backoff is used", job.name)
        if seconds is None:
            seconds = payload.backoffs(self._message) or list(self._options.backoff)
        return seconds[min(failures, len(seconds)) - 1]


def exceeded(
    job: Job, limits: Limits, *, before: bool = False
) -> MaxAttemptsExceeded | JobTimedOut:
    """Say why a job that was started as often as it may be is failed, and what became of each.

    `before` leaves out the start that found it so.
    """
    attempts = job.attempts() - before
    history = job.history.without_last() if before else job.history
    if limits.timed_out_for_good(history):
        last = _told(history.attempts[-1])
        return JobTimedOut(f"{job.name} fails at its first timeout (fail_on_timeout): {last}")
    if limits.retry_until is not None:
        why = f"may be tried until {iso(limits.retry_until)} UTC"
    else:
        why = f"may be started {_times(limits.tries)}"
    told = "; ".join([*_untold(attempts, history), *map(_told, history.attempts)])
    return MaxAttemptsExceeded(
        f"{job.name} {why} and was started {_times(attempts)}" + (f": {told}" if told else "")
    )


_VANISHED = "its worker died, was killed, lost the backend, or was ended at the hard timeout"


def _untold(attempts: int, history: History) -> list[str]:
    """Say what must have become of the attempts that a backend could not take down."""
    known = {attempt.number for attempt in history.attempts}
    missing = [number for number in range(1, attempts + 1) if number not in known]
    if not missing or len(known) >= KEPT:
        return []
    which = ", ".join(map(str, missing))
    return [f"attempt {which}: nothing on record, so {_VANISHED}"]


def _told(attempt: Attempt) -> str:
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
    """Say in the history how an attempt that raised `error` ended."""
    if isinstance(error, JobTimedOut):
        return TIMED_OUT
    return "interrupted" if isinstance(error, JobInterrupted) else "error"


def words(error: BaseException) -> str:
    """Say in the history what was raised."""
    return tracebacks.brief(error, 500)
