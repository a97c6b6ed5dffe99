"""`qframe move`: move what waits on one connection to another, while both are used."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from qframe.console import completion
from qframe.console.connections import configured
from qframe.console.options import Config, DryRun, Json
from qframe.console.text import print_error, print_rows
from qframe.payload.text import count_of, queue_name
from qframe.worker import handlers

if TYPE_CHECKING:
    from qframe.moving import MoveRow

_STOPPED = 130


def move(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The connection to empty.",
            autocompletion=completion.connections,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="The connection to fill.",
            autocompletion=completion.connections,
        ),
    ],
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="Only this queue. Repeatable.",
            show_default=False,
            autocompletion=completion.queues,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Go on until nothing is left to move.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Move jobs to another connection while both are used.

    Ready, delayed, buried and failed jobs move with their due times, attempts and locks, and chains
    and batches with them; a job that runs ends where it is. Repeat the command at any time, also if
    it was killed.

      qframe move database postgres --dry-run
      qframe move database postgres
      qframe move redis postgres --queue mail --wait

    \b
    Exit codes: 0 all has moved, 1 something stays, 2 usage, 69 a connection did not answer,
    130 stopped by Ctrl-C.
    """  # noqa: D301 (\b keeps typer from folding the lines)
    from qframe.moving import QueueMover  # noqa: PLC0415 (for this command alone)

    names = [queue_name(each) for each in queue or ()]
    with _stopping() as stops:
        progress = _Progress(as_json=as_json)
        mover = QueueMover(configured(config), source, target, progress, lambda: bool(stops))
        if not dry_run:
            for row, count in mover.staying().items():
                words = count_of(count, f"{row.what} stays", f"{row.what}s stay")
                print_error(f"{words} on {source}: {row.why}", 0)
        counts = mover.waiting(names) if dry_run else mover.move(names, wait=wait)
        progress.end()
    rows = [{**row._asdict(), "jobs": count} for row, count in sorted(counts.items())]
    print_rows(rows, empty=f"nothing waits on {source}", as_json=as_json)
    if stops:
        text = "stopped: repeat the command to move the rest"
        raise typer.Exit(print_error(text, _STOPPED))
    if not dry_run and (stays := _staying(counts)):
        left = count_of(stays, "job stays", "jobs stay")
        raise typer.Exit(print_error(f"{left} on {source}", 1))


def _staying(counts: Counter[MoveRow]) -> int:
    return sum(count for row, count in counts.items() if row.outcome == "stays")


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """Note signals that ask the command to stop; a second one ends it at once."""
    stops: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, _: object) -> None:
        stops.append(number)
        if len(stops) > 1:
            raise KeyboardInterrupt

    try:
        for each in numbers:
            handlers.take(each, stop)
        yield stops
    finally:
        for each in numbers:
            handlers.give_back(each)


class _Progress:
    """A line on stderr that counts the jobs moved so far, on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._shown = sys.stderr.isatty() and not as_json
        self._written = False

    def __call__(self, moved: int) -> None:
        if self._shown:
            self._written = True
            print(f"\rmoved {moved:,}", end="", file=sys.stderr, flush=True)  # noqa: T201 (a line that is overwritten)

    def end(self) -> None:
        if self._written:
            print(file=sys.stderr)  # noqa: T201 (as above)
