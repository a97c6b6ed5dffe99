"""`qframe import`: move what waits in Celery, RQ or Resque into qframe's queues."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import Config, ConnectionOption, DryRun, Json
from qframe.console.text import print_error, print_rows

if TYPE_CHECKING:
    from qframe.importing import ImportRow


class Program(StrEnum):
    """The programs to move from."""

    celery = "celery"
    rq = "rq"
    resque = "resque"


def import_(  # noqa: PLR0913 (one for each option of the command)
    program: Annotated[Program, typer.Argument(help="What the jobs were queued by.")],
    url: Annotated[str, typer.Argument(help="Its Redis: redis://HOST:PORT/DB")],
    *,
    jobs: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="The name of a job here, or a TOML file of such names. Repeatable.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="OLD=NEW",
            help="The name of a queue here. Repeatable.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", help="The prefix of its keys, if not the default.", show_default=False
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Also leave every job there.")] = False,
    held: Annotated[
        bool, typer.Option("--held", help="Also move the jobs of Celery workers that died.")
    ] = False,
    dry_run: DryRun = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Move waiting jobs of Celery, RQ or Resque from Redis, each job once.

    Stop the old workers first. A job is removed there only once it is queued here, so you may
    repeat the command. What cannot be moved stays, with the reason, and the exit code is 1.
    Pickle is never read.

      qframe import celery redis://127.0.0.1:6379/0 --dry-run
      qframe import celery redis://127.0.0.1/0 --map shop.add=app.jobs.Add --queue celery=default
      qframe import rq redis://127.0.0.1:6379/0 --map names.toml
    """
    from qframe.importing import SOURCES, Mover, Names  # noqa: PLC0415 (with Redis' client)
    from qframe.importing.mapping import pairs  # noqa: PLC0415 (as above)

    names_of_jobs, names_of_queues = pairs("--map", jobs or ()), pairs("--queue", queue or ())
    queues = configured(config)
    queues.registry.load()
    names = Names(queues.registry, names_of_jobs, names_of_queues)
    source = SOURCES[program.value](url, prefix, held=held)
    counts = Mover(queues, names, source, connection).move(keep=keep, dry_run=dry_run)
    rows = [{**row._asdict(), "jobs": count} for row, count in sorted(counts.items())]
    for row in rows if dry_run else ():
        row["outcome"] = {"moved": "would move"}.get(row["outcome"], row["outcome"])
    print_rows(rows, empty=f"nothing waits in {program.value}'s queues", as_json=as_json)
    if kept := _kept(counts):
        raise typer.Exit(print_error(f"{kept} cannot be moved, and stay where they are", 1))


def _kept(counts: Counter[ImportRow]) -> int:
    return sum(count for row, count in counts.items() if row.outcome == "kept")
