"""Follow: shows a job or a batch until its end: a bar on a terminal, else a line per change."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qframe.console.text import say

if TYPE_CHECKING:
    from rich.progress import Progress

_EVERY = 0.2
"""Seconds between two looks."""
_INTERRUPTED = 130

T = TypeVar("T")


class FollowState(NamedTuple):
    """The progress of a job or batch; `line` describes it if there is no bar."""

    is_over: bool
    state: str
    done: float
    total: float
    description: str
    line: str


def followed(
    found: T,
    fresh: Callable[[T], T],
    standing: Callable[[T], FollowState],
    *,
    as_json: bool,
    counts: bool = False,
) -> Iterator[T]:
    """Shows the progress until the end, and yields it at each look.

    As JSON it shows nothing. `counts`: the bar also shows the numbers done and in total.
    """
    bar = _bar(counts=counts) if sys.stdout.isatty() and not as_json else None
    shown = ""
    with bar or contextlib.nullcontext():
        while True:
            now = standing(found)
            if bar is not None:
                bar.update(
                    bar.task_ids[0],
                    completed=now.done,
                    total=now.total,
                    state=now.state,
                    description=now.description,
                )
            elif now.line != shown and not as_json:
                shown = now.line
                say(shown)
            yield found
            if now.is_over:
                return
            time.sleep(_EVERY)
            found = fresh(found)


def followed_to_end(
    found: T,
    fresh: Callable[[T], T],
    standing: Callable[[T], FollowState],
    has_failed: Callable[[T], bool],
    *,
    as_json: bool,
) -> tuple[T, int]:
    """Shows the progress until the end or Ctrl-C; returns the last look, and the exit code."""
    code = 0
    try:
        for look in followed(found, fresh, standing, as_json=as_json, counts=True):
            found, code = look, int(has_failed(look))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    return found, code


def _bar(*, counts: bool) -> Progress:
    from rich.progress import (  # noqa: PLC0415 (it costs, and is rare)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        TextColumn("{task.fields[state]}", markup=False),
        BarColumn(),
        *([MofNCompleteColumn()] if counts else []),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    bar.add_task("", total=None, state="")
    return bar
