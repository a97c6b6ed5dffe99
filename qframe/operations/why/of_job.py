"""OfJob: all reasons why one job does not run, wherever it is."""

from __future__ import annotations

import time

from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.exceptions import BackendUnavailable
from qframe.operations import one_job
from qframe.operations.board import Board
from qframe.operations.jobs import FilteredMessage
from qframe.operations.one_job import Located
from qframe.operations.running import RunsOn
from qframe.operations.why import before, ended, of_queue, several, takers, turn, waits
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Explanation, Reasons
from qframe.payload.text import one_line

_SEARCH = 1.5
"""Seconds for which a job is searched in each connection, if its id does not tell its place."""
_AGAIN = 3
"""So often a job is read anew that moved while it was read."""


def explain(board: Board, uuid: str, found: Located, at: float, *, imports: bool) -> Explanation:
    """Returns why a job does not run that was located at a moment.

    If it moves meanwhile, it is read again: what is said holds at one moment.
    """
    for _ in range(_AGAIN):
        made = _explained(board, uuid, found, at, imports=imports)
        seen, at = found, time.time()
        found = _once_more(board, uuid, made)
        if where_it_is(found) == where_it_is(seen):
            return made
        if not found.is_known:
            return _gone(made, at)
    made = _explained(board, uuid, found, at, imports=imports)
    made.unknown.append("it moves so fast that it may be elsewhere by now")
    return made


def of_page(board: Board, uuid: str, found: Located, at: float) -> Explanation | None:
    """Returns why a job does not run, for its page, which located it and does so again soon.

    None if it is not known, runs, or has ended.
    """
    status = found.status
    if not (found.record or found.running or found.waiting or status is None or status.is_final):
        at = time.time()  # in its own queue the search gets further
        found = one_job.locate(board, uuid, status.connection, status.queue)
    if found.running is not None or found.record is not None:
        return None
    if found.waiting is None and (found.status is None or found.status.is_final):
        return None
    return _explained(board, uuid, found, at, imports=False, quick=True)


def locate(board: Board, uuid: str, connection: str = "", queue: str = "") -> Located:
    """Finds a job; searches for longer than a page does."""
    return one_job.locate(board, uuid, connection, queue, _SEARCH)


def _once_more(board: Board, uuid: str, made: Explanation) -> Located:
    """Looks for the job where it was, then everywhere."""
    board.forget("workers")
    found = locate(board, uuid, made.connection, made.queue)
    return found if found.is_known else locate(board, uuid)


def _gone(made: Explanation, at: float) -> Explanation:
    """Returns what it means that a job is not there any more, which was a moment before."""
    why = Reasons()
    text = f"it was {made.state} when this was read first, and is gone now: it is done, or removed"
    why.add("ended", text, at)
    where = {"connection": made.connection, "queue": made.queue}
    return why.explained("job", "gone", uuid=made.uuid, job=made.job, **where)


def where_it_is(found: Located) -> tuple[object, ...]:
    """Returns what changes if a job moves."""
    waiting, run, status = found.waiting, found.running, found.status
    return (
        found.record is not None,
        None if run is None else (run.worker, run.attempt),
        None if waiting is None else (waiting.queue, waiting.state),
        None if status is None else status.state,
    )


def _explained(
    board: Board, uuid: str, found: Located, at: float, *, imports: bool, quick: bool = False
) -> Explanation:
    why = Reasons()
    where = found.record or found.waiting or found.running or found.status
    name = "" if where is None else where.job if isinstance(where, RunsOn) else where.name
    home = found.home or board.known("" if where is None else where.connection)
    look = None
    if home is not None:
        look = ConnectionLook(board, home, imports=imports, quick=quick)
    queue = "" if where is None else where.queue
    state = "not there"
    if found.record is not None:
        state = "failed"
        ended.failed(found.record, look, at, why)
    elif found.running is not None:
        state = "running"
        ended.runs(found.running, at, why)
    elif found.waiting is not None and look is not None:
        state = found.waiting.state
        _waits(look, found.waiting, at, why)
    elif found.status is not None and look is not None:
        state = found.status.state.value.lower()
        ended.status(found.status, look, at, why)
        if not found.status.is_final and Capability.SEARCH not in look.able:
            _unsearched(look, found.status.queue, why)
    return why.explained(
        "job",
        state,
        uuid=uuid,
        job=one_line(name, 200),
        connection="" if home is None else home.name,
        queue=queue,
    )


def _waits(look: ConnectionLook, job: FilteredMessage, at: float, why: Reasons) -> None:
    place = None if job.found is None else job.found.place
    if place in {Place.RUNNING, Place.HELD}:
        ended.leased(look, job, at, why)
        if why.has("lease"):
            of_queue.held_up(look, job.queue, why, is_ready=False)
        return
    waits.explain(look, job, why, at)
    if place is Place.BURIED:
        return
    of_queue.held_up(look, job.queue, why, is_ready=place is Place.READY)
    if place is Place.READY:
        turn.explain(look, job, why)
        if not why.has("paused", "no worker", "quiet", "busy", "limit", "order", "turn"):
            count = len(takers.alive(look, job.queue))
            why.add("ready", f"nothing holds it up: {count} workers take {job.queue}", at)


def _unsearched(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says of a job that cannot be found what holds its queue up."""
    why.cannot_know(
        f"{look.name} cannot be searched: whether it is there still, and where in its queue"
    )
    of_queue.held_up(look, queue, why, is_ready=True)


def nothing(board: Board, uuid: str, found: Located, *, imports: bool) -> Explanation:
    """Returns what it means that no queue, worker, record or status has a job."""
    why, at = Reasons(), time.time()
    searched, unsearchable = list[str](), list[str]()
    for connection in board.connections():
        look = ConnectionLook(board, connection, imports=imports)
        try:
            if what := several.explain(look, uuid, why):
                return why.explained("job", f"a {what}", uuid=uuid, connection=connection.name)
            kept = before.find(look, uuid, why)
            if kept is not None:
                before.explain(look, uuid, kept, why)
                return why.explained("job", "not pushed yet", uuid=uuid, connection=connection.name)
            before.outbox(look, why)
            ended.elsewhere(look, "", why)
        except BackendUnavailable:
            continue  # the board names it
        able = Capability.SEARCH in look.able
        (searched if able else unsearchable).append(connection.name)
    answered = {*searched, *unsearchable}
    silent = {name: text for name, text in board.silent.items() if name not in answered}
    looked = ended.LookedAt(searched, unsearchable, silent, found.is_sure or bool(silent))
    ended.absent(uuid, looked, at, why)
    return why.explained("nothing", "not there", uuid=uuid)
