"""Why page: why a job does not run, or what holds a queue or class up; and its part of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from qframe.exceptions import QframeError
from qframe.operations.activity import ClassState
from qframe.operations.board import Board
from qframe.operations.one_job import Located
from qframe.operations.waiting import At
from qframe.operations.why import asked, of_class, of_job, of_queue
from qframe.operations.why.reason import Explanation
from qframe.web.rendering import PageView

_MOST = 3
"""So many connections of a class are explained on its page."""


def page(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    """Explains what an address names. It is not renewed while it is open."""
    view.live = False
    query = view.query
    found = asked.explain(view.board, params["name"], query.get("kind"), query.get("connection"))
    return {"why": found}


def of_waiting(board: Board, uuid: str, found: Located, at: float) -> Explanation | None:
    """Returns why a job waits that was located at a moment; None if it runs or has ended."""
    with suppress(QframeError):
        return of_job.of_page(board, uuid, found, at)
    return None


def of_place(board: Board, at: At) -> Explanation | None:
    """Returns what holds a queue up, for the page of its jobs; None for nothing."""
    with suppress(QframeError):
        return _with_trouble(of_queue.of_page(board, at.connection, at.queue))
    return None


def of_states(board: Board, job: str, states: list[ClassState]) -> list[Explanation]:
    """Returns what holds a class up on each connection, for its page."""
    names = list(dict.fromkeys(each.connection for each in states))[:_MOST]
    return [*_of_class(board, job, names)]


def _of_class(board: Board, job: str, names: list[str]) -> Iterator[Explanation]:
    for name in names:
        with suppress(QframeError):
            made = _with_trouble(of_class.of_page(board, board.connection(name), job))
            if made is not None:
                yield made


def _with_trouble(made: Explanation) -> Explanation | None:
    """Returns an explanation with what holds something up alone; None if nothing does."""
    left = [each for each in made.reasons if each.level != "fine"]
    return made.model_copy(update={"reasons": left}) if left else None
