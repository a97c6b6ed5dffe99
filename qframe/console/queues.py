"""Commands about whole queues: size, clear, kick, pause, resume."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console import completion, numbers, outbox
from qframe.console.binning import binning, say_with_undo
from qframe.console.confirm import stopped
from qframe.console.connections import JobConnections, configured, names
from qframe.console.numbers import CENTURY
from qframe.console.options import (
    Config,
    ConnectionArgument,
    ConnectionOption,
    DryRun,
    Json,
    NoBin,
    QueueOption,
    Where,
    Yes,
    seconds_of,
    the_connection,
)
from qframe.console.person import person
from qframe.console.text import print_json, print_rows, say
from qframe.contracts.backend import Capability
from qframe.contracts.queue import STATES, Sizes
from qframe.features.group_lines import waiting_queues
from qframe.manager import QueueManager
from qframe.operations import lists
from qframe.operations import queues as operations
from qframe.operations.bin_forecast import BinForecast
from qframe.operations.queues import QueueState
from qframe.payload.text import count_of, queue_name
from qframe.worker import queue_facts, slot_leases
from qframe.worker.concurrency import over_all

Queue = Annotated[
    str, typer.Argument(help="Queue; default: all queues.", autocompletion=completion.queues)
]


def pause(
    queue: Queue = "",
    *,
    seconds: Annotated[
        float, numbers.seconds("--for", most=CENTURY, help="Seconds; 0: until resumed.")
    ] = 0,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Pause one queue, or all; running jobs finish.

    Exits 69 if a connection does not answer; the others are paused.

      qframe pause emails
      qframe pause --for 600
    """
    ttl = seconds_of("--for", seconds) or None
    name = queue_name(queue) if queue else ""

    who, where = person(), "the command line"
    act = partial(operations.pause, queue=name, seconds=ttl, who=who, where=where)
    connections = JobConnections(configured(config), connection)
    done = connections.each(act)
    say(f"paused {name or 'every queue'} of {names(done)}")
    return connections.code(done)


def resume(queue: Queue = "", *, connection: ConnectionOption = None, config: Config = None) -> int:
    """Resume one queue, or everything that is paused.

    Exits 69 if a connection does not answer; the others are resumed.

      qframe resume emails
      qframe resume
    """
    name = queue_name(queue) if queue else ""

    act = partial(operations.resume, queue=name)
    connections = JobConnections(configured(config), connection)
    done = connections.each(act)
    say(f"resumed {name or 'every queue'} of {names(done)}")
    return connections.code(done)


def size(
    queue: QueueOption = None,
    *,
    where: Where = "",
    groups: Annotated[
        bool, typer.Option("--groups", help="Count the jobs of each group of a queue.")
    ] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Count the jobs of each queue and of the outbox.

    For a queue with a concurrency limit it also shows how many permits are taken.

      qframe size
      qframe size --queue emails --json
      qframe size --where 'queue:mail* state:paused'
      qframe size --groups
    """
    lists.QUEUES.chosen((), where)  # fails even if no backend answers
    queues = configured(config)
    connections = JobConnections(queues, connection)
    if groups:
        found = groups_of(connections, queue, where)
        if as_json:
            print_json(found)
        else:
            print_rows(found, empty="no group has a job")
        return
    rows = sizes_of(connections, queue, where)
    if any(of.concurrency for of in queues.settings.queues.values()):
        _add_permits(rows, queues, shown=not as_json)
    kept = [] if queue or where else outbox.rows(queues, connection)
    if as_json:
        print_json([*rows, *kept])
        return
    print_rows(shown(rows), empty="no queue holds a job")
    if kept:
        print_rows(kept, empty="")


def clear(
    name: ConnectionArgument = None,
    *,
    queue: QueueOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    no_bin: NoBin = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Delete the ready and delayed jobs of a queue.

    For an hour, `qframe undo` brings them back. On a terminal it asks first; a "no" exits 1.

      qframe clear database --queue emails
      qframe clear database --queue emails --dry-run
    """
    manager = configured(config)
    found = manager.connection(the_connection(name, connection, "clear"))
    found.need(Capability.PURGE)
    name = queue_name(queue or found.default_queue)
    place = f"{found.name}:{name}"

    def what() -> str:
        sizes, forecast = found.sizes(queue), BinForecast(manager, is_on=not no_bin)
        forecast.add_queue(found, name)
        count = count_of(sizes.ready + sizes.delayed, "job", "jobs")
        return f"delete {count} from {place}{forecast.words()}"

    if (code := stopped(what, dry_run=dry_run, yes=yes)) is not None:
        return code
    with binning(manager, "clear", place, is_on=not no_bin) as into:
        count = into.at(found).clear(name)
    say_with_undo(f"deleted {count_of(count, 'job', 'jobs')} from {place}", into)
    return 0


def kick(
    connection_name: ConnectionArgument = None,
    *,
    queue: QueueOption = None,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Move the buried jobs of a queue back to ready.

    qframe kick database --queue emails
    qframe kick database --queue emails --json
    """
    found = configured(config).connection(the_connection(connection_name, connection, "kick"))
    name = queue or found.default_queue
    count = found.kick(name)
    if as_json:
        print_json({"connection": found.name, "queue": name, "kicked": count})
    else:
        say(f"kicked {count_of(count, 'job', 'jobs')} of {found.name}:{name}")


def _add_permits(rows: list[dict[str, Any]], queues: QueueManager, *, shown: bool) -> None:
    """Adds how many permits of each queue are taken, if it has a bound."""
    for row in rows:
        connection, queue = row["connection"], row["queue"]
        most = over_all(queues.settings.queues, queue)
        row["permits"] = "" if shown else None
        if most is not None:
            name = slot_leases.queue_name(connection, queue)
            values = queues.connection(connection).store.get(
                *slot_leases.keys(slot_leases.QUEUE, name, most)
            )
            taken = len(values) - values.count(None)
            row["permits"] = f"{taken}/{most}" if shown else {"taken": taken, "of": most}


def sizes_of(
    connections: JobConnections, only: str | None, where: str = ""
) -> list[dict[str, Any]]:
    def count(queue: Connection) -> list[dict[str, Any]]:
        return [
            {"connection": queue.name, "queue": name, **_counted(queue.sizes(name))}
            for name in _named(queue, only, where)
        ]

    return [row for _, rows in connections.each(count) for row in rows]


def _counted(sizes: Sizes) -> dict[str, Any]:
    return {**sizes.counted, "approximate": sizes.approximate}


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows of sizes as a table shows them: `~5` is an estimate, `?` unknown."""
    return [
        {
            key: _size(value, approximate=row["approximate"]) if key in STATES else value
            for key, value in row.items()
            if key != "approximate"
        }
        for row in rows
    ]


def _size(count: int | None, *, approximate: bool) -> str:
    return "?" if count is None else f"{'~' * approximate}{count}"


def groups_of(
    connections: JobConnections, only: str | None, where: str = ""
) -> list[dict[str, Any]]:
    def count(queue: Connection) -> list[dict[str, Any]]:
        found = (operations.groups(queue, name) for name in _named(queue, only, where))
        return [each.model_dump() for states in found for each in states]

    return [row for _, rows in connections.each(count) for row in rows]


def _named(queue: Connection, only: str | None, where: str) -> list[str]:
    """Returns the queue that was asked for, or all, sorted."""
    there = {only or queue.default_queue}
    if not only and Capability.LIST in queue.capabilities:
        there.update(queue.queues(), waiting_queues(queue.context))
    return sorted(_chosen(queue, there, where) if where else there)


def _chosen(queue: Connection, names: set[str], where: str) -> set[str]:
    paused = queue_facts.pauses(queue)
    known = [
        QueueState(connection=queue.name, queue=name, paused=name in paused or "" in paused)
        for name in names
    ]
    return {each.queue for each in lists.QUEUES.chosen(known, where)}
