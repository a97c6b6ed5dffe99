"""Commands about failed jobs: failed, retry, forget, flush, prune."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from qframe.console.connections import Connections, configured, find_failed
from qframe.console.options import (
    Config,
    ConnectionOption,
    Json,
    Limit,
    QueueOption,
    first,
    hours_ago,
)
from qframe.console.text import encodable, say, say_json, say_rows
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError, InvalidPayload
from qframe.payload import envelope, secret, tracebacks
from qframe.payload.text import printable
from qframe.payload.timing import iso

_COLUMNS = ("uuid", "connection", "queue", "job", "failed_at", "error")


def failed(
    uuid: Annotated[str, typer.Argument(help="Show this one whole.")] = "",
    *,
    queue: QueueOption = None,
    limit: Limit = 100,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the failed jobs, latest first, or show one with its error and attempts.

    qframe failed
    qframe failed 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    qframe failed --queue emails --json
    """
    stores = Connections(configured(config), connection).failed_stores(answering=True)
    if uuid:
        _show(_found(stores, uuid)[1], as_json=as_json)
        return
    records = first(itertools.chain.from_iterable(store.all(queue) for store in stores), limit)
    say_rows([*map(_row, records)], _COLUMNS, empty="no failed jobs", as_json=as_json)
    more = sum(store.count() for store in stores) - len(records)
    if records and more > 0 and not queue and not as_json:
        say(f"and {more} more: --limit 0 shows all")


def retry(
    ids: Annotated[list[str] | None, typer.Argument(help="uuids, or all.")] = None,
    *,
    queue: QueueOption = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Queue failed jobs again, each once however often this is called.

    qframe retry all
    qframe retry all --queue emails
    qframe retry 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    """
    connections = Connections(configured(config), connection)
    stores = connections.failed_stores(answering=True)
    if not ids and not queue:
        raise ConfigurationError("say which: uuids, all, or --queue NAME")
    every = not ids or ids == ["all"]
    if queue and not every:
        raise ConfigurationError("--queue goes with all, not with uuids")
    if every:
        chosen = [(store, record) for store in stores for record in store.all(queue)]
    else:
        chosen = [_found(stores, uuid) for uuid in ids or ()]
    count, code = connections.queue_again(chosen)
    say(f"queued {count} failed jobs again")
    return code


def forget(
    ids: Annotated[list[str], typer.Argument(help="uuids.")],
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove failed jobs for good.

    qframe forget 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    """
    stores = Connections(configured(config), connection).failed_stores(answering=True)
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

    qframe flush
    qframe flush --hours 48
    """
    before = hours_ago("--hours", hours) if hours else None
    stores = Connections(configured(config), connection).failed_stores(answering=True)
    say(f"removed {sum(store.flush(before) for store in stores)} failed jobs")


def prune(
    *,
    hours: Annotated[float, typer.Option(help="How long they are kept.")] = 24,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Remove failed jobs older than --hours (24); for a cron job.

    qframe prune --hours 168
    """
    flush(hours=hours, connection=connection, config=config)


def _found(stores: list[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob]:
    found = find_failed(stores, uuid)
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
        {**asdict(each), "started_at": iso(each.started_at), "ended": each.ended or "never ended"}
        for each in record.history.attempts
    ]
    if as_json:
        text = _without_secrets(record.payload).decode("utf-8", "backslashreplace")
        say_json({**_row(record), "exception": record.exception, "ran": ran, "payload": text})
        return
    for key, value in _row(record).items():
        say(f"{key:<12}{value}")
    say_rows(ran, empty="never started")
    for line in record.exception.rstrip().splitlines():
        typer.echo("  " + encodable(printable(line)))
