"""Commands about workers and what they did: workers, counters."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console.connections import JobConnections, configured, names
from qframe.console.options import Config, ConnectionOption, Json, Where
from qframe.console.output import duration
from qframe.console.text import print_rows, say, screen, table
from qframe.exceptions import ConfigurationError
from qframe.metrics import counters as counts
from qframe.metrics.counters import Counted
from qframe.metrics.kept import Metrics
from qframe.metrics.series import OUTCOMES
from qframe.operations import lists
from qframe.operations import workers as operations
from qframe.payload.text import one_line
from qframe.payload.timing import iso
from qframe.worker import roster
from qframe.worker.roster import Entry, Listed

_COLUMNS = (
    *("worker", "queues", "state", "used", "free", "job", "for"),
    *("processed", "failed", "MB", "seen"),
)
_SHARES = ("supervisor", "queue", "processes", "of", "why")
_NONE = "no worker is registered"
_EVERY = 2.0
_MINUTE = 60


# -- workers ------------------------------------------------------------------------------------


def workers(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 2 s.")] = False,
    where: Where = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the workers, their current jobs and their counts.

    qframe workers
    qframe workers --watch
    qframe workers --connection redis --json
    qframe workers --where 'host:web-* state:running'
    """
    if watch and as_json:
        raise ConfigurationError("--watch and --json do not go together: call it again")
    connections = JobConnections(configured(config), connection)
    if watch:
        _watch(connections, where)
    else:
        found = _listed(connections, where)
        rows = [_described(each) for each in found] if as_json else _rows(found)
        print_rows(rows, _COLUMNS, empty=_NONE, as_json=as_json)
        if not as_json and (shares := _shares(connections)):
            say("")
            print_rows(shares, _SHARES, empty="")


def _watch(connections: JobConnections, where: str) -> None:
    from rich.live import Live  # noqa: PLC0415 (rare, and it costs 0.1 s)

    def shown() -> Any:  # noqa: ANN401 (what rich can show)
        rows = _rows(_listed(connections, where))
        return table(rows, _COLUMNS) if rows else _NONE

    with suppress(KeyboardInterrupt), Live(shown(), console=screen(), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            with redirect_stderr(io.StringIO()):  # silent connections were named before
                live.update(shown(), refresh=True)


def _listed(connections: JobConnections, where: str) -> list[Entry]:
    """Returns the workers in the stores that answer and that a filter chooses, each once."""
    lists.WORKERS.chosen((), where)  # fails even if no store answers
    found = connections.each(lambda queue: roster.listed(queue.store))
    entries = {entry.id: entry for _, each in found for entry in each}
    known = [each for each in entries.values() if connections.only in {None, each.connection}]
    chosen = {each.id for each in lists.WORKERS.chosen(operations.states(known), where)}
    return [each for each in known if each.id in chosen]


def _rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Returns a row for each worker, with its oldest job, and one for each further job."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        now = time.time()
        jobs = [{"job": job.name, "for": lasting(now - job.since)} for job in entry.jobs]
        first, *others = jobs or [{"job": "", "for": ""}]
        rows.append(_row(entry, now) | first)
        rows += [dict.fromkeys(_COLUMNS, "") | each for each in others]
    return rows


def _shares(connections: JobConnections) -> list[dict[str, Any]]:
    """Returns a row for each queue of each supervisor."""
    with redirect_stderr(io.StringIO()):  # silent connections were named already
        found = connections.each(lambda queue: roster.pools(queue.store))
    entries = {entry.id: entry for _, each in found for entry in each}
    known = [each for each in entries.values() if connections.only in {None, each.connection}]
    return [
        {
            "supervisor": called(each) + " (gone)" * each.is_gone,
            "queue": f"{each.connection}:{queue}",
            "processes": count,
            "of": each.most,
            "why": each.why.get(queue, ""),
        }
        for each in known
        for queue, count in each.shares.items()
    ]


def _row(entry: Entry, now: float) -> dict[str, Any]:
    return {
        "worker": called(entry),
        "queues": f"{entry.connection}:{','.join(entry.queues)}",
        "state": "gone" if entry.is_gone else entry.state,
        **_slots(entry),
        "processed": entry.counts.get("processed", 0),
        "failed": entry.counts.get("failed", 0),
        "MB": round(entry.memory),
        "seen": f"{lasting(now - entry.beat_at)} ago",
    }


def _slots(entry: Entry) -> dict[str, int]:
    """Counts the slots that jobs run in, and the free ones; none are while it is scaled down."""
    used = len(entry.jobs)
    return {"used": used, "free": max(0, entry.concurrency - used)}


def _described(entry: Entry) -> dict[str, Any]:
    fields = entry.model_dump(exclude={"place", "born", "counts", "beat_at", "scales"})
    fields |= {
        **_slots(entry),
        "state": "gone" if entry.is_gone else entry.state,
        "started_at": iso(entry.started_at),
        "seen_at": iso(entry.beat_at),
    }
    for job, shown in zip(entry.jobs, fields["jobs"], strict=True):
        shown["since"] = iso(job.since)
    return fields | {_key(name): entry.counts.get(name, 0) for name in OUTCOMES.values()}


def lasting(seconds: float) -> str:
    """Formats whole seconds, none below 0: clocks of two machines may differ."""
    return duration(seconds) if seconds >= _MINUTE else f"{max(0.0, seconds):.0f}s"


def called(entry: Listed) -> str:
    """Returns the name of a worker, or a pool, in a line."""
    name = "" if entry.name == "default" else f" {entry.name}"
    return one_line(f"{entry.host}:{entry.pid}{name}", 100)


# -- counters -----------------------------------------------------------------------------------


def counters(
    *,
    reset: Annotated[bool, typer.Option("--reset", help="Reset them to zero.")] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show how many jobs ran, succeeded and failed.

    qframe counters
    qframe counters --connection redis --json
    qframe counters --reset
    """

    def act(queue: Connection) -> list[Counted]:
        metrics = Metrics(queue.store, queue.name)
        if reset:
            metrics.reset()
        return counts.read(metrics)

    done = JobConnections(configured(config), connection).each(act)
    if reset:
        say(f"reset the counters of {names(done)}")
        return
    found = [each for _, several in done for each in several]
    queues = (each for each in found if each.what == "queue")
    total = Counted("total", "", "", counts.added_up(queues))
    rows = [
        {
            "what": each.what,
            "connection": each.connection,
            "name": each.name,
            **{_key(counter): count for counter, count in each.counts.items()},
        }
        for each in (total, *found)
    ]
    print_rows(rows if found or as_json else (), empty="nothing was counted yet", as_json=as_json)


def _key(counter: str) -> str:
    return counter.replace(" ", "_")
