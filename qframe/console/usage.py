"""`qframe usage`: which classes or tags use the workers."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from qframe.console.connections import configured
from qframe.console.options import Config, ConnectionOption, Json, Limit, first
from qframe.console.text import print_error, print_rows
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.failed.filters import moment
from qframe.operations.board import Board
from qframe.operations.usage import LONGEST, By, UsageState
from qframe.payload.text import one_line
from qframe.payload.timing import lasting

_COLUMNS = (
    "connection", "attempts", "run", "share", "processor", "memory", "waited", "wait_mean",
    "wait_p95", "wait_longest",
)  # fmt: skip


def usage(
    *,
    by: Annotated[str, typer.Option("--by", help="`class` or `tag`.")] = "class",
    last: Annotated[
        str, typer.Option("--last", help="The time until now: 30m, 12h, 7d, up to 14d.")
    ] = "1d",
    limit: Limit = 100,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Say which classes or tags have used the workers most.

    Tags are counted that metric_tags in the configuration selects.

      qframe usage
      qframe usage --by tag --last 7d
      qframe usage --by class --last 2h --json
    """
    queues = configured(config)
    what = _by(by)
    hours = _hours(last)
    if what == "tag" and not queues.settings.metric_tags:
        raise ConfigurationError("no tags are counted: metric_tags selects them, as ['tenant:*']")
    if connection is not None:
        queues.connection(connection)
    board = Board(queues, connection)
    found = first(board.usage(hours, what), limit)
    _name_silent(board)
    rows = [each.model_dump() if as_json else _row(each, what) for each in found]
    print_rows(rows, (what, *_COLUMNS), empty="nothing was measured", as_json=as_json)


def _name_silent(board: Board) -> None:
    """Names the connections that do not answer. Raises `BackendUnavailable` if none does."""
    lines = [*dict.fromkeys(board.silent.values())]  # connections may share a store
    if lines and all(each.name in board.silent for each in board.connections()):
        raise BackendUnavailable("; ".join(lines))
    for line in lines:
        print_error(line, 0)


def _by(text: str) -> By:
    if text == "class":
        return "class"
    if text == "tag":
        return "tag"
    raise ConfigurationError(f"--by takes class or tag, not {one_line(text, 60)!r}")


def _hours(text: str) -> float:
    hours = (time.time() - moment("--last", [text])) / 3600
    if not 0 < hours <= LONGEST + 0.01:
        raise ConfigurationError(
            f"--last takes up to 14d, for which metrics are kept, not {one_line(text, 60)}"
        )
    return min(hours, LONGEST)


def _row(state: UsageState, what: str) -> dict[str, Any]:
    partly = 0 < state.measured < state.attempts
    return {
        what: state.name,
        "connection": state.connection,
        "attempts": state.attempts,
        "run": _span(state.run_seconds),
        "share": f"{state.share:.0%}",
        "processor": _span(state.processor_seconds) + (" (partly known)" if partly else ""),
        "memory": "" if state.memory_mb is None else f"{state.memory_mb:,} MB",
        "waited": _span(state.wait_seconds),
        "wait_mean": _span(state.wait_mean),
        "wait_p95": _span(state.wait_p95),
        "wait_longest": _span(state.wait_longest),
    }


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return lasting(seconds) if seconds >= 60 else f"{seconds:.3g}s"  # noqa: PLR2004 (a minute)
