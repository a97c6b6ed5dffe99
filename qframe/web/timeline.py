"""Timeline: what happened to one job, in order, and what comes next."""

from __future__ import annotations

import json
from typing import NamedTuple

from qframe.operations.one_job import AttemptState, OneJob
from qframe.payload import envelope
from qframe.payload.timing import iso
from qframe.web.markup import tone

_STATES = {"WAITING": "waiting", "RELEASED": "waiting"}


class TimelineEntry(NamedTuple):
    """One entry. `at` is a UTC time; "" if it is not known, or has not come."""

    at: str
    title: str
    text: str = ""
    tone: str = ""
    ends: bool = False
    """Whether an attempt ends: what is of the same second came before."""


def state_of(job: OneJob) -> str:
    """Returns the state of a job in one word."""
    if job.failed is not None:
        return "failed"
    if job.running is not None:
        return "running"
    if job.waiting is not None:
        return "suspended" if job.waits_for else job.waiting.place
    if job.status is None:
        return "unknown"
    return _STATES.get(job.status.state, job.status.state.lower())


def moments(job: OneJob) -> list[TimelineEntry]:
    """Returns what happened to a job, the first first; what is due comes last."""
    known = [*_begin(job), *_attempts(job), *_end(job)]
    known.sort(key=lambda each: each.at)
    for step in _steps(job):
        later = (
            place
            for place, each in enumerate(known)
            if each.at > step.at or (each.at == step.at and each.ends)
        )
        known.insert(next(later, len(known)), step)
    return [*known, *_next(job)]


def _begin(job: OneJob) -> list[TimelineEntry]:
    at = envelope.dispatched_at(job.uuid)
    moment = iso(at) if at is not None else job.status.queued_at if job.status else None
    to = f"to {job.connection}:{job.queue}"
    return [] if moment is None else [TimelineEntry(moment, "Dispatched", to)]


def _attempts(job: OneJob) -> list[TimelineEntry]:
    found: list[TimelineEntry] = []
    for each in job.attempts:
        where = f"on {each.host}, process {each.pid}"
        found.append(
            TimelineEntry(each.started_at, f"Attempt {each.number} started", where, "busy")
        )
        if each.ended_at is not None:
            title = f"Attempt {each.number} ended: {each.ended or 'end unknown'}"
            found.append(
                TimelineEntry(each.ended_at, title, each.error, tone(each.ended), ends=True)
            )
        elif not each.ended:
            found.append(TimelineEntry(each.started_at, f"Attempt {each.number} never ended"))
    known = {each.started_at for each in job.attempts}
    running, status = job.running, job.status
    if running is not None and not job.attempts:
        where = f"on {running.host}, process {running.pid}"
        found.append(
            TimelineEntry(running.since, f"Attempt {running.attempt} started", where, "busy")
        )
    elif status is not None and status.started_at and status.started_at not in known:
        where = f"on {status.host}, process {status.pid}" if status.host else ""
        found.append(
            TimelineEntry(status.started_at, f"Attempt {status.attempt} started", where, "busy")
        )
    return found


def _steps(job: OneJob) -> list[TimelineEntry]:
    return [
        TimelineEntry(
            each.at, f"{each.kind.capitalize()} {each.name}", _value(each.value, each.until)
        )
        for each in job.steps
    ]


def _value(value: object, until: str | None) -> str:
    if until:
        return f"until {until} UTC"
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _end(job: OneJob) -> list[TimelineEntry]:
    if job.failed is not None:
        text = f"after {_times(job.attempts, job.failed.attempts)}"
        if not (job.attempts and job.attempts[-1].error == job.failed.error):
            text += f": {job.failed.error}"
        return [TimelineEntry(job.failed.failed_at, "Failed", text, "bad", ends=True)]
    status = job.status
    if status is None or status.ended_at is None or status.state not in _OVER:
        return []
    state = status.state.lower()
    return [
        TimelineEntry(status.ended_at, state.capitalize(), status.remark, tone(state), ends=True)
    ]


_OVER = {"COMPLETE", "SKIPPED", "FAILED", "CANCELLED"}


def _times(attempts: list[AttemptState], count: int) -> str:
    number = count or len(attempts)
    return f"{number:,} attempt" if number == 1 else f"{number:,} attempts"


def _next(job: OneJob) -> list[TimelineEntry]:
    """Returns where the job is now, and what follows it."""
    found: list[TimelineEntry] = []
    waiting, running = job.waiting, job.running
    if running is not None:
        found.append(TimelineEntry("", "Runs now", f"attempt {running.attempt}", "busy"))
    elif waiting is not None and waiting.place not in {"running", "held"}:
        if job.waits_for:
            found.append(TimelineEntry("", f"Waits for the event {job.waits_for}", tone="warn"))
        title = "Due" if waiting.place == "delayed" else f"Is {waiting.place}"
        line = f", number {waiting.position:,} of {waiting.group}" if waiting.group else ""
        text = f"in {waiting.connection}:{waiting.queue}{line}"
        found.append(TimelineEntry(waiting.at or "", title, text, tone(waiting.place)))
    if job.chain is not None and job.chain.at == job.uuid:
        found += [
            TimelineEntry("", f"Then {name}", "the next of its chain")
            for name in job.chain.following
        ]
    return found
