"""Findings: what is wrong, the active alerts and the totals of a board."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from pydantic import BaseModel

from qframe.alerts.checker import alerts_on
from qframe.alerts.life import Alert
from qframe.alerts.side_task import place
from qframe.exceptions import BackendUnavailable
from qframe.operations import payload_reports
from qframe.operations.activity import Trend
from qframe.operations.board import Board
from qframe.operations.deploys import DeployState
from qframe.operations.failures import CauseState
from qframe.operations.forecast import ForecastState
from qframe.operations.queues import QueueState
from qframe.operations.reading import NotYetError
from qframe.operations.schedules import ScheduleState
from qframe.operations.unsafe import Unsafe
from qframe.operations.workers import WorkerState
from qframe.payload.text import count_of
from qframe.payload.timing import iso, lasting

LONG_WAIT = 60.0
"""Seconds a job may be ready before that counts as a long wait."""
_MOST_FINDINGS = 50
_KINDS = ("problem", "new cause", "warning")
"""By weight."""

T = TypeVar("T")


class Finding(BaseModel):
    """What is wrong. `kind`: `problem`, `new cause` or `warning`; `page` shows more of it."""

    level: str
    """`bad`, or `warn` for a warning."""
    kind: str
    text: str
    page: str


class AlertState(BaseModel):
    """An active alert: a rule of the configuration that is broken."""

    id: str
    rule: str
    connection: str
    subject: str
    """Its queue, class or worker; "" for a whole connection."""
    value: float
    text: str
    since: str
    seconds: float
    is_ending: bool
    """Whether the rule has held again of late."""

    @classmethod
    def of(cls, alert: Alert) -> AlertState:
        return cls(
            id=alert.id,
            rule=alert.rule,
            connection=alert.connection,
            subject=alert.what,
            value=alert.value,
            text=alert.text,
            since=iso(alert.since),
            seconds=max(0.0, time.time() - alert.since),
            is_ending=bool(alert.quiet),
        )


HOW_MANY = "how many jobs wait"
"""The part of an overview that is pending as long as the queues are not counted."""


class Overview(BaseModel):
    """The problems, and the totals."""

    alerts: list[AlertState]
    findings: list[Finding]
    ready: int | None
    """None if it is not counted yet, or cannot be; so is `delayed`."""
    delayed: int | None
    running: int
    failed: int
    workers: int
    slots: int
    trend: Trend | None
    pending: list[str] = []
    """The parts that were not known in time."""
    deploys: list[DeployState]
    """The deploys within the trend, latest first."""


def alerts(board: Board) -> list[AlertState]:
    """Returns the active alerts, the latest first; none if there are no rules."""

    def read() -> list[AlertState]:
        try:
            return [AlertState.of(each) for each in alerts_on(place(board.manager))]
        except BackendUnavailable:  # the findings name it
            return []

    if not board.manager.settings.alerts.rules:
        return []
    return board.cached("alerts", 1.0, read)


def _total(counts: Sequence[int | None]) -> int | None:
    """Returns the sum of those that are known; None if none is."""
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def overview(board: Board, patience: float | None = None) -> Overview:
    """Returns the problems and the totals.

    Parts that were never read, and take longer than `patience` in all, are named as pending.
    """
    ends = None if patience is None else time.monotonic() + patience
    if patience is not None:  # both go on in the background, while the rest is read here
        for slow in (board.queues, board.unsafe):
            _in_time(slow, time.monotonic(), "", [])
    working, failed = board.workers(), board.failed.summary()
    pending: list[str] = []
    there = _in_time(board.queues, ends, HOW_MANY, pending)
    warned = _in_time(board.unsafe, ends, "what is unsafe", pending)
    trend = _in_time(lambda left: board.trend(patience=left), ends, "the rates", pending)
    # Last, as its tenth of a second of processor time would slow down the rest.
    coming = _in_time(board.forecasts, ends, "what will be behind", pending)
    alive = [each for each in working if each.state != "gone"]
    return Overview(
        alerts=alerts(board),
        findings=_problems(board, there or [], warned or [], coming or []),
        ready=_total([each.ready for each in there or []]),
        delayed=_total([each.delayed for each in there or []]),
        running=sum(each.used for each in alive),
        failed=failed.total,
        workers=len(alive),
        slots=sum(each.concurrency for each in alive),
        trend=trend,
        pending=pending,
        deploys=board.deploys(),
    )


def problems(board: Board) -> list[Finding]:
    """Returns the problems, the worst first."""
    return _problems(board, board.queues(), board.unsafe(), board.forecasts())


def _problems(
    board: Board,
    there: Iterable[QueueState],
    warned: Iterable[Unsafe],
    coming: Iterable[ForecastState],
) -> list[Finding]:
    working, failed = board.workers(), board.failed.summary()
    found = [
        _problem(f"{name} does not answer: {why}", "/queues")
        for name, why in sorted(board.silent.items())
    ]
    found += _of_queues(there, working) + _of_workers(working) + _of_schedules(board.schedules())
    found += _of_causes(failed.causes)
    found += [
        _warning(f"{each.connection}:{each.queue} will be behind: {each.text}", "/queues")
        for each in coming
        if each.behind_at
    ]
    found += _of_payloads(board)
    found += [_warning(f"{each.about}: {each.text}", "/") for each in warned]
    return sorted(found, key=lambda each: _KINDS.index(each.kind))[:_MOST_FINDINGS]


def headline(seen: Overview) -> str:
    """Returns in a few words how much is wrong, as `3 problems, 9 new causes`; "" for nothing."""
    counts = {"alert": len(seen.alerts)} | dict.fromkeys(_KINDS, 0)
    for each in seen.findings:
        counts[each.kind] += 1
    named = (count_of(count, kind, f"{kind}s") for kind, count in counts.items() if count)
    return ", ".join(named)


def _problem(text: str, page: str) -> Finding:
    return Finding(level="bad", kind="problem", text=text, page=page)


def _warning(text: str, page: str) -> Finding:
    return Finding(level="warn", kind="warning", text=text, page=page)


def _in_time(
    read: Callable[[float | None], T], ends: float | None, what: str, pending: list[str]
) -> T | None:
    """Reads until a moment; if it is not known then, returns None and adds it to `pending`."""
    try:
        return read(None if ends is None else ends - time.monotonic())
    except NotYetError:
        pending.append(what)
        return None


def _of_queues(there: Iterable[QueueState], working: Iterable[WorkerState]) -> list[Finding]:
    found = []
    listening = [
        (each.connection, pattern)
        for each in working
        if each.state != "gone"
        for pattern in each.queues
    ]
    for each in there:
        name, page = f"{each.connection}:{each.queue}", "/queues"
        waits = each.oldest_seconds or 0.0
        if each.paused and each.ready:
            text = f"{name} is paused, and {count_of(each.ready, 'job waits', 'jobs wait')}"
            found.append(_warning(text, page))
        elif each.ready and not any(
            connection == each.connection and fnmatchcase(each.queue, pattern)
            for connection, pattern in listening
        ):
            jobs = count_of(each.ready, "job waits", "jobs wait")
            text = f"no worker processes {name}, but {jobs}"
            found.append(_problem(text, page))
        elif waits > LONG_WAIT:
            text = f"the next job of {name} has waited {lasting(waits)}"
            found.append(_problem(text, page))
        if each.buried:
            text = f"{count_of(each.buried, 'job is', 'jobs are')} buried in {name}"
            found.append(_warning(text, page))
    return found


def _of_workers(working: Iterable[WorkerState]) -> list[Finding]:
    gone = [each for each in working if each.state == "gone"]
    return [
        _problem(f"the worker {each.host}:{each.pid} of {each.connection} has died", "/workers")
        for each in gone
    ]


def _of_schedules(there: Iterable[ScheduleState]) -> list[Finding]:
    return [
        _problem(
            f"the schedule {each.name} is late: it was due {lasting(each.late_seconds)} ago",
            "/schedules",
        )
        for each in there
        if each.late_seconds > LONG_WAIT
    ][:5]


def _of_causes(causes: Iterable[CauseState]) -> list[Finding]:
    return [
        Finding(
            level="bad",
            kind="new cause",
            text=f"new since yesterday, {_times(each.count)}: {each.job}: {each.error}",
            page=f"/failed?filter=cause:{each.cause}",
        )
        for each in sorted(causes, key=lambda each: -each.count)
        if not each.silenced and each.is_new
    ]


def _of_payloads(board: Board) -> list[Finding]:
    """Returns what the last checks of stored payloads found, unless a deploy came after them."""
    telling = payload_reports.that_tell(board.payload_reports(), board.deployed_at())
    return [_warning(payload_reports.sentence_of(each), "/payloads") for each in telling]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
