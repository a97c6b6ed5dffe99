"""Commands about batches: batch, batches, cancel-batch, retry-batch, prune-batches."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console import stored
from qframe.console.connections import JobConnections, configured, find_failed
from qframe.console.follow import FollowState, followed_to_end
from qframe.console.numbers import MOST_HOURS, seconds
from qframe.console.options import Config, ConnectionOption, Json, Limit, Where, first, hours_ago
from qframe.console.text import print_error, print_facts, print_json, print_rows, say
from qframe.contracts.batch import BatchRecord
from qframe.dispatch.batch import Batch
from qframe.exceptions import ConfigurationError
from qframe.features.batches import BatchStore
from qframe.operations import lists
from qframe.operations.batches import BatchState, state_of
from qframe.payload.text import count_of, one_line

_NAMED = 10
"""So many failed jobs are named; `--json` names more."""
_COLUMNS = ("id", "name", "state", "progress", "done", "failed", "pending", "total", "created_at")

Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the batch: `Batch.id`.")]


def batch(
    identity: Id,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "--watch", help="Refresh until the batch has finished.")
    ] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Show the progress of a batch and its failed jobs.

    With --follow the exit code is 0 when every member is done, 1 when some have failed or it was
    cancelled.

      qframe batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
      qframe batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3 --follow
    """
    _, found = _found(JobConnections(configured(config), connection), identity)
    code = 0
    if follow:
        found, code = followed_to_end(found, Batch.fresh, _standing, _has_failed, as_json=as_json)
    _show(found, as_json=as_json)
    return code


def batches(
    *,
    limit: Limit = 50,
    where: Where = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the batches, latest first.

    qframe batches
    qframe batches --connection redis --limit 10 --json
    qframe batches --where 'name:import* state:running'
    """
    lists.BATCHES.chosen((), where)  # fails even if no store answers
    known = (
        record
        for record in stored.everything(JobConnections(configured(config), connection), _kept)
        if lists.BATCHES.chosen([BatchState.of(record)], where)
    )
    rows = [_row(record) for record in first(known, limit)]
    if not as_json:
        rows = [{**row, "progress": f"{row['progress']:.0%}"} for row in rows]
    print_rows(rows, _COLUMNS, empty="no batches", as_json=as_json)
    if not as_json and next(known, None) is not None:
        say("and more: --limit 0 shows all")


def cancel_batch(
    identity: Id, *, connection: ConnectionOption = None, config: Config = None
) -> int:
    """Cancel a batch; its `then` is not run.

    A cancelled batch takes no more jobs. Waiting members still run, unless they have the middleware
    SkipIfBatchCancelled or check `self.batch()`. Exits 1 if the batch was already cancelled or
    finished.

      qframe cancel-batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
    """
    _, found = _found(JobConnections(configured(config), connection), identity)
    if found.cancel():
        say(f"cancelled {found.id}")
        return 0
    how = "cancelled" if found.fresh().is_cancelled else "finished"
    return print_error(f"{found.id} is {how} already", 1)


def retry_batch(
    ids: Annotated[list[str], typer.Argument(help="Ids of batches.")],
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Queue the failed jobs of batches again.

    A cancelled batch is resumed. When all members are done, `then` runs. Jobs that were skipped
    because the batch was cancelled stay skipped.

      qframe retry-batch 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
    """
    chosen = JobConnections(configured(config), connection)
    found = [_found(chosen, identity) for identity in ids]
    every = JobConnections(chosen.queues, None)
    return max(_retry(every, *each) for each in found)


def prune_batches(
    *,
    hours: Annotated[float, seconds(most=MOST_HOURS, help="Hours to keep finished batches.")] = 24,
    unfinished: Annotated[
        float | None,
        seconds(
            most=MOST_HOURS,
            help="Also unfinished batches older than this.",
            show_default=False,
        ),
    ] = None,
    cancelled: Annotated[
        float | None,
        seconds(
            most=MOST_HOURS,
            help="Also batches cancelled longer ago than this.",
            show_default=False,
        ),
    ] = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Delete batches that finished over --hours (24) ago; for cron.

    qframe prune-batches --hours 48
    qframe prune-batches --hours 48 --unfinished 168 --cancelled 168
    """
    before = hours_ago("--hours", hours)
    more = {
        name: None if given is None else hours_ago(f"--{name}", given)
        for name, given in (("unfinished", unfinished), ("cancelled", cancelled))
    }
    kept = JobConnections(configured(config), connection)
    done = kept.each(lambda queue: _kept(queue).prune(before, **more))
    say(f"removed {sum(count for _, count in done)} batches")


# -- finding them ---------------------------------------------------------------------------------


def _kept(queue: Connection) -> BatchStore:
    kept = queue.batches()
    if kept is None:
        raise ConfigurationError(f"the connection {queue.name!r} keeps no batches")
    return kept


def _found(connections: JobConnections, identity: str) -> tuple[Connection, Batch]:
    queue, record = stored.find(connections, identity, _kept, "batch", "qframe batches")
    return queue, Batch(queue, record)


def _retry(connections: JobConnections, queue: Connection, found: Batch) -> int:
    """Queues the failed jobs of a batch again; returns the exit code."""
    batches, record = _kept(queue), found.record
    was_cancelled = record.cancelled_at is not None
    # The jobs may have been retried one by one, which leaves the batch cancelled.
    if not (record.failed or (was_cancelled and "catch" in record.notified)):
        say(f"{found.id}: no member has failed")
        return 0
    uuids = batches.reopen(found.id)  # first, or the jobs could find it cancelled
    stores = connections.failed_stores()
    kept = [each for each in (find_failed(stores, uuid) for uuid in uuids) if each is not None]
    count, code = connections.queue_again(kept)
    words = [f"{found.id}: queued {count_of(count, 'failed job', 'failed jobs')} again"]
    if len(kept) < len(uuids):
        words.append(
            f"{count_of(len(uuids) - len(kept), 'is', 'are')} not among the failed jobs (any more)"
        )
    if was_cancelled:
        words.append("the batch is no longer cancelled")
    say("; ".join(words))
    return code


def _has_failed(found: Batch) -> bool:
    return found.has_failures or found.is_cancelled


# -- how it is shown ------------------------------------------------------------------------------


def _row(record: BatchRecord) -> dict[str, Any]:
    return BatchState.of(record).model_dump()


def _show(found: Batch, *, as_json: bool) -> None:
    failed = list(found.failed_jobs) if found.has_failures else []
    row = _row(found.record)
    if as_json:
        print_json({**row, "failed_jobs": failed})
        return
    print_facts({**row, "progress": _percent(found)})
    for uuid in failed[:_NAMED]:
        say(f"{'failed job':<12}{uuid or 'one that could not be queued'}")
    if found.failed > _NAMED:
        say(f"and {found.failed - _NAMED} more: --json names up to 1,000")


def _percent(found: Batch) -> str:
    return f"{math.floor(found.progress * 100)}%"


def _standing(found: Batch) -> FollowState:
    record, state = found.record, state_of(found.record)
    failed = f"{record.failed} failed  " if record.failed else ""
    return FollowState(
        record.is_finished,
        state,
        record.settled if record.total else 1,
        record.total or 1,
        failed + one_line(record.name, 60),
        f"{state} {_percent(found)} of {found.total}  {failed}".rstrip(),
    )
