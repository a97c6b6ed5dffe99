"""Confirm: the page that asks before an action, with how many things it affects."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from qframe.contracts.browsing import Place
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.operations import failures, jobs, waiting
from qframe.operations.actions.of_failed import chosen_by
from qframe.operations.actions.of_jobs import running_of, waiting_of
from qframe.operations.actions.table import ACTIONS
from qframe.operations.actions.wanted import Wanted
from qframe.operations.bin_forecast import room_in_words
from qframe.operations.board import Board
from qframe.operations.failures import Listing
from qframe.retries.terms import RetryTerms
from qframe.web.job_pages import PLACES
from qframe.web.rendering import PageView, own_path

_COUNTS = 2.0
"""Seconds for counting what an action affects."""
_OF_JOBS = {"retry", "watch-retry", "forget", "cancel", "run-now"}


def question(view: PageView, name: str, wanted: Wanted) -> str:
    """Returns the page that asks for confirmation of an action."""
    fields = [
        (key, value)
        for key, value in wanted.model_dump(exclude={"uuids"}).items()
        if value not in ("", None) or (key == "filter" and value is not None)
    ]
    fields += [("uuids", uuid) for uuid in wanted.uuids]
    count = _count(view.board, name, wanted)
    return view.render(
        "confirm.html",
        name=name,
        action=ACTIONS[name],
        count=count,
        noun="" if not count else "job" if count == "1" else "jobs",
        fields=fields,
        facts=_facts(view.board, name, count, wanted),
        uuids=wanted.uuids,
        terms=RetryTerms.read(),
        back=own_path(view.query.get("back", "/")),
    )


def _facts(board: Board, name: str, count: str, wanted: Wanted) -> dict[str, str]:
    """Returns what an action acts on, each with its name for people."""
    queue = ":".join(each for each in (wanted.connection, wanted.queue) if each)
    every = "all" if wanted.filter == "" else wanted.filter or ""
    facts = {"Jobs": count, "Queue": queue if wanted.queue else "", "State": wanted.place}
    facts |= {"Filter": every, "Cause": _cause(board, wanted.cause)}
    if wanted.id:
        facts[_NAMES.get(name, "Name")] = _named(board, name, wanted.id)
    if wanted.connection and not wanted.queue:
        facts["Connection"] = wanted.connection
    if name in {"clear", "forget"} or (name == "cancel" and wanted.filter is not None):
        facts["Undo"] = _undo(board, name, wanted)
    return {key: value for key, value in facts.items() if value}


def _undo(board: Board, name: str, wanted: Wanted) -> str:
    if wanted.place == Place.RUNNING.value:
        return "not possible: they are interrupted"
    there = [board.connection(wanted.connection)] if wanted.connection else board.connections()
    words = ""
    with suppress(BackendUnavailable):  # the count tells of it
        words = room_in_words(board.manager, there, waits=name != "forget")
    return words


_NAMES = {
    "cancel-batch": "Batch",
    "retry-batch": "Batch",
    "cancel-flow": "Flow",
    "retry-flow": "Flow",
    "stop-worker": "Worker",
    "remove-schedule": "Schedule",
    "stop-retry": "Retry",
    "undo": "Act",
}


def _cause(board: Board, key: str) -> str:
    known = (each for each in board.failed.summary().causes if each.cause == key)
    found = next(known, None) if key else None
    return key if found is None else f"{found.job}: {found.error}"


def _named(board: Board, name: str, identity: str) -> str:
    """Returns the name that people know of a batch, a flow or a worker; else its id."""
    if name == "undo":
        acts = (each for each in board.acts() if each.id == identity)
        act = next(acts, None)
        return identity if act is None else f"{act.action} {act.of}, by {act.who}"
    if name.endswith("-worker"):
        found = next((each for each in board.workers() if each.id == identity), None)
        return identity if found is None else f"{found.host}:{found.pid}"
    if name.endswith(("-batch", "-flow")):
        find = board.find_batch if name.endswith("-batch") else board.find_flow
        kept = find(identity)
        return identity if kept is None else kept.record.name or identity
    return identity


def _count(board: Board, name: str, wanted: Wanted) -> str:
    if name in {"clear", "kick"}:
        sizes = board.connection(wanted.connection).sizes(wanted.queue or None)
        return f"{sizes.buried if name == 'kick' else sizes.ready + sizes.delayed:,}"
    if wanted.filter is None and not wanted.cause:
        if name in _OF_JOBS and not wanted.uuids:
            raise ConfigurationError("no job is selected")
        return f"{len(wanted.uuids):,}" if wanted.uuids else ""
    if name == "cancel":
        return _count_waiting(board, wanted)
    return _count_failed(board, wanted)


def _count_waiting(board: Board, wanted: Wanted) -> str:
    place = PLACES.get(wanted.place, Place.READY)
    if place is Place.RUNNING:
        return f"{len(running_of(board, wanted)):,}"
    chosen, within = waiting_of(board, wanted)
    listed = waiting.listed(board, within, place, chosen, "", jobs.LOOKED_AT, _COUNTS)
    return _capped(len(listed.jobs), listed.looked_at, more=bool(listed.after))


def _count_failed(board: Board, wanted: Wanted) -> str:
    chosen = chosen_by(wanted)
    if chosen.is_empty:
        return f"{board.failed.summary().total:,}"
    if wanted.cause and not wanted.filter:
        kept = (each for each in board.failed.summary().causes if each.cause == wanted.cause)
        return f"{sum(each.count for each in kept):,}"
    found: list[Listing] = []
    for each in board.failed.indexes():
        with suppress(BackendUnavailable):
            look = partial(failures.listing, each, chosen, "", failures.LOOKED_AT)
            found.append(board.failed.ask(each, look))
    return _capped(
        sum(len(each.found) for each in found),
        sum(each.looked_at for each in found),
        more=any(each.after for each in found),
    )


def _capped(count: int, looked_at: int, *, more: bool) -> str:
    return f"{count:,} of the first {looked_at:,}, and more" if more else f"{count:,}"
