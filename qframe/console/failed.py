"""Commands about failed jobs: failed, retry, forget, flush, prune."""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import Annotated, Any

import typer

from qframe.console.common import (
    Config,
    ConnectionOption,
    Json,
    QueueOption,
    configured,
    each_answering,
)
from qframe.console.text import encodable, say, say_error, say_json, say_rows
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError, InvalidPayload, QframeError
from qframe.failed import search
from qframe.failed.retry import retry as requeue
from qframe.manager import QueueManager
from qframe.payload import envelope, secret, tracebacks
from qframe.payload.text import printable
from qframe.payload.timing import iso

_HOUR = 3600


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("failed")(failed)
    app.command("retry")(retry)
    app.command("forget")(forget)
    app.command("flush")(flush)
    app.command("prune")(prune)


def failed(
    uuid: Annotated[str, typer.Argument(help="Show this one whole.")] = "",
    *,
    queue: QueueOption = None,
    limit: Annotated[int, typer.Option(help="Rows at most; 0: all.")] = 100,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the failed jobs, latest first, or show one with its error and attempts.

    \b
      qframe failed
      qframe failed 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe failed --queue emails --json
    """  # noqa: D301 (\b keeps typer from folding the examples)
    stores = _stores(configured(config), connection)
    if uuid:
        _show(_found(stores, uuid)[1], as_json=as_json)
        return
    if limit < 0:
        raise ConfigurationError(f"--limit must not be negative, got {limit}")
    records = itertools.chain.from_iterable(store.all(queue) for store in stores)
    rows = [_row(record) for record in itertools.islice(records, limit or None)]
    if as_json:
        say_json(rows)
        return
    say_rows(
        rows, ("uuid", "connection", "queue", "job", "failed_at", "error"), empty="no failed jobs"
    )
    more = sum(store.count() for store in stores) - len(rows)
    if rows and more > 0 and not queue:
        say(f"and {more} more: --limit 0 shows all")


def retry(
    ids: Annotated[list[str] | None, typer.Argument(help="uuids, or all.")] = None,
    *,
    queue: QueueOption = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Queue failed jobs again, each once however often this is called.

    \b
      qframe retry all
      qframe retry all --queue emails
      qframe retry 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    """  # noqa: D301 (\b keeps typer from folding the examples)
    queues = configured(config)
    stores = _stores(queues, connection)
    if not ids and not queue:
        raise ConfigurationError("say which: uuids, all, or --queue NAME")
    if queue and ids not in (None, [], ["all"]):
        raise ConfigurationError("--queue goes with all, not with uuids")
    if not ids or ids == ["all"]:
        chosen = [(s, r) for s in stores for r in s.all(queue)]
    else:
        chosen = [_found(stores, uuid) for uuid in ids]
    count, trouble = 0, 0
    for store, record in chosen:
        try:
            count += requeue(queues, store, record)
        except QframeError as error:
            trouble += 1
            say_error(f"{record.uuid} is kept: {error}", 0)
    say(f"queued {count} failed jobs again")
    return int(trouble > 0)


def forget(
    ids: Annotated[list[str], typer.Argument(help="uuids.")],
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove failed jobs for good.

    \b
      qframe forget 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    """  # noqa: D301 (\b keeps typer from folding the examples)
    stores = _stores(configured(config), connection)
    for uuid in ids:
        store, _ = _found(stores, uuid)
        store.forget(uuid)
        say(f"forgot {uuid}")


def flush(
    *,
    hours: Annotated[float, typer.Option(help="Only those that failed longer ago.")] = 0,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove all failed jobs for good, or only the older ones.

    \b
      qframe flush
      qframe flush --hours 48
    """  # noqa: D301 (\b keeps typer from folding the examples)
    _flush(configured(config), connection, hours)


def prune(
    *,
    hours: Annotated[float, typer.Option(help="How long they are kept.")] = 24,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove failed jobs older than --hours (24); for a cron job.

    \b
      qframe prune --hours 168
    """  # noqa: D301 (\b keeps typer from folding the examples)
    _flush(configured(config), connection, hours)


def _flush(queues: QueueManager, connection: str | None, hours: float) -> None:
    if hours < 0 or not math.isfinite(hours):
        raise ConfigurationError(f"--hours must not be negative or infinite, got {hours:g}")
    before = max(0.0, time.time() - hours * _HOUR) if hours else None
    count = sum(store.flush(before) for store in _stores(queues, connection))
    say(f"removed {count} failed jobs")


def _stores(queues: QueueManager, connection: str | None) -> list[FailedStore]:
    """Give the failed stores that answer, each once."""

    def reach(store: FailedStore) -> FailedStore:
        store.count()
        return store

    found = each_answering(queues, connection, lambda queue: reach(queues.failed_store(queue.name)))
    return search.distinct(store for _, store in found)


def _found(stores: list[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob]:
    found = search.find(stores, uuid)
    if found is None:
        raise ConfigurationError(f"no failed job {uuid!r}; qframe failed lists them")
    return found


def _row(record: FailedJob) -> dict[str, Any]:
    return {
        "uuid": record.uuid,
        "connection": record.connection,
        "queue": record.queue,
        "job": record.name,
        "attempts": record.attempts,
        "failed_at": iso(record.failed_at),
        "error": tracebacks.brief_of(record.exception, 1000),
    }


def _without_secrets(raw: bytes) -> bytes:
    """Give a payload with its secrets as stars, everything else as it is."""
    try:
        hidden = secret.redacted(envelope.parse(raw))
    except InvalidPayload:
        return raw
    return raw if hidden is None else json.dumps(hidden, separators=(",", ":")).encode()


def _show(record: FailedJob, *, as_json: bool) -> None:
    ran = [
        {
            "number": attempt.number,
            "host": attempt.host,
            "pid": attempt.pid,
            "started_at": iso(attempt.started_at),
            "ended": attempt.ended or "never ended",
            "error": attempt.error,
        }
        for attempt in record.history.attempts
    ]
    if as_json:
        text = _without_secrets(record.payload).decode("utf-8", "backslashreplace")
        say_json({**_row(record), "exception": record.exception, "ran": ran, "payload": text})
        return
    for key, value in _row(record).items():
        say(f"{key:<12}{value}")
    say_rows(ran, ("number", "host", "pid", "started_at", "ended", "error"), empty="never started")
    for line in record.exception.rstrip().splitlines():
        typer.echo("  " + encodable(printable(line)))
