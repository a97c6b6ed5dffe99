"""Commands about one job: status, cancel."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qframe.console.common import Config, ConnectionOption, Json, configured, each_answering
from qframe.console.text import say, say_error, say_json
from qframe.contracts.backend import Capability
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import JobStatus, State
from qframe.dispatch import status as statuses
from qframe.exceptions import ConfigurationError
from qframe.failed import search
from qframe.features import status as facts
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.payload.timing import iso

if TYPE_CHECKING:
    from rich.progress import Progress

_BAD = {State.FAILED, State.CANCELLED}
_EVERY = 0.2
"""Seconds between two looks at a job that is followed."""
_LOOK = 1.0
"""Seconds between two looks whether a running job without status is still there."""
_PATIENCE = 10.0
"""Seconds the worker of a running job is given to end it; it looks about once a second."""

Id = Annotated[str, typer.Argument(metavar="ID", help="uuid of the job, as `send()` gave it.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("cancel")(cancel)


def status(
    uuid: Id,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Show it until it has ended.")] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Show where a tracked job is: its state, times, worker, progress, result or error.

    With --follow the exit code is 0 when the job is done, 1 when it failed or was cancelled.

    \b
      qframe status 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe status 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 --follow
    """  # noqa: D301 (\b keeps typer from folding the examples)
    queues = configured(config)
    found = _read(queues, connection, uuid)
    if found is None:
        _show(_untracked(queues, connection, uuid), as_json=as_json)
        return int(follow)
    if follow:
        found = _follow(found, as_json=as_json)
    _show(found.to_dict(), as_json=as_json)
    return int(follow and found.state in _BAD)


def cancel(
    uuid: Id,
    *,
    running: Annotated[
        bool, typer.Option("--running", help="Interrupt it if it runs, as USR1 does.")
    ] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Remove a job that waits, is delayed or buried; with --running end one that runs.

    Exit code 1 when it runs, or its worker has not ended it in ten seconds.

    \b
      qframe cancel 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe cancel 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 --running
    """  # noqa: D301 (\b keeps typer from folding the examples)
    queues = configured(config)
    done = each_answering(
        queues, connection, lambda queue: statuses.cancel_on(queue, uuid, running=running)
    )
    outcomes = [(queue.name, outcome) for queue, outcome in done if outcome is not None]
    if not outcomes:
        raise ConfigurationError(_nothing_to_cancel(queues, connection, uuid))
    name, outcome = outcomes[0]
    if outcome is Cancelling.REMOVED:
        say(f"cancelled {uuid}")
        return 0
    if not running:
        return say_error(f"{uuid} is running: --running interrupts it", 1)
    if _was_ended(queues, name, uuid):
        say(f"cancelled {uuid}, which was running")
        return 0
    return say_error(f"{uuid} has not been ended in {_PATIENCE:g} s by the worker that runs it", 1)


def _read(queues: QueueManager, connection: str | None, uuid: str) -> JobStatus | None:
    done = each_answering(queues, connection, lambda queue: facts.read(queue.backend, uuid))
    return next((status for _, status in done if status is not None), None)


def _untracked(queues: QueueManager, connection: str | None, uuid: str) -> dict[str, Any]:
    """Give what the failed jobs say of a job without status."""
    done = each_answering(queues, connection, lambda queue: queues.failed_store(queue.name))
    found = search.find(search.distinct(store for _, store in done), uuid)
    if found is None:
        raise ConfigurationError(
            f"no status of a job {one_line(uuid, 100)!r}: it was not tracked, or it has expired"
        )
    record = found[1]
    return {
        "uuid": record.uuid,
        "state": "FAILED",
        "name": record.name,
        "connection": record.connection,
        "queue": record.queue,
        "attempt": record.attempts,
        "ended_at": record.failed_at,
        "exception": tracebacks.brief_of(record.exception, 1000),
        "remark": f"not tracked; qframe failed {record.uuid} shows more",
    }


def _nothing_to_cancel(queues: QueueManager, connection: str | None, uuid: str) -> str:
    known = _read(queues, connection, uuid)
    if known is not None and known.is_final:
        return _has_ended(known)
    unable = [
        queue.name
        for queue in statuses.connections(queues, connection)
        if Capability.SEARCH not in queue.capabilities
    ]
    more = f" ({', '.join(unable)} cannot be searched)" if unable else ""
    return f"no job {one_line(uuid, 100)!r} waits or runs{more}"


def _has_ended(known: JobStatus) -> str:
    return f"{known.uuid} has ended already: {known.state}"


def _was_ended(queues: QueueManager, connection: str, uuid: str) -> bool:
    """Wait until the worker has taken back the wish it granted; if it does not, take it back.

    Raises `ConfigurationError` where the job came to another end by itself.
    """
    queue = queues.connection(connection)
    store, key = queue.store, facts.cancel_key(uuid)
    deadline, look_at, missed = time.monotonic() + _PATIENCE, time.monotonic() + _LOOK, 0
    while store.get(key) != [None]:
        known, now = facts.read(queue.backend, uuid), time.monotonic()
        if known is None and now > look_at and Capability.SEARCH in queue.capabilities:
            look_at = now + _LOOK
            missed += queue.find(uuid) is None
        by_itself = known is not None and known.is_final and known.state is not State.CANCELLED
        if by_itself or missed > 1:
            store.delete(key)  # or the job ends at once when it is tried again
            raise ConfigurationError(_has_ended(known) if known else f"{uuid} has ended already")
        if now > deadline:
            return not store.delete(key)  # gone: it was granted just now
        time.sleep(_EVERY)
    return True


# -- how it is shown ------------------------------------------------------------------------------


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(facts)
        return
    for key, value in facts.items():
        text = _text(key, value)
        if text:
            say(f"{key.removesuffix('_at'):<12}{text}")


def _text(key: str, value: Any) -> str:  # noqa: ANN401 (any fact)
    if value is None or value == "" or (key == "retries" and not value):
        return ""
    if key.endswith("_at"):
        return f"{iso(value)} UTC"
    if key == "progress":
        return f"{value:.0%}"
    if isinstance(value, dict) and key == "exception":
        return one_line(f"{value['type']}: {value['message']}", 1000)
    return one_line(str(value), 1000)


def _follow(first: JobStatus, *, as_json: bool) -> JobStatus:
    """Show a job until it has ended, and give its last status."""
    seen = first
    if as_json or not sys.stdout.isatty():
        for seen in _changes(first):
            if not as_json:
                say(_line(seen))
        return seen
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 (it costs, and is rare)

    columns = (
        TextColumn("{task.fields[state]}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=1.0, state=first.state.value)
        for seen in _changes(first):
            _draw(bar, int(task), seen)
    return seen


def _draw(bar: Progress, task: int, status: JobStatus) -> None:
    done = 1.0 if status.state is State.COMPLETE else status.progress or 0.0
    bar.update(
        bar.task_ids[task],
        completed=done,
        description=one_line(status.message or status.name, 60),
        state=status.state.value,
    )


def _line(status: JobStatus) -> str:
    done = "" if status.progress is None else f" {status.progress:.0%}"
    return f"{status.state}{done} {status.message}".rstrip()


def _changes(status: JobStatus) -> Iterator[JobStatus]:
    """Give a job's status, and again when it is another, until it is final."""
    yield status
    while not status.is_final:
        time.sleep(_EVERY)
        now = statuses.job_status(status.uuid, status.connection or None)
        if now is None:
            raise ConfigurationError(f"the status of {status.uuid} has expired")
        if now != status:
            status = now
            yield status
