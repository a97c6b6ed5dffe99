"""Class page: the rate, the times, the causes of failure and the last runs of one job class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from qframe.exceptions import BackendUnavailable
from qframe.failed.filters import ENDED, Filter, quoted
from qframe.operations import failures, finished, running
from qframe.operations.board import Board
from qframe.operations.failures import FailedState
from qframe.payload.text import one_line
from qframe.web import why_page
from qframe.web.periods import charted
from qframe.web.rendering import LOOK, PageView

_MOST = 20
"""So many causes, and so many runs, are shown."""


class LastRun(NamedTuple):
    """One job of the class that ran, or runs. `at` is a UTC time."""

    at: str
    uuid: str
    state: str
    where: str
    text: str


def one_class(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    job, board = params["job"], view.board
    found = charted(view, job)
    known = [] if found["is_late"] else board.classes(found["period"].hours, job)
    return {
        **found,
        "job": job,
        "states": known,
        "why": why_page.of_states(view, job, known),
        "causes": [each for each in board.failed.summary().causes if each.job == job][:_MOST],
        "runs": _last_runs(board, job),
    }


def _last_runs(board: Board, job: str) -> list[LastRun]:
    """Returns the jobs of a class that run, failed, or are tracked and have ended, latest first."""
    text = f"class:{quoted(job)}"
    runs = [*_running(board, job), *_failed(board, text)]
    known = {each.uuid for each in runs}
    runs += [each for each in _ended(board, text) if each.uuid not in known]
    return sorted(runs, key=lambda each: each.at, reverse=True)[:_MOST]


def _running(board: Board, job: str) -> Iterable[LastRun]:
    for each in running.seen(board):
        if each.job == job:
            where = f"{each.connection}:{each.queue}"
            yield LastRun(each.since, each.uuid, "running", where, f"on {each.host}:{each.pid}")


def _failed(board: Board, text: str) -> Iterator[LastRun]:
    chosen = Filter(text)
    for index in board.failed.indexes():
        with suppress(BackendUnavailable):
            look = partial(failures.listing, index, chosen, "", _MOST, LOOK / 4)
            for record in board.failed.ask(index, look).found:
                each = FailedState.of(record)
                where = f"{each.connection}:{each.queue}"
                yield LastRun(each.failed_at, each.uuid, "failed", where, one_line(each.error, 200))


def _ended(board: Board, text: str) -> Iterator[LastRun]:
    chosen = Filter(text, ENDED)
    for keeper in finished.keepers(board, chosen):
        with suppress(BackendUnavailable):
            look = partial(finished.listed, keeper, chosen, "", _MOST, LOOK / 4)
            for each in board.ask(keeper, look).jobs:
                where = f"{each.connection}:{each.queue}"
                yield LastRun(each.ended_at or "", each.uuid, each.state, where, each.error)
