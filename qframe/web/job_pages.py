"""Job pages: the lists of jobs that wait, run or have ended, and one job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.status import State
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import ENDED, RUNNING, WAITING, Filter
from qframe.operations import finished, one_job, recordings, running, waiting
from qframe.operations.board import Board
from qframe.operations.jobs import Jobs
from qframe.operations.queues import QueueState
from qframe.operations.reading import NotYetError
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.web import recorded, timeline, why_page
from qframe.web.errors import NotThere
from qframe.web.rendering import LIMIT, LOOK, PageView, filter_of

_LEAST = 0.03
"""Seconds of filtering at least, if the other readings of the page took long."""
PLACES = {
    "ready": Place.READY,
    "delayed": Place.DELAYED,
    "running": Place.RUNNING,
    "buried": Place.BURIED,
}
_FINISHED = "finished"
_PLACES = (*PLACES, _FINISHED)
_LISTS = {"running": RUNNING, _FINISHED: ENDED}


def counted(view: PageView) -> tuple[list[QueueState], bool]:
    """Returns the queues with their sizes; only their names if counting takes too long."""
    try:
        return view.board.queues(view.patience), True
    except NotYetError:
        return view.board.named_queues(), False


def jobs(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    began, query = time.monotonic(), view.query
    there, is_counted = counted(view)
    text = query.get("filter")
    place = _place_of(view)
    chosen, trouble = filter_of(text, _LISTS.get(place, WAITING))
    queues = _allowed(there, chosen)
    found: dict[str, Any] = {
        "queues": queues,
        "counts": _counts(view.board, queues, is_counted=is_counted),
        "total": None,
        "is_counted": is_counted,
        "place": place,
        "places": _PLACES,
        "filter": text,
        "trouble": trouble,
        "running": None,
        "finished": None,
        "listed": None,
        "keepers": [],
        "keeper": None,
        "queue": None,
        "within": None,
        "why": None,
    }
    if place == _FINISHED:
        found["keepers"] = finished.keepers(view.board, chosen)
        name = query.get("connection")
        found["keeper"] = finished.connection_of(view.board, chosen, name)
    elif place != Place.RUNNING.value:
        within = _within(view, there, chosen, place)
        found["within"] = within
        if within is not None and len(within.queues) == 1:
            found["queue"] = within.queues[0]
    if trouble:
        return found
    seconds = max(_LEAST, LOOK - (time.monotonic() - began))
    look = (chosen, query.get("after"), LIMIT, seconds)
    if place == Place.RUNNING.value:
        found["running"] = running.listed(view.board, chosen, seconds, LIMIT)
        found["total"] = len(found["running"].jobs)
    elif (keeper := found["keeper"]) is not None:
        found["finished"] = view.board.ask(keeper, partial(finished.listed, keeper, *look))
    elif found["within"] is not None:
        within = found["within"]
        listed = found["listed"] = waiting.listed(view.board, within, PLACES[place], *look)
        found["total"] = _total(view, chosen, listed, _size_of(there, within, place))
        if found["queue"] is not None and listed.jobs and place == Place.READY.value:
            found["why"] = why_page.of_place(view, found["queue"])
    return found


def _total(view: PageView, chosen: Filter, listed: Jobs, size: int | None) -> int | None:
    """Returns how many jobs a filter chooses; None if that is not known."""
    if not (listed.after or view.query.get("after")):
        return len(listed.jobs)
    return size if chosen.is_empty else None


def _place_of(view: PageView) -> str:
    """Returns the place that an address names. Raises `ConfigurationError` for no place."""
    place = view.query.get("place", "ready")
    if place not in _PLACES:
        raise ConfigurationError(f"{one_line(place, 40)!r} is none of {', '.join(_PLACES)}")
    return place


def _counts(board: Board, there: Sequence[QueueState], *, is_counted: bool) -> dict[str, int]:
    """Returns how many jobs are in each place, of all these queues; none if it is not known."""
    if not is_counted:
        return {}
    waits = {
        place: sum(getattr(each, place) or 0 for each in there)
        for place in PLACES
        if place != Place.RUNNING.value
    }
    return {**waits, Place.RUNNING.value: len(running.seen(board))}


def _size_of(there: Sequence[QueueState], within: waiting.Scope, place: str) -> int | None:
    """Returns how many jobs are in a place of the one queue that is shown."""
    for each in there:
        if (each.connection, each.queue) == (within.connection_name, within.queue_name):
            size: int | None = getattr(each, place)
            return size
    return None


def _allowed(there: Sequence[QueueState], chosen: Filter) -> list[QueueState]:
    """Returns the queues in which a filter allows jobs."""
    return [
        each
        for each in there
        if chosen.allows("connection", each.connection) and chosen.allows("queue", each.queue)
    ]


def _within(
    view: PageView, there: Sequence[QueueState], chosen: Filter, place: str
) -> waiting.Scope | None:
    """Returns the queues to show: all that a filter allows, or one; None if there is none.

    Without a filter it is the requested one, or the first that has such jobs.
    """
    name, connection = view.query.get("queue"), view.query.get("connection")
    if not chosen.is_empty:
        return waiting.asked_of(view.board, chosen, connection, name, there)
    fits = [
        each for each in there if connection in {"", each.connection} and name in {"", each.queue}
    ]
    if name and not fits:
        known = connection or view.board.connections()[0].name
        return waiting.Scope.one(view.board.connection(known), name)
    first = next((each for each in fits if not name and getattr(each, place)), None)
    shown = first or next(iter(fits), None)
    if shown is None:
        return None
    return waiting.Scope.one(view.board.connection(shown.connection), shown.queue)


def job(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    asked, query, at = params["uuid"], view.query, time.time()
    uuid, found = one_job.resolved(view.board, asked, query.get("connection"), query.get("queue"))
    if not found.is_known:
        raise NotThere(not_found(view.board, asked, is_sure=found.is_sure))
    job = one_job.described(view.board, uuid, found)
    kept = job.recording
    return {
        "job": job,
        "curves": None if kept is None else recorded.drawn(kept),
        "memory_events": "" if kept is None else recordings.events_of(kept),
        "state": timeline.state_of(job),
        "moments": timeline.moments(job),
        "why": why_page.of_waiting(view, uuid, found, at),
        "result": None if job.status is None else job.status.result,
        "may_be_noted": _may_be_noted(view.board, job),
        "traced": _traced(job.exception, f"{view.board.manager.settings.root}/"),
    }


def _may_be_noted(board: Board, job: one_job.OneJob) -> bool:
    """Whether it may wait where it cannot be found, so that cancelling it leaves a note."""
    if job.status is None or State(job.status.state).is_final:
        return False
    able = (each.capabilities for each in board.connections() if each.name == job.connection)
    return any(Capability.SEARCH not in each for each in able)


def _traced(exception: str, root: str) -> list[tracebacks.OwnFrame]:
    """Returns the frames in the application's code, their files named from its root."""
    frames = tracebacks.own_frames(exception) if exception else []
    return [each._replace(place=each.place.removeprefix(root)) for each in frames]


def not_found(board: Board, uuid: str, *, is_sure: bool) -> str:
    """Returns the message that a job does not exist, or where it may be."""
    shown = f"no job {one_line(uuid, 80)} waits, runs, has failed or is tracked"
    if silent := sorted(board.silent):
        return f"{shown}; but {', '.join(silent)} did not answer, and it may be there"
    if not is_sure:
        shown += "; but more jobs wait than could be looked at, and its uuid does not tell where"
    return f"{shown}; it may be done"
