"""How the commands write: tables, JSON, errors, and text that came from jobs made harmless."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from qframe.payload.text import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def say_error(message: str, code: int) -> int:
    """Write one line to stderr and give the exit code back."""
    line = f"qframe: {one_line(message, 1000)}\n"
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or a job has closed it
        print(line, end="", file=sys.stderr, flush=True)  # noqa: T201 (nothing where there is none)
    return code


def clock() -> str:
    """Give the time as lines begin with it.

    Of `time.time()`: left to itself, `strftime` reads a clock that is some milliseconds behind.
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time()))


def say(message: str) -> None:
    """Write one line to stdout."""
    typer.echo(encodable(printable(" ".join(message.splitlines()), 1000)))


def say_json(value: object) -> None:
    """Write one JSON document to stdout."""
    typer.echo(as_json(value, indent=2))


def as_json(value: object, *, indent: int | None = None, encoding: str | None = None) -> str:
    """Give JSON; what is unprintable or not in the encoding, stdout's, is escaped as JSON does."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if encodable(text, encoding) != text:
        return json.dumps(value, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def encodable(text: str, encoding: str | None = None) -> str:
    """Give text as its encoding, stdout's, can carry it: what is not in it is escaped."""
    encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say_facts(facts: Mapping[str, object]) -> None:
    """Write a line for each fact there is; one called `..._at` is a moment, in UTC."""
    for key, value in facts.items():
        if value is not None and value != "":
            zone = " UTC" if key.endswith("_at") else ""
            say(f"{key.removesuffix('_at'):<12}{value}{zone}")


def say_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    empty: str,
    as_json: bool = False,
) -> None:
    """Write a table of the rows, or the line `empty`; default: of all columns, as JSON always."""
    if as_json:
        say_json(rows)
    elif rows:
        screen().print(table(rows, columns or [*rows[0]]))
    else:
        say(empty)


def screen() -> Console:
    """Give what a table is printed on; wide where it is no terminal."""
    from rich.console import Console  # noqa: PLC0415 (a table is rare, and it costs 0.1 s)

    console = Console()
    if not console.is_terminal:
        console.width = 200
    return console


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Give a table of the columns of the rows."""
    from rich.table import Table  # noqa: PLC0415 (as above)
    from rich.text import Text  # noqa: PLC0415

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row[column], int | float) for row in rows)
        made.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in rows:
        made.add_row(*(Text(encodable(one_line(str(row[column]), 200))) for column in columns))
    return made
