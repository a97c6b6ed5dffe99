"""Job pages: the lists of jobs that wait, run or have ended, and one job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qframe.contracts.browsing import Place
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import ENDED, RUNNING, WAITING, Filter
from qframe.operations import finished, one_job, running, waiting
from qframe.operations.board import Board
from qframe.operations.queues import QueueState
from qframe.operations.reading import NotYetError
from qframe.payload.text import one_line
from qframe.web.errors import NotThere
from qframe.web.rendering import LIMIT, LOOK, PATIENCE, PageView, filter_of

_LEAST = 0.03
"""Seconds of filtering at least, if the other readings of the page took long."""
PLACES = {
    "ready": Place.READY,
    "delayed": Place.DELAYED,
    "running": Place.RUNNING,
    "buried": Place.BURIED,
}
_FINISHED = "finished"
_LISTS = {"running": RUNNING, _FINISHED: ENDED}


def counted(board: Board) -> tuple[list[QueueState], bool]:
    """Returns the queues with their sizes; only their names if counting takes too long."""
    try:
        return board.queues(PATIENCE), True
    except NotYetError:
        return board.named_queues(), False


def jobs(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    began, query = time.monotonic(), view.query
    there, is_counted = counted(view.board)
    text = query.get("filter")
    place = query.get("place", "ready")
    places = [*PLACES, _FINISHED]
    if place not in places:
        raise ConfigurationError(f"{one_line(place, 40)!r} is none of {', '.join(places)}")
    chosen, trouble = filter_of(text, _LISTS.get(place, WAITING))
    found: dict[str, Any] = {
        "queues": _allowed(there, chosen),
        "is_counted": is_counted,
        "place": place,
        "places": places,
        "filter": text,
        "trouble": trouble,
        "running": None,
        "finished": None,
        "listed": None,
        "keepers": [],
        "keeper": None,
        "queue": None,
        "within": None,
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
        found["running"] = running.listed(view.board, chosen, seconds)
    elif (keeper := found["keeper"]) is not None:
        found["finished"] = view.board.ask(keeper, partial(finished.listed, keeper, *look))
    elif found["within"] is not None:
        found["listed"] = waiting.listed(view.board, found["within"], PLACES[place], *look)
    return found


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
    uuid, query = params["uuid"], view.query
    job, is_sure = one_job.find(view.board, uuid, query.get("connection"), query.get("queue"))
    if job is None:
        raise NotThere(not_found(view.board, uuid, is_sure=is_sure))
    return {"job": job, "status": _facts(job.status.model_dump()) if job.status else None}


def not_found(board: Board, uuid: str, *, is_sure: bool) -> str:
    """Returns the message that a job does not exist, or where it may be."""
    shown = f"no job {one_line(uuid, 80)} waits, runs, has failed or is tracked"
    if silent := sorted(board.silent):
        return f"{shown}; but {', '.join(silent)} did not answer, and it may be there"
    if not is_sure:
        shown += "; but more jobs wait than could be looked at, and its uuid does not tell where"
    return f"{shown}; it may be done"


def _facts(status: dict[str, Any]) -> dict[str, str]:
    """Returns the fields of a status as texts, without those the page shows otherwise."""
    shown: dict[str, str] = {}
    for key, value in status.items():
        if value in (None, "", [], 0) or key in {"progress", "message", "log"}:
            continue
        if key.endswith("_at"):
            shown[key.removesuffix("_at")] = f"{value} UTC"
        else:
            shown[key] = one_line(str(value), 1000)
    return shown
