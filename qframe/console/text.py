"""Text: tables, JSON, errors, and text from jobs made harmless."""

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


def print_error(message: str, code: int) -> int:
    """Writes one line to stderr and returns the exit code."""
    line = f"qframe: {one_line(message, 1000)}\n"
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or a job has closed it
        print(line, end="", file=sys.stderr, flush=True)  # noqa: T201 (nothing where there is none)
    return code


def clock() -> str:
    """Returns the time as lines begin with it.

    From `time.time()`: by itself, `strftime` reads a clock that is some milliseconds behind.
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time()))


def say(message: str) -> None:
    typer.echo(encodable(printable(" ".join(message.splitlines()), 1000)))


def print_json(value: object) -> None:
    typer.echo(as_json(value, indent=2))


def as_json(value: object, *, indent: int | None = None, encoding: str | None = None) -> str:
    """Returns JSON; escapes what is unprintable or not in the encoding, by default stdout's."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if encodable(text, encoding) != text:
        return json.dumps(value, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def encodable(text: str, encoding: str | None = None) -> str:
    """Returns text with what its encoding, by default stdout's, lacks escaped."""
    encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_facts(facts: Mapping[str, object]) -> None:
    """Writes a line for each fact; a value named `..._at` is a moment, in UTC."""
    for key, value in facts.items():
        if value is not None and value != "":
            zone = " UTC" if key.endswith("_at") else ""
            say(f"{key.removesuffix('_at'):<12}{value}{zone}")


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    empty: str,
    as_json: bool = False,
) -> None:
    """Writes a table of the rows, or the line `empty`; by default all columns, as JSON always."""
    if as_json:
        print_json(rows)
    elif rows:
        screen().print(table(rows, columns or [*rows[0]]))
    else:
        say(empty)


def size_text(count: int | None, *, approximate: bool) -> str:
    """Returns how many jobs there are: `~5` if that is an estimate, `?` if it is unknown."""
    return "?" if count is None else f"{'~' * approximate}{count:,}"


def screen() -> Console:
    """Returns the console for tables; wide if it is no terminal."""
    from rich.console import Console  # noqa: PLC0415 (a table is rare, and it costs 0.1 s)

    console = Console()
    if not console.is_terminal:
        console.width = 200
    return console


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
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
