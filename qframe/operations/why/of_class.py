"""OfClass: what holds the jobs of one class up: their queues, limits, schedules and failures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.failed.filters import WAITING, Filter, quoted
from qframe.jobs.definition import JobDefinition
from qframe.operations import jobs, schedules
from qframe.operations.board import Board
from qframe.operations.why import of_code, of_queue, permits
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Explanation, Reasons, command, together
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import lasting

NONE_WAITS = "no job of it waits"
_SECONDS = 1.0
"""How long the waiting jobs of a connection are searched for the class."""
_MOST_QUEUES = 20
_LISTED = 10_000


def of_page(board: Board, connection: Connection, job: str) -> Explanation:
    """Returns what holds a class up, for its page, without counting its jobs."""
    return explain(ConnectionLook(board, connection, imports=False, quick=True), job)


def explain(look: ConnectionLook, job: str) -> Explanation:
    """Returns what holds the jobs of a class up on one connection."""
    why, delayed = Reasons(), list[str]()
    counts = {} if look.quick else _counted(look, job, delayed, why)
    declared = of_code.declared(look, job, why)
    named = _queues(look, job, declared, counts)
    for queue in named:
        of_queue.held_up(look, queue, why, is_ready=True)
        of_code.unknown(look, job, queue, why)
    if declared is not None and declared.concurrency is not None:
        permits.of_class(look, declared.own_name(), declared.concurrency, why)
    _schedules(look, job, why)
    _failures(look, job, why)
    waiting = sum(counts.values())
    _delayed(delayed, waiting, why)
    state = count_of(waiting, "job waits", "jobs wait") if counts else NONE_WAITS
    if not why.found:
        where = together(sorted(counts)) or together(named)
        why.add("ready", f"nothing holds it up: {state}, in {where or look.name}", why.began)
    queue = named[0] if len(named) == 1 else ""
    return why.explained("class", state, job=job, connection=look.name, queue=queue)


def _delayed(due: list[str], waiting: int, why: Reasons) -> None:
    """Says how many of the waiting jobs are delayed; no worker has to be free for these alone."""
    if not due:
        return
    if len(due) == waiting and not why.unknown:  # all were looked at
        why.found = [each for each in why.found if each.kind not in {"busy", "order"}]
    known = [moment for moment in due if moment]
    each, first = (
        ("it is", "") if waiting == 1 else (f"{len(due):,} of {waiting:,} are", "the first ")
    )
    when = f"until {min(known)} UTC" if known else "until a time that the backend does not tell"
    why.add("delayed", f"{each} delayed, {first}{when}", why.began)


def _counted(look: ConnectionLook, job: str, delayed: list[str], why: Reasons) -> dict[str, int]:
    """Counts the waiting jobs of a class by queue, for about a second.

    `delayed` gets the moments at which the delayed ones are due; "": unknown.
    """
    if not {Capability.BROWSE, Capability.SEARCH} <= {*look.able}:
        why.cannot_know(f"{look.name} does not show its jobs: how many of the class wait")
        return {}
    chosen, ends = Filter(f"class:{quoted(job)}", WAITING), time.monotonic() + _SECONDS
    found: dict[str, int] = {}
    for queue in look.queues().value[:_MOST_QUEUES]:
        for place in (Place.READY, Place.DELAYED):
            for page, is_all in _pages(look, queue, place, chosen, ends):
                if page:
                    found[queue] = found.get(queue, 0) + len(page)
                if place is Place.DELAYED:
                    delayed += [each.at or "" for each in page]
                if not is_all:
                    why.cannot_know(
                        f"not all jobs of {look.name} were looked at: there are many, so more of "
                        "the class may wait"
                    )
    return found


def _pages(
    look: ConnectionLook, queue: str, place: Place, chosen: Filter, ends: float
) -> Iterator[tuple[Sequence[jobs.JobState], bool]]:
    after = ""
    while True:
        left = max(0.01, ends - time.monotonic())
        at = (look.connection, queue, place, chosen)
        page = look.board.ask(look.connection, partial(jobs.listed, *at, after, _LISTED, left))
        after = page.after
        is_over = bool(after) and time.monotonic() >= ends
        yield page.jobs, not is_over
        if is_over or not after:
            return


def _queues(
    look: ConnectionLook, job: str, declared: type[JobDefinition] | None, counts: dict[str, int]
) -> list[str]:
    """Returns the queues of a class: those where its jobs wait, else where they are pushed."""
    if counts:
        return sorted(counts)
    active = look.activity().value
    seen = () if active is None else {pair.queue for pair in active.series if pair.job == job}
    if seen:
        return sorted(seen)
    if declared is None:
        return []
    return [declared.queue or look.connection.default_queue]


def _schedules(look: ConnectionLook, job: str, why: Reasons) -> None:
    """Says of its schedules which are off, refused or late."""
    if not look.keeps_facts:
        return
    try:
        read = look.read("schedules", lambda: schedules.states(look.board.manager, look.connection))
    except (ConfigurationError, BackendUnavailable):
        return
    for each in read.value:
        if each.job != job:
            continue
        name = one_line(each.name, 100)
        if each.refused:
            text = f"its schedule {name} is refused: {each.refused}"
            why.add("schedule off", text, read.at, command("schedule", "sign", name))
        elif each.paused:
            text = f"its schedule {name} is paused: it makes no jobs"
            why.add("schedule off", text, read.at, command("schedule", "resume", name))
        elif each.late_seconds > 60:  # noqa: PLR2004 (a minute)
            late = lasting(each.late_seconds)
            text = f"its schedule {name} was due {late} ago, and no worker has made the job"
            why.add("schedule off", text, read.at, command("work", look.name))
        elif each.next_at:
            text = f"its schedule {name} makes the next job at {each.next_at} UTC"
            why.add("schedule", text, read.at)
        if each.skipped and each.skipped_at:
            reason = one_line(each.skipped, 200)
            text = f"its schedule {name} made none at {each.skipped_at} UTC: {reason}"
            why.add("schedule", text, read.at)


def _failures(look: ConnectionLook, job: str, why: Reasons) -> None:
    """Names the cause of most of its failures."""
    at = time.time()
    causes = [each for each in look.board.failed.summary().causes if each.job == job]
    if not causes:
        return
    first = max(causes, key=lambda each: each.count)
    failed = sum(each.count for each in causes)
    many = count_of(failed, "job of it has", "jobs of it have")
    text = f"{many} failed, most with {one_line(first.error, 200)}, last at {first.last_at} UTC"
    why.add("causes", text, at, command("failed", "--where", f"cause:{first.cause}"))
