"""Why page: why a job does not run, or what holds a queue or class up; and its part of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from qframe.exceptions import QframeError
from qframe.operations.activity import ClassState
from qframe.operations.board import Board
from qframe.operations.one_job import Located
from qframe.operations.reading import NotYetError
from qframe.operations.waiting import At
from qframe.operations.why import asked, of_class, of_job, of_queue
from qframe.operations.why.reason import Explanation
from qframe.web.rendering import PageView

_MOST = 3
"""So many connections of a class are explained on its page."""
_SECONDS = 2.0
"""For how long an explanation is shown to everybody who looks."""


class Shown(NamedTuple):
    """What a page shows of why."""

    explanations: list[Explanation]
    is_late: bool = False
    """Whether it is not known yet."""


def page(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    """Explains what an address names. It is not renewed while it is open."""
    view.live = False
    query = view.query
    found = asked.explain(view.board, params["name"], query.get("kind"), query.get("connection"))
    return {"why": found}


def of_waiting(view: PageView, uuid: str, found: Located, at: float) -> Shown:
    """Returns why a job waits that was located at a moment; nothing if it runs or has ended."""

    def read() -> Iterator[Explanation]:
        made = of_job.of_page(view.board, uuid, found, at)
        if made is not None:
            yield made

    return _in_time(view, f"why job {uuid} {of_job.where_it_is(found)}", read)


def of_place(view: PageView, at: At) -> Shown:
    """Returns what holds a queue up, for the page of its jobs."""

    def read() -> Iterator[Explanation]:
        return _with_trouble(of_queue.of_page(view.board, at.connection, at.queue))

    return _in_time(view, f"why queue {at.connection.name} {at.queue}", read)


def of_states(view: PageView, job: str, states: list[ClassState]) -> Shown:
    """Returns what holds a class up on each connection, for its page."""
    names = list(dict.fromkeys(each.connection for each in states))[:_MOST]
    return _in_time(view, f"why class {names} {job}", lambda: _of_class(view.board, job, names))


def _of_class(board: Board, job: str, names: list[str]) -> Iterator[Explanation]:
    for name in names:
        with suppress(QframeError):
            yield from _with_trouble(of_class.of_page(board, board.connection(name), job))


def _with_trouble(made: Explanation) -> Iterator[Explanation]:
    """Yields an explanation with what holds something up alone, if anything does."""
    left = [each for each in made.reasons if each.level != "fine"]
    if left:
        yield made.model_copy(update={"reasons": left})


def _in_time(view: PageView, name: str, read: Callable[[], Iterable[Explanation]]) -> Shown:
    """Reads an explanation for as long as the page waits; later looks have it."""

    def made() -> list[Explanation]:
        with suppress(QframeError):
            return [*read()]
        return []

    try:
        return Shown(view.board.cached(name, _SECONDS, made, view.patience, late=_SECONDS))
    except NotYetError:
        return Shown([], is_late=True)
