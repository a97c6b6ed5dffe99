"""Options: those that several commands have, and the checks of their values."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from qframe.console import completion
from qframe.console.numbers import MANY, whole
from qframe.exceptions import ConfigurationError
from qframe.payload.text import one_line
from qframe.payload.timing import seconds_until

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="QFRAME_CONFIG", help="Configuration file.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConnectionOption = Annotated[
    str | None,
    typer.Option(
        "--connection",
        help="Only this connection.",
        show_default=False,
        autocompletion=completion.connections,
    ),
]
ConnectionArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONNECTION",
        help="The connection, as with --connection.",
        show_default=False,
        autocompletion=completion.connections,
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue", help="Queue name.", show_default=False, autocompletion=completion.queues
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done; change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoBin = Annotated[
    bool, typer.Option("--no-bin", help="Remove for good: `qframe undo` cannot take it back.")
]
Where = Annotated[
    str,
    typer.Option(
        "--where",
        help="Filter, such as 'queue:mail* older:5m' (docs/reference/filters.md).",
        show_default=False,
    ),
]
Limit = Annotated[int, whole(MANY, "--limit", help="Most rows to show; 0: all.")]

T = TypeVar("T")


def first(records: Iterable[T], limit: int) -> list[T]:
    """Returns at most so many records, all for 0. Raises `ConfigurationError`."""
    not_negative("--limit", limit)
    return list(itertools.islice(records, min(limit, sys.maxsize) or None))


def named_connection(argument: str | None, option: str | None) -> str | None:
    """Returns the connection that an argument or `--connection` names, None if neither does.

    Raises `ConfigurationError` if they name two.
    """
    if argument and option and argument != option:
        raise ConfigurationError(
            f"two connections are named, {one_line(argument, 60)!r} and "
            f"{one_line(option, 60)!r}: name one"
        )
    return argument or option


def the_connection(argument: str | None, option: str | None, command: str) -> str:
    """Returns the connection that the words of a command name. Raises `ConfigurationError`."""
    found = named_connection(argument, option)
    if found is None:
        raise ConfigurationError(f"say which connection: qframe {command} CONNECTION")
    return found


def not_negative(option: str, value: int) -> None:
    """Raises `ConfigurationError` for a number below 0."""
    if value < 0:
        raise ConfigurationError(f"{option} must not be negative, got {value}")


def seconds_of(option: str, value: float) -> float:
    """Returns the seconds of an option. Raises `ConfigurationError` for a wrong value."""
    try:
        return seconds_until(value, option)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def hours_ago(option: str, hours: float) -> float:
    """Returns the epoch time so many hours ago. Raises `ConfigurationError`."""
    if hours < 0 or not math.isfinite(hours):
        raise ConfigurationError(f"{option} must not be negative or infinite, got {hours:g}")
    return max(0.0, time.time() - hours * 3600)
