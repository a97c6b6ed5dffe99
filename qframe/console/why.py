"""`qframe why`: says in sentences why a job does not run, or what holds a queue or class up."""

from __future__ import annotations

from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import Config, ConnectionOption, Json
from qframe.console.text import print_json, say
from qframe.operations.board import Board
from qframe.operations.why import asked
from qframe.operations.why.reason import Explanation


def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="UUID|QUEUE|CLASS", help="A job's id, its beginning or end; a queue; a class."
        ),
    ],
    *,
    kind: Annotated[
        str,
        typer.Option("--kind", help="Which it is, if it may be several: job, queue, class."),
    ] = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Say why a job does not run, or what holds a queue or class up.

    One sentence for each reason, the first to mend first, with the time at which it was read.
    Exits 0 if there is nothing to mend, 1 if there is, 3 if nothing is known of it.

      qframe why 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe why mail
      qframe why app.jobs.SendWelcome --json
    """
    board = Board(configured(config))
    found = asked.explain(board, what, kind, connection or "", imports=True)
    if as_json:
        print_json(found.model_dump())
        return found.code
    for number, each in enumerate(found.found):
        if number:
            say("")
        _print(each, found.asked)
    return found.code


def _print(each: Explanation, asked_for: str) -> None:
    say(_title(each, asked_for))
    for number, reason in enumerate(each.reasons, 1):
        say(f"{number:>3}. {reason.text}  (read {reason.read_at} UTC)")
        if reason.mend:
            say(f"     -> {reason.mend}")
    for text in each.unknown:
        say(f"  ?  not known: {text}")


def _title(each: Explanation, asked_for: str) -> str:
    """Returns what is explained, and how it stands."""
    where = f"{each.connection}:{each.queue}" if each.queue else each.connection
    name = " ".join(part for part in (each.job, each.uuid) if part)
    if each.about == "queue":
        return f"{where}: {each.state}"
    return f"{name or asked_for}{f' on {where}' if where else ''}: {each.state}"
