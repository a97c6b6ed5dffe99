"""Commands about whole queues: size, monitor, clear, kick, pause, resume."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from qframe import events
from qframe.connection import Connection
from qframe.console import outbox
from qframe.console.connections import Connections, configured, names
from qframe.console.options import (
    Config,
    ConnectionOption,
    Json,
    QueueOption,
    not_negative,
    seconds_of,
)
from qframe.console.text import say, say_json, say_rows
from qframe.contracts.backend import Capability
from qframe.manager import QueueManager
from qframe.payload.text import queue_name
from qframe.worker import permits
from qframe.worker.bounds import over_all
from qframe.worker.control import pause_key

Queue = Annotated[str, typer.Argument(help="Queue; without it, everything.")]
ConnectionName = Annotated[str, typer.Argument(help="Connection name.")]


def pause(
    queue: Queue = "",
    *,
    seconds: Annotated[float, typer.Option("--for", help="Seconds; 0: until resumed.")] = 0,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Let workers take no more jobs from a queue, or from any; running jobs finish.

    qframe pause emails
    qframe pause --for 600
    """
    ttl = seconds_of("--for", seconds) or None
    name = queue_name(queue) if queue else ""

    def act(each: Connection) -> None:
        each.store.set(pause_key(each.name, name), "1", ttl)
        events.fire(events.QueuePaused, each.name, name)

    done = Connections(configured(config), connection).each(act)
    say(f"paused {name or 'every queue'} of {names(done)}")


def resume(
    queue: Queue = "", *, connection: ConnectionOption = None, config: Config = None
) -> None:
    """Undo `pause`: of one queue, or, without a name, every pause there is.

    qframe resume emails
    qframe resume
    """
    name = queue_name(queue) if queue else ""

    def act(each: Connection) -> None:
        store = each.store
        several = [] if name else store.keys(pause_key(each.name) + ":")
        for key in (pause_key(each.name, name), *several):
            store.delete(key)
        events.fire(events.QueueResumed, each.name, name)

    done = Connections(configured(config), connection).each(act)
    say(f"resumed {name or 'every queue'} of {names(done)}")


def size(
    queue: QueueOption = None,
    *,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Count the jobs of each queue by state, and what waits in the outbox.

    Where queues have a bound over all workers: how many of its permits are taken.

      qframe size
      qframe size --queue emails --json
    """
    queues = configured(config)
    connections = Connections(queues, connection)
    rows = _sizes(connections, queue)
    if any(of.concurrency for of in queues.settings.queues.values()):
        _add_permits(rows, queues, shown=not as_json)
    kept = [] if queue else outbox.rows(queues, connection)
    if as_json:
        say_json([*rows, *kept])
        return
    say_rows(rows, empty="no queue holds a job")
    if kept:
        say_rows(kept, empty="")


def monitor(
    queue: QueueOption = None,
    *,
    limit: Annotated[int, typer.Option("--max", help="Jobs a queue may hold.")] = 1000,
    max_lag: Annotated[
        float, typer.Option("--max-lag", help="Seconds the outbox may be behind.")
    ] = 60,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Exit 1 when a queue holds more than --max jobs; for a cron job or a probe.

    Listeners hear `QueueBusy` for each such queue. So it is with what waits in the outbox; one that
    has waited for --max-lag seconds, or was set aside, counts as well.

      qframe monitor --max 500 || alert
      qframe monitor --queue emails --json
    """
    not_negative("--max", limit)
    seconds_of("--max-lag", max_lag)
    queues = configured(config)
    rows = _sizes(Connections(queues, connection), queue)
    for row in rows:
        row["size"] = row["ready"] + row["delayed"] + row["reserved"]
        row["status"] = "BUSY" if row["size"] > limit else "OK"
        if row["size"] > limit:
            events.fire(events.QueueBusy, row["connection"], row["queue"], row["size"])
    kept = [] if queue else outbox.rows(queues, connection)
    for row in kept:
        row["status"] = outbox.status(row, limit, max_lag)
        if row["status"] == "BUSY":
            events.fire(events.QueueBusy, row["connection"], outbox.QUEUE, row["waiting"])
    if as_json:
        say_json([*rows, *kept])
    else:
        columns = ("connection", "queue", "size", "status")
        say_rows(rows, columns, empty="no queue holds a job")
        if kept:
            say_rows(kept, empty="")
    return int(any(row["status"] != "OK" for row in [*rows, *kept]))


def clear(connection: ConnectionName, *, queue: QueueOption = None, config: Config = None) -> None:
    """Delete the ready and delayed jobs of a queue; running ones finish.

    qframe clear database --queue emails
    """
    found = configured(config).connection(connection)
    count = found.clear(queue)
    say(f"deleted {count} jobs from {connection}:{queue or found.default_queue}")


def kick(
    connection: ConnectionName,
    *,
    queue: QueueOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Make the buried jobs of a queue ready.

    qframe kick database --queue emails
    qframe kick database --queue emails --json
    """
    found = configured(config).connection(connection)
    name = queue or found.default_queue
    count = found.kick(name)
    if as_json:
        say_json({"connection": found.name, "queue": name, "kicked": count})
    else:
        say(f"kicked {count} jobs of {found.name}:{name}")


def _add_permits(rows: list[dict[str, Any]], queues: QueueManager, *, shown: bool) -> None:
    """Add how many permits of each queue are taken; where it has no bound, nothing."""
    for row in rows:
        connection, queue = row["connection"], row["queue"]
        most = over_all(queues.settings.queues, queue)
        row["permits"] = "" if shown else None
        if most is not None:
            name = permits.queue_name(connection, queue)
            values = queues.connection(connection).store.get(
                *permits.keys(permits.QUEUE, name, most)
            )
            taken = len(values) - values.count(None)
            row["permits"] = f"{taken}/{most}" if shown else {"taken": taken, "of": most}


def _sizes(connections: Connections, only: str | None) -> list[dict[str, Any]]:
    def count(queue: Connection) -> list[dict[str, Any]]:
        there = {only or queue.default_queue}
        if not only and Capability.LIST in queue.capabilities:
            there.update(queue.queues())
        return [
            {"connection": queue.name, "queue": name, **asdict(queue.sizes(name))}
            for name in sorted(there)
        ]

    return [row for _, rows in connections.each(count) for row in rows]
