"""`qframe jobs`: lists what can be dispatched."""

from __future__ import annotations

from typing import Annotated

import typer

from qframe.console import completion
from qframe.console.connections import configured
from qframe.console.options import Config, Json
from qframe.console.text import print_error, print_json, print_rows, say
from qframe.exceptions import ConfigurationError
from qframe.operations.dispatchable import JobField, JobKind, dispatchable
from qframe.payload.text import one_line

_ANY = "any"


def jobs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Only jobs of this name or pattern; one alone is shown in full.",
            autocompletion=completion.jobs,
        ),
    ] = "",
    *,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List what can be dispatched: job classes and their fields.

    It imports the modules of `jobs`; without any, the project's files that define jobs and do
    nothing else when imported.

      qframe jobs
      qframe jobs 'app.mail.*' --json
      qframe jobs app.jobs.SendWelcome
    """
    found = dispatchable(configured(config), name)
    if name and not found.jobs:
        raise ConfigurationError(f"no job is called {one_line(name, 100)!r}; qframe jobs lists all")
    if as_json:
        print_json([each.model_dump() for each in found.jobs])
    elif name and len(found.jobs) == 1:
        _show(found.jobs[0])
    else:
        rows = [_row(each) for each in found.jobs]
        print_rows(rows, empty="no job can be dispatched")
    for module, why in found.unread.items():
        print_error(f"{module}: {why}", 0)


def _row(kind: JobKind) -> dict[str, str]:
    return {
        "job": kind.job,
        "fields": ", ".join(map(_described, kind.fields)),
        "queue": _place(kind),
        "about": kind.about,
    }


def _place(kind: JobKind) -> str:
    return f"{kind.connection}:{kind.queue}" if kind.connection else kind.queue


def _described(field: JobField) -> str:
    typed = f"{field.name}: {field.type or _ANY}"
    return typed if field.required else f"{typed} = {field.default}"


def _show(kind: JobKind) -> None:
    say(f"{'job':<12}{kind.job}")
    if kind.about:
        say(f"{'about':<12}{kind.about}")
    if place := _place(kind):
        say(f"{'queue':<12}{place}")
    for option, value in kind.options.items():
        say(f"{option:<12}{value}")
    for field in kind.fields:
        say(f"{'field':<12}{_described(field)}")
