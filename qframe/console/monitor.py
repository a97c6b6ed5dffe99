"""`qframe monitor`: checks the alert rules, for a cron job or a probe."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Any

import typer

from qframe import events
from qframe.alerts.life import Evaluation
from qframe.alerts.readings import Readings
from qframe.alerts.side_task import AlertTask
from qframe.console import outbox
from qframe.console.connections import JobConnections, configured
from qframe.console.numbers import CENTURY, MANY, seconds, whole
from qframe.console.options import (
    Config,
    ConnectionOption,
    Json,
    QueueOption,
    not_negative,
    seconds_of,
)
from qframe.console.queues import sizes_of
from qframe.console.text import print_json, print_rows, say
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.payload.text import count_of
from qframe.rules import Rule, check_connections, parse
from qframe.worker import handlers
from qframe.worker.options import NO_ANSWER

_LIMIT = 1000
_LAG = 60.0


def monitor(
    rules: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE", help="Rules; default: those of [alerts]."),
    ] = None,
    *,
    watch: Annotated[
        bool,
        typer.Option("--watch/--once", help="Keep checking and notify, or check once."),
    ] = False,
    queue: QueueOption = None,
    limit: Annotated[
        int | None, whole(MANY, "--max", help=f"Most jobs in a queue. [default: {_LIMIT}]")
    ] = None,
    max_lag: Annotated[
        float | None,
        seconds(
            "--max-lag",
            most=CENTURY,
            help=f"Longest delay of the outbox, in seconds. [default: {_LAG:g}]",
        ),
    ] = None,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Check alert rules: exit 1 if one is broken.

    Exits 69 if a backend does not answer. Without any rule it checks that no queue holds more than
    --max jobs (it fires `QueueBusy`), that the outbox is delivered within --max-lag, and that
    nothing in it was set aside.

      qframe monitor || page-me
      qframe monitor "wait > 60s on mail" "no worker on mail" --json
      qframe monitor --max 500
      qframe monitor --watch
    """
    not_negative("--max", limit or 0)
    seconds_of("--max-lag", max_lag or 0)
    queues = configured(config)
    if watch:
        return _watch(queues, bool(rules))
    wanted = [parse(each) for each in rules or ()] or queues.settings.alerts.parsed()
    check_connections(wanted, queues.settings.connection_names())
    if not wanted or queue:
        most, lag = _LIMIT if limit is None else limit, _LAG if max_lag is None else max_lag
        return _sizes(queues, connection, queue, most, lag, as_json=as_json)
    if limit is not None:
        wanted.append(parse(f"size > {limit}"))
    if max_lag is not None and queues.settings.outbox.connection:
        wanted.append(parse(f"lag of the relay > {max_lag:g}s"))
    return _by_rules(wanted, Readings(queues, connection, once=True).look(wanted), as_json=as_json)


def _by_rules(wanted: list[Rule], seen: Evaluation, *, as_json: bool) -> int:
    rows = [
        {
            "rule": found.rule.text,
            "connection": found.connection,
            "subject": found.what,
            "value": round(found.value, 3),
            "status": "ALERT",
            "text": found.text,
        }
        for found in seen.found
    ]
    broken = {row["rule"] for row in rows}
    for (rule, connection), why in seen.unknown.items():
        rows.append(_row(rule, connection, "UNKNOWN", why))
    broken = {row["rule"] for row in rows}
    rows += [_row(each.text, "", "OK", "") for each in wanted if each.text not in broken]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ("status", "rule", "text"), empty="no rule")
    if broken:
        return 1
    return NO_ANSWER if seen.unknown else 0


def _row(rule: str, connection: str, status: str, text: str) -> dict[str, Any]:
    return {
        "rule": rule, "connection": connection, "subject": "", "value": None, "status": status,
        "text": text,
    }  # fmt: skip


def _watch(queues: QueueManager, given: bool) -> int:
    """Checks and notifies as a worker does, until a signal comes."""
    if given:
        raise ConfigurationError("--watch looks after the rules of [alerts]: give none")
    if not queues.settings.alerts.rules:
        raise ConfigurationError("no rule is configured: [alerts] rules = [...] in qframe.toml")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        handlers.take(number, lambda *_: over.set())
    task = AlertTask(queues)
    task.prepare()
    task.start()
    try:
        say(f"looking after {count_of(len(queues.settings.alerts.parsed()), 'rule', 'rules')}")
        while not over.wait(3600):
            continue
    finally:
        task.stop()
    return 0


def _sizes(
    queues: QueueManager,
    connection: str | None,
    queue: str | None,
    limit: int,
    max_lag: float,
    *,
    as_json: bool,
) -> int:
    rows = sizes_of(JobConnections(queues, connection), queue)
    for row in rows:
        row["size"] = (row["ready"] or 0) + (row["delayed"] or 0) + (row["reserved"] or 0)
        row["status"] = "BUSY" if row["size"] > limit else "OK"
        if row["size"] > limit:
            events.fire(events.QueueBusy, row["connection"], row["queue"], row["size"])
    kept = [] if queue else outbox.rows(queues, connection)
    for row in kept:
        row["status"] = outbox.status(row, limit, max_lag)
        if row["status"] == "BUSY":
            events.fire(events.QueueBusy, row["connection"], outbox.QUEUE, row["waiting"])
    if as_json:
        print_json([*rows, *kept])
    else:
        columns = ("connection", "queue", "size", "status")
        print_rows(rows, columns, empty="no queue holds a job")
        if kept:
            print_rows(kept, empty="")
    return int(any(row["status"] != "OK" for row in [*rows, *kept]))
