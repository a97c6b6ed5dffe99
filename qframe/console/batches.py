"""Commands about batches: batch, batches, cancel-batch, retry-batch, prune-batches."""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console.common import Config, ConnectionOption, Json, configured, each_answering
from qframe.console.text import say, say_error, say_json, say_rows
from qframe.contracts.batch import BatchRecord
from qframe.contracts.failed import FailedJob
from qframe.dispatch.batch import Batch
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError, QframeError
from qframe.failed import search
from qframe.failed.retry import retry as requeue
from qframe.features.batches import Batches
from qframe.manager import QueueManager
from qframe.payload.text import one_line
from qframe.payload.timing import iso

_HOUR = 3600
_EVERY = 0.2
"""Seconds between two looks at a batch that is followed."""
_NAMED = 10
"""So many failed jobs are named; `--json` names more."""
_INTERRUPTED = 130
_COLUMNS = ("id", "name", "state", "progress", "done", "failed", "pending", "total", "created_at")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch, as `Batch.id` gives it.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("batch")(batch)
    app.command("batches")(batches)
    app.command("cancel-batch")(cancel_batch)
    app.command("retry-batch")(retry_batch)
    app.command("prune-batches")(prune_batches)


def batch(
    identity: Id,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "--watch", help="Show it until it has finished.")
    ] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Show how a batch stands: what is done, has failed or is to come, and which jobs failed.

    With --follow the exit code is 0 when every member is done, 1 when some have failed or it was
    cancelled.

    \b
      qframe batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
      qframe batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3 --follow
    """  # noqa: D301 (\b keeps typer from folding the examples)
    _, found = _found(configured(config), connection, identity)
    interrupted = False
    if follow:
        found, interrupted = _follow(found, as_json=as_json)
    _show(found, as_json=as_json)
    if interrupted:
        return _INTERRUPTED
    return int(follow and (found.has_failures or found.is_cancelled))


def batches(
    *,
    limit: Annotated[int, typer.Option(help="Rows at most; 0: all.")] = 50,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the batches, latest first.

    \b
      qframe batches
      qframe batches --connection redis --limit 10 --json
    """  # noqa: D301 (\b keeps typer from folding the examples)
    if limit < 0:
        raise ConfigurationError(f"--limit must not be negative, got {limit}")
    known = _everything(configured(config), connection)
    rows = [_row(record) for record in itertools.islice(known, limit or None)]
    if as_json:
        say_json(rows)
        return
    shown = [{**row, "progress": f"{row['progress']:.0%}"} for row in rows]
    say_rows(shown, _COLUMNS, empty="no batches")
    if next(known, None) is not None:
        say("and more: --limit 0 shows all")


def cancel_batch(
    identity: Id, *, connection: ConnectionOption = None, config: Config = None
) -> int:
    """Cancel a batch: `then` does not follow it, and it takes no more jobs.

    Members that wait still run, unless they go through the middleware SkipIfBatchCancelled or ask
    `self.batch()`. Exit code 1 when it was cancelled or had finished before.

    \b
      qframe cancel-batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
    """  # noqa: D301 (\b keeps typer from folding the examples)
    _, found = _found(configured(config), connection, identity)
    if found.cancel():
        say(f"cancelled {found.id}")
        return 0
    how = "cancelled" if found.fresh().is_cancelled else "finished"
    return say_error(f"{found.id} is {how} already", 1)


def retry_batch(
    ids: Annotated[list[str], typer.Argument(help="Ids of batches.")],
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Queue the failed jobs of batches again; a batch that was cancelled no longer is.

    When then all members are done, `then` follows. What was skipped because the batch was cancelled
    stays so.

    \b
      qframe retry-batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
    """  # noqa: D301 (\b keeps typer from folding the examples)
    queues = configured(config)
    found = [_found(queues, connection, identity) for identity in ids]
    reached = each_answering(queues, None, lambda queue: queues.failed_store(queue.name))
    stores = search.distinct(store for _, store in reached)
    return max(_retry(queues, stores, *each) for each in found)


def prune_batches(
    *,
    hours: Annotated[float, typer.Option(help="How long finished ones are kept.")] = 24,
    unfinished: Annotated[
        float | None,
        typer.Option(help="Also unfinished or untold ones made longer ago.", show_default=False),
    ] = None,
    cancelled: Annotated[
        float | None,
        typer.Option(help="Also cancelled ones, cancelled longer ago.", show_default=False),
    ] = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove batches that finished more than --hours (24) ago; for a cron job.

    \b
      qframe prune-batches --hours 48
      qframe prune-batches --hours 48 --unfinished 168 --cancelled 168
    """  # noqa: D301 (\b keeps typer from folding the examples)
    before = _before("--hours", hours)
    more = {
        "unfinished": None if unfinished is None else _before("--unfinished", unfinished),
        "cancelled": None if cancelled is None else _before("--cancelled", cancelled),
    }
    done = each_answering(
        configured(config), connection, lambda queue: _kept(queue).prune(before, **more)
    )
    say(f"removed {sum(count for _, count in done)} batches")


def _before(option: str, hours: float) -> float:
    """Give the moment so many hours ago, an epoch time."""
    if hours < 0 or not math.isfinite(hours):
        raise ConfigurationError(f"{option} must not be negative or infinite, got {hours:g}")
    return max(0.0, time.time() - hours * _HOUR)


# -- finding them ---------------------------------------------------------------------------------


def _kept(queue: Connection) -> Batches:
    kept = queue.batches()
    if kept is None:
        raise ConfigurationError(f"the connection {queue.name!r} keeps no batches")
    return kept


def _found(queues: QueueManager, connection: str | None, identity: str) -> tuple[Connection, Batch]:
    """Give a batch and its connection: the one it was dispatched on where several know it."""
    done = each_answering(queues, connection, lambda queue: _kept(queue).read(identity))
    found = [(queue, record) for queue, record in done if record is not None]
    if not found:
        raise QframeError(f"no batch {identity[:100]!r}; qframe batches lists them")
    queue, record = next((each for each in found if each[0].name == each[1].connection), found[0])
    return queue, Batch(queue, record)


def _everything(queues: QueueManager, connection: str | None) -> Iterator[BatchRecord]:
    """Give the batches in the stores that answer, latest first, each once."""

    def reach(queue: Connection) -> Batches:
        kept = _kept(queue)
        kept.page(1)
        return kept

    several = [kept.all() for _, kept in each_answering(queues, connection, reach)]
    seen: set[str] = set()
    for record in heapq.merge(*several, key=lambda each: -each.created_at):
        if record.id not in seen and connection in {None, record.connection}:
            seen.add(record.id)
            yield record


# -- retrying -------------------------------------------------------------------------------------


def _retry(queues: QueueManager, stores: list[FailedStore], queue: Connection, found: Batch) -> int:
    """Queue the failed jobs of a batch again; gives the exit code."""
    batches, record = _kept(queue), found.record
    uuids = batches.failures(found.id, record.failed) if record.failed else ()
    # Without failures it may be that they were retried one by one, which leaves it cancelled.
    if not uuids and (record.cancelled_at is None or "catch" not in record.notified):
        say(f"{found.id}: no member has failed")
        return 0
    revived = batches.revive(found.id)  # first, or the jobs could find it cancelled
    kept = [each for each in (search.find(stores, uuid) for uuid in uuids) if each is not None]
    count, trouble = _requeue(queues, kept)
    if not uuids and record.is_finished:
        batches.close(found.id)  # it is: this has what follows its end looked at again
    said = [f"{found.id}: queued {count} failed jobs again"]
    if len(kept) < len(uuids):
        said.append(f"{len(uuids) - len(kept)} are not among the failed jobs (any more)")
    if revived:
        said.append("the batch is no longer cancelled")
    say("; ".join(said))
    return int(trouble > 0)


def _requeue(queues: QueueManager, kept: list[tuple[FailedStore, FailedJob]]) -> tuple[int, int]:
    """Queue failed jobs again; gives how many were, and how many could not be."""
    count, trouble = 0, 0
    for store, record in kept:
        try:
            count += requeue(queues, store, record)
        except QframeError as error:
            trouble += 1
            say_error(f"{record.uuid} is kept: {error}", 0)
    return count, trouble


# -- how it is shown ------------------------------------------------------------------------------


def _state(record: BatchRecord) -> str:
    if record.cancelled_at is not None:
        return "cancelled"
    return "finished" if record.is_finished else "running"


def _row(record: BatchRecord) -> dict[str, Any]:
    moments = {
        name: None if at is None else iso(at)
        for name, at in (
            ("created_at", record.created_at),
            ("cancelled_at", record.cancelled_at),
            ("finished_at", record.finished_at),
        )
    }
    return {
        "id": record.id,
        "name": record.name,
        "connection": record.connection,
        "state": _state(record),
        "progress": round(record.settled / record.total, 4) if record.total else 1.0,
        "done": record.done,
        "failed": record.failed,
        "pending": record.pending,
        "total": record.total,
        **moments,
    }


def _show(found: Batch, *, as_json: bool) -> None:
    failed = list(found.failed_jobs) if found.has_failures else []
    row = _row(found.record)
    if as_json:
        say_json({**row, "failed_jobs": failed})
        return
    for key, value in row.items():
        if value is None or value == "":
            continue
        text = f"{value} UTC" if key.endswith("_at") else str(value)
        say(f"{key.removesuffix('_at'):<12}{_percent(found) if key == 'progress' else text}")
    for uuid in failed[:_NAMED]:
        say(f"{'failed job':<12}{uuid or 'one that could not be queued'}")
    if found.failed > _NAMED:
        say(f"and {found.failed - _NAMED} more: --json names up to 1,000")


def _percent(found: Batch) -> str:
    """Show the progress in whole percents, never more than there is."""
    return f"{math.floor(found.progress * 100)}%"


def _follow(first: Batch, *, as_json: bool) -> tuple[Batch, bool]:
    """Show a batch until it has finished; gives how it stood last, and whether by Ctrl-C."""
    last = first
    tell, close = _display(as_json=as_json)
    try:
        for last in _changes(first):
            tell(last)
    except KeyboardInterrupt:
        return last, True
    finally:
        close()
    return last, False


def _display(*, as_json: bool) -> tuple[Callable[[Batch], None], Callable[[], None]]:
    """Give what shows a batch that is followed, and what ends the showing."""
    if as_json:
        return lambda _batch: None, lambda: None
    if not sys.stdout.isatty():
        said: list[str] = [""]

        def tell(found: Batch) -> None:
            line = _line(found)
            if line != said[0]:
                say(line)
                said[0] = line

        return tell, lambda: None
    return _bar()


def _line(found: Batch) -> str:
    failed = f"  {found.failed} failed" if found.failed else ""
    return f"{_state(found.record)} {_percent(found)} of {found.total}{failed}"


def _bar() -> tuple[Callable[[Batch], None], Callable[[], None]]:
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
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    task = bar.add_task("", total=None, state="")
    bar.start()

    def tell(found: Batch) -> None:
        record = found.record
        failed = f"{record.failed} failed  " if record.failed else ""
        bar.update(
            task,
            total=record.total or 1,
            completed=record.settled if record.total else 1,
            state=_state(record),
            description=failed + one_line(record.name, 60),
        )

    return tell, bar.stop


def _changes(found: Batch) -> Iterator[Batch]:
    """Give a batch, and again when it is another, until it has finished."""
    yield found
    while not found.is_finished:
        time.sleep(_EVERY)
        now = found.fresh()
        if now.record != found.record:
            found = now
            yield found
