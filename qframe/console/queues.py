"""Commands about whole queues: size, monitor, clear, kick, pause, resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qframe import events
from qframe.connection import Connection
from qframe.console.common import (
    Config,
    ConnectionOption,
    Json,
    QueueOption,
    configured,
    each_answering,
)
from qframe.console.text import say, say_json, say_rows
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError
from qframe.payload.text import queue_name
from qframe.payload.timing import seconds_until
from qframe.worker.control import pause_key


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("size")(size)
    app.command("monitor")(monitor)
    app.command("clear")(clear)
    app.command("kick")(kick)


def pause(
    queue: Annotated[str, typer.Argument(help="Queue; without it, everything.")] = "",
    *,
    seconds: Annotated[float, typer.Option("--for", help="Seconds; 0: until resumed.")] = 0,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Let workers take no more jobs from a queue, or from any; running jobs finish.

    \b
      qframe pause emails
      qframe pause --for 600
    """  # noqa: D301 (\b keeps typer from folding the examples)
    try:
        seconds_until(seconds, "--for")
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    queues = configured(config)
    name = queue_name(queue) if queue else ""

    def act(each: Connection) -> None:
        queues.store(each.name).set(pause_key(each.name, name), "1", seconds or None)
        events.fire(events.QueuePaused, each.name, name)

    done = each_answering(queues, connection, act)
    say(f"paused {name or 'every queue'} of {_names(done)}")


def resume(
    queue: Annotated[str, typer.Argument(help="Queue; without it, everything.")] = "",
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Undo `pause`: of one queue, or, without a name, every pause there is.

    \b
      qframe resume emails
      qframe resume
    """  # noqa: D301 (\b keeps typer from folding the examples)
    queues = configured(config)
    name = queue_name(queue) if queue else ""

    def act(each: Connection) -> None:
        store = queues.store(each.name)
        keys = [pause_key(each.name, name)]
        if not name:
            keys += store.keys(pause_key(each.name) + ":")
        for key in keys:
            store.delete(key)
        events.fire(events.QueueResumed, each.name, name)

    done = each_answering(queues, connection, act)
    say(f"resumed {name or 'every queue'} of {_names(done)}")


def size(
    queue: QueueOption = None,
    *,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Count the jobs of each queue by state.

    \b
      qframe size
      qframe size --queue emails --json
    """  # noqa: D301 (\b keeps typer from folding the examples)
    rows = _sizes(configured(config), connection, queue)
    if as_json:
        say_json(rows)
    else:
        columns = ("connection", "queue", "ready", "delayed", "reserved", "buried")
        say_rows(rows, columns, empty="no queue holds a job")


def monitor(
    queue: QueueOption = None,
    *,
    limit: Annotated[int, typer.Option("--max", help="Jobs a queue may hold.")] = 1000,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Exit 1 when a queue holds more than --max jobs; for a cron job or a probe.

    Listeners hear `QueueBusy` for each such queue.

    \b
      qframe monitor --max 500 || alert
      qframe monitor --queue emails --json
    """  # noqa: D301 (\b keeps typer from folding the examples)
    rows = _sizes(configured(config), connection, queue)
    for row in rows:
        row["size"] = row["ready"] + row["delayed"] + row["reserved"]
        row["status"] = "BUSY" if row["size"] > limit else "OK"
        if row["size"] > limit:
            events.fire(events.QueueBusy, row["connection"], row["queue"], row["size"])
    if as_json:
        say_json(rows)
    else:
        say_rows(rows, ("connection", "queue", "size", "status"), empty="no queue holds a job")
    return int(any(row["status"] == "BUSY" for row in rows))


def clear(
    connection: Annotated[str, typer.Argument(help="Connection name.")],
    *,
    queue: QueueOption = None,
    config: Config = None,
) -> None:
    """Delete the ready and delayed jobs of a queue; running ones finish.

    \b
      qframe clear database --queue emails
    """  # noqa: D301 (\b keeps typer from folding the examples)
    found = configured(config).connection(connection)
    count = found.clear(queue)
    say(f"deleted {count} jobs from {connection}:{queue or found.default_queue}")


def kick(
    connection: Annotated[str, typer.Argument(help="Connection name.")],
    *,
    queue: QueueOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Make the buried jobs of a queue ready.

    \b
      qframe kick database --queue emails
      qframe kick database --queue emails --json
    """  # noqa: D301 (\b keeps typer from folding the examples)
    found = configured(config).connection(connection)
    if Capability.BURY not in found.capabilities:
        raise ConfigurationError(
            f"the connection {found.name!r} ({found.settings.driver}) buries no jobs"
        )
    name = queue or found.default_queue
    count = found.kick(name)
    if as_json:
        say_json({"connection": found.name, "queue": name, "kicked": count})
    else:
        say(f"kicked {count} jobs of {found.name}:{name}")


def _sizes(queues: Any, connection: str | None, only: str | None) -> list[dict[str, Any]]:  # noqa: ANN401
    def count(queue: Connection) -> list[dict[str, Any]]:
        names = [only] if only else [queue.default_queue]
        if not only and Capability.LIST in queue.capabilities:
            names = sorted({*names, *queue.queues()})
        return [_row(queue, name) for name in names]

    return [row for _, rows in each_answering(queues, connection, count) for row in rows]


def _row(queue: Connection, name: str) -> dict[str, Any]:
    sizes = queue.sizes(name)
    return {
        "connection": queue.name,
        "queue": name,
        "ready": sizes.ready,
        "delayed": sizes.delayed,
        "reserved": sizes.reserved,
        "buried": sizes.buried,
    }


def _names(done: list[tuple[Connection, None]]) -> str:
    return ", ".join(queue.name for queue, _ in done)
