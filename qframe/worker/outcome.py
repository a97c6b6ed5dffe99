"""Outcome: decides what becomes of a job, from its error, its facts and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from qframe.contracts.status import State
from qframe.exceptions import (
    CannotDecrypt,
    DontHandle,
    Interruption,
    JobCancelled,
    JobGivenBack,
    JobSuspended,
    ModelMissing,
    RetryLater,
)
from qframe.features.base import End
from qframe.worker.limits import JobFacts, Limits, ending, exceeded

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds, doubled each time, before a retry of a job without backoff and without a limit of tries:
without a pause, it would be retried a thousand times a second. Also of one whose row is missing.
"""


class JobOutcome(StrEnum):
    """How one reservation ended."""

    DONE = "done"
    SKIPPED = "skipped"
    RELEASED = "released"
    RETRIED = "retried"
    FAILED = "failed"
    GIVEN_BACK = "given back"
    CANCELLED = "cancelled"
    LOST = "lost"


class Verdict(NamedTuple):
    """The outcome of a job, and the end that brings it about."""

    outcome: JobOutcome
    end: End


class Unrunnable(Exception):
    """The job's class or arguments do not exist here; `__cause__` says why."""


class Exhausted(Exception):
    """The job had no attempts left before this start."""


class Expired(Exception):
    """The job was too old to start."""


class Full(Exception):
    """As many jobs of the class run as may; found out after the job's start."""

    def __init__(self, name: str, delay: float = 0.0) -> None:
        super().__init__(f"as many {name} run at once as may")
        self.delay = delay
        """Seconds until it is worth trying again."""


Backoff = Callable[[int, BaseException], Sequence[float] | None]
"""Asks the job's class for the seconds after so many failures; None if it says nothing."""


def unasked(_failures: int, _error: BaseException) -> None:
    """The backoff of a job whose class is not here."""


def refuse(job: JobFacts, limits: Limits) -> Verdict | None:
    """Decides on a job before its start: None if it may start."""
    if limits.forbids(job):
        return failed(exceeded(job, limits))
    if limits.expired(job):
        return skipped("it had expired")
    return None


_EARLY = (
    JobGivenBack, JobSuspended, JobCancelled, Unrunnable, Exhausted, Expired, Full, DontHandle,
)  # fmt: skip


def is_early(error: BaseException | None) -> bool:
    """Whether an attempt ended neither done nor by an exception of the job."""
    return isinstance(error, _EARLY)


def out_of_group(error: BaseException | None) -> BaseException | None:
    """Return what ends the attempt if a `TaskGroup` has wrapped it, or else the error itself.

    Of several tasks that sleep or wait, the one that goes on first.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    inside = [out_of_group(each) for each in error.exceptions]
    suspended = [each for each in inside if isinstance(each, JobSuspended)]
    if len(suspended) == len(inside):
        return min(suspended, key=lambda each: each.delay)
    return inside[0] if all(isinstance(each, Interruption) for each in inside) else error


def done(result: Any) -> Verdict:  # noqa: ANN401 (whatever the job gave)
    return DONE if result is None else Verdict(JobOutcome.DONE, End(State.COMPLETE, result=result))


DONE = Verdict(JobOutcome.DONE, End(State.COMPLETE))
LOST = Verdict(JobOutcome.LOST, End(State.WAITING))
RELEASED = Verdict(JobOutcome.RELEASED, End(State.RELEASED))


def decide(
    error: BaseException,
    job: JobFacts,
    limits: Limits,
    backoff: Backoff = unasked,
    unknown_delays: Sequence[float] = (),
) -> Verdict:
    """Decides on a job after an attempt that raised `error`.

    `unknown_delays` are the seconds after which a job that is unknown here is tried again: it may
    be newer than this worker.
    """
    if isinstance(error, JobSuspended):
        end = End(State.WAITING, error.delay, str(error), suspended=True, event=error.event)
        return Verdict(JobOutcome.GIVEN_BACK, end)
    if is_early(error):
        return _early(error, job, limits, unknown_delays)
    if limits.end_with(error, job):
        return failed(error)
    failures = max(1, job.attempts - job.history.releases)
    if isinstance(error, RetryLater):
        delay = error.retry_after
    else:
        seconds = backoff(failures, error) or limits.backoffs()
        delay = seconds[min(failures, len(seconds)) - 1]
    if not delay and (limits.are_open or isinstance(error, ModelMissing)):
        delay = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 30))
    return Verdict(JobOutcome.RETRIED, End(State.RELEASED, delay, error=error, how=ending(error)))


def _early(error: BaseException, job: JobFacts, limits: Limits, delays: Sequence[float]) -> Verdict:
    match error:
        case JobGivenBack():
            return given_back(str(error))
        case JobCancelled():
            return cancelled(str(error))
        case Unrunnable():
            return _unrunnable(error.__cause__ or error, job, delays)
        case Full():
            return given_back(str(error), error.delay)
        case Exhausted():
            return failed(exceeded(job.before(), limits), ran=False)
    return skipped(str(error) or "DontHandle")


def _unrunnable(cause: BaseException, job: JobFacts, delays: Sequence[float]) -> Verdict:
    refusals = job.history.refusals
    if refusals >= len(delays) or isinstance(cause, CannotDecrypt):
        return failed(cause, ran=False)
    return given_back(str(cause), delays[refusals], refused=True)


def failed(error: BaseException, *, ran: bool = True) -> Verdict:
    return Verdict(JobOutcome.FAILED, End(State.FAILED, error=error, ran=ran))


def skipped(reason: str) -> Verdict:
    """Ends a job neither done nor failed."""
    return Verdict(JobOutcome.SKIPPED, End(State.SKIPPED, remark=reason))


def cancelled(reason: str) -> Verdict:
    return Verdict(JobOutcome.CANCELLED, End(State.CANCELLED, remark=reason))


def given_back(reason: str, delay: float = 0.0, *, refused: bool = False) -> Verdict:
    """Gives a job back to its queue, uncounted."""
    return Verdict(JobOutcome.GIVEN_BACK, End(State.WAITING, delay, remark=reason, refused=refused))
