"""Records: the history of a job after its end, and what the failed store keeps of a failure."""

from __future__ import annotations

import time

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.job import Job
from qframe.contracts.recording import Recording
from qframe.contracts.status import State
from qframe.exceptions import JobFailedByHand
from qframe.features.base import End
from qframe.payload import tracebacks


def history_after(
    history: History, end: End, recording: Recording | None = None, *, started: bool
) -> History:
    """Return the history of a job that is given back to its queue."""
    if end.state is State.WAITING:
        history = history.without_last() if started else history
        return history.refused() if end.refused else history
    if end.state is State.RELEASED:
        words = end.error if isinstance(end.error, str) else ""
        if isinstance(end.error, BaseException):
            words = tracebacks.brief(end.error, 500)
        return history.ended(end.how, words, round(time.time(), 6)).recorded(recording)
    return history


def failure(
    job: Job, end: End, uuid: str, recording: Recording | None = None, *, started: bool
) -> FailedJob:
    """Return the record of a job that failed, under this uuid."""
    error = end.error if isinstance(end.error, BaseException) else JobFailedByHand(end.error)
    history, attempts, now = job.history, job.attempts(), time.time()
    if started and not end.ran:
        history, attempts = history.without_last(), attempts - 1
    elif started:
        history = history.ended("error", tracebacks.brief(error, 500), round(now, 6))
        history = history.recorded(recording)
    return FailedJob(
        uuid=uuid,
        connection=job.connection_name,
        queue=job.queue,
        payload=job.raw_body,
        exception=tracebacks.full(error),
        name=job.name,
        attempts=attempts,
        history=history,
        failed_at=now,
    )
