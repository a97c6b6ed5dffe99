"""Commands about one job: status, cancel."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console.binning import binning, say_with_undo
from qframe.console.confirm import stopped
from qframe.console.connections import JobConnections, configured, find_failed
from qframe.console.follow import FollowState, followed
from qframe.console.options import Config, ConnectionOption, DryRun, Json, NoBin, Where, Yes
from qframe.console.text import print_error, print_facts, print_json, print_rows, say
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import JobStatus, State
from qframe.dispatch import status as statuses
from qframe.dispatch.event import json_value, send_event
from qframe.exceptions import ConfigurationError, InvalidStep, ResultTooLarge
from qframe.failed.filters import RUNNING, WAITING, Filter, tags_of
from qframe.features import status as facts
from qframe.manager import QueueManager
from qframe.operations import ids, jobs
from qframe.operations.bin import BinAction
from qframe.operations.bin_forecast import BinForecast
from qframe.operations.board import Board
from qframe.operations.queues import with_jobs
from qframe.operations.running import listed as listed_running
from qframe.operations.steps import listed
from qframe.payload import tracebacks
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import iso

_STEP_COLUMNS = ("step", "kind", "kept_at", "value")
_BAD = {State.FAILED, State.CANCELLED}
_SEARCH = 60.0
"""Seconds for reading the data of running jobs, if a filter asks for it."""
_EVERY = 0.2
"""Seconds between two checks whether a running job was ended."""
_LOOK = 1.0
"""Seconds between two checks whether a running job without status is still there."""
_PATIENCE = 10.0
"""Seconds the worker of a running job has to end it; it looks about once a second."""

_WHICH = "uuid of the job, as `send()` returned it, or its beginning or end."
Id = Annotated[
    str,
    typer.Argument(metavar="ID", help=_WHICH),
]


def status(
    uuid: Id,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Refresh until the job has ended.")
    ] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Show the state, progress and result of a tracked job.

    For a job in the line of its group it shows the position, tracked or not.

    With --follow the exit code is 0 when the job is done, 1 when it failed or was cancelled.

      qframe status 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe status 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 --follow
    """
    connections = JobConnections(configured(config), connection)
    found = _read(connections, uuid)
    if found is None and (known := _whole(connections, uuid)) is not None:
        uuid, found = known, _read(connections, known)
    if found is None:
        kept = _steps(connections, uuid)
        _show(_untracked(connections, uuid, kept), kept, as_json=as_json)
        return int(follow)
    if follow:
        *_, found = followed(found, _fresh, _standing, as_json=as_json)
    lined = _in_line(connections, uuid, found.queue) if found.state is State.WAITING else {}
    _show({**found.to_dict(), **lined}, _steps(connections, uuid), as_json=as_json)
    return int(follow and found.state in _BAD)


def event(
    uuid: Id,
    name: Annotated[str, typer.Argument(help="The name that the job waits for.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value.")] = "null",
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Send an event to a job that waits for it, now or later.

    Exits 1 if an event of this name was sent before, or the job's wait has timed out.

      qframe event 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 paid
      qframe event 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 paid '{"by": "card"}'
    """
    connections = JobConnections(configured(config), connection)
    uuid = _whole_for_event(connections, uuid)
    try:
        is_new = send_event(uuid, name, json_value(value), connection)
    except (InvalidStep, ResultTooLarge) as error:
        raise ConfigurationError(str(error)) from None
    if is_new:
        say(f"sent the event {name} to {uuid}")
        return 0
    return print_error(
        f"the event {name} does not count: {uuid} has one from before, or its wait has timed out", 1
    )


def cancel(
    uuid: Annotated[
        str,
        typer.Argument(metavar="ID", help=_WHICH),
    ] = "",
    *,
    where: Where = "",
    running: Annotated[
        bool, typer.Option("--running", help="Interrupt the job if it runs.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    no_bin: NoBin = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Cancel jobs that wait; with --running also those that run.

    Exits 1 if the job runs, or its worker has not ended it within ten seconds. With --where,
    workers are asked to end the running jobs, and the command does not wait for them; on a terminal
    it asks first, and a "no" exits 1. For an hour, `qframe undo` brings back what waited.

      qframe cancel 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe cancel 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 --running
      qframe cancel --where 'class:app.Newsletter tag:tenant:7' --running
    """
    if bool(uuid) is bool(where):
        raise ConfigurationError("say which: a uuid, or --where FILTER")
    if dry_run and uuid:
        raise ConfigurationError("--dry-run goes with --where FILTER")
    queues = configured(config)
    connections = JobConnections(queues, connection)
    if where:
        forecast = BinForecast(queues, is_on=not no_bin)
        what = partial(_chosen_in_words, queues, connections, where, forecast, running=running)
        if (code := stopped(what, dry_run=dry_run, yes=yes)) is None:
            with binning(queues, "cancel", where, is_on=not no_bin) as into:
                _cancel_chosen(queues, connections, where, into, running=running)
        return code or 0
    uuid, outcomes = _cancelled(connections, uuid, running=running)
    if not outcomes:
        raise ConfigurationError(_nothing_to_cancel(connections, uuid))
    queue, outcome = outcomes[0]
    if outcome is Cancelling.REMOVED:
        say(f"cancelled {uuid}")
        return 0
    if outcome is Cancelling.NOTED:
        names = " and ".join(each.name for each, _ in outcomes)
        say(f"noted: {names} cannot be searched, so a worker that gets {uuid} will drop it")
        return 0
    if not running:
        return print_error(f"{uuid} is running: --running interrupts it", 1)
    if _was_ended(queue, uuid):
        say(f"cancelled {uuid}, which was running")
        return 0
    return print_error(f"{uuid} was not ended within {_PATIENCE:g} s by its worker", 1)


def _cancelled(
    connections: JobConnections, given: str, *, running: bool
) -> tuple[str, list[tuple[Connection, Cancelling]]]:
    """Cancels a job, and returns its whole id, and the result on its connection."""

    def act(uuid: str) -> list[tuple[Connection, Cancelling]]:
        done = connections.each(lambda queue: statuses.cancel_on(queue, uuid, running=running))
        return [(queue, outcome) for queue, outcome in done if outcome is not None]

    def note(queue: Connection) -> bool:
        return statuses.note_unseen(queue, given, running=running)

    outcomes = act(given)
    if outcomes:
        return given, outcomes
    if not ids.may_be_part(given):
        return given, [(queue, Cancelling.NOTED) for queue, done in connections.each(note) if done]
    there = connections.each(lambda queue: [*_cancellable(queue, given)])
    whole = ids.whole(given, itertools.chain(*(each for _, each in there)))
    return (given, []) if whole is None else (whole, act(whole))


def _cancellable(queue: Connection, given: str) -> Iterator[str]:
    """Yields the ids of jobs that may be cancelled; if they cannot be listed, of tracked ones."""
    if Capability.SEARCH in queue.capabilities:
        return ids.queued(queue, given)
    return ids.tracked(queue.backend)


def _chosen_in_words(
    queues: QueueManager,
    connections: JobConnections,
    where: str,
    forecast: BinForecast,
    *,
    running: bool,
) -> str:
    """Returns how many jobs a filter chooses, as what is to be done."""
    waiting = Filter(where, WAITING)

    def count(queue: Connection) -> int:
        if Capability.SEARCH not in queue.capabilities:
            return 0
        count = 0
        for found in _waiting(queue, waiting):
            count += len(found)
            for each in found:
                forecast.add(queue, each.payload)
        return count

    counts = connections.each(count)
    total = sum(each for _, each in counts)
    words = f"cancel {count_of(total, 'job that waits', 'jobs that wait')}{forecast.words()}"
    if not running:
        return words
    names = {queue.name for queue, _ in counts}
    found = listed_running(Board(queues), Filter(where, RUNNING), _SEARCH).jobs
    there = sum(each.connection in names for each in found)
    return f"{words} and {there} that run"


def _cancel_chosen(
    queues: QueueManager,
    connections: JobConnections,
    where: str,
    into: BinAction,
    *,
    running: bool,
) -> None:
    """Cancels the jobs that a filter chooses, and says how many."""
    chosen = Filter(where, WAITING)
    removed = connections.each(lambda queue: _cancel_all(queue, chosen, into))
    total = sum(count or 0 for _, count in removed)
    say_with_undo(f"cancelled {count_of(total, 'job', 'jobs')}", into)
    for queue, count in removed:
        if count is None:
            print_error(f"{queue.name} cannot list its jobs: none of them was looked at", 0)
    if running:
        _end_all(Board(queues), {queue.name for queue, _ in removed}, Filter(where, RUNNING))


def _cancel_all(queue: Connection, chosen: Filter, into: BinAction) -> int | None:
    """Removes the waiting jobs that a filter chooses; None if they cannot be listed."""
    if Capability.SEARCH not in queue.capabilities:
        return None if Capability.RESERVE in queue.capabilities else 0
    count = 0
    for found in _waiting(queue, chosen):
        count += sum(jobs.remove(queue, each, into.at(queue)) for each in found)
    return count


def _waiting(queue: Connection, chosen: Filter) -> Iterator[list[jobs.FilteredMessage]]:
    """Yields the waiting jobs that a filter chooses, those of each place together."""
    for name in [chosen.queue] if chosen.queue else with_jobs(queue):
        for place in (Place.READY, Place.DELAYED, Place.BURIED):
            yield [*jobs.chosen_of(queue, name, place, chosen)]


def _end_all(board: Board, names: Collection[str], chosen: Filter) -> None:
    """Tells workers to end the running jobs that a filter chooses."""
    found = listed_running(board, chosen, _SEARCH)
    there = [each for each in found.jobs if each.connection in names]
    for each in there:
        statuses.interrupt(board.connection(each.connection), each.uuid)
    say(f"asked the workers to end {count_of(len(there), 'running job', 'running jobs')}")
    if found.note:
        print_error(found.note, 0)


def _read(connections: JobConnections, uuid: str) -> JobStatus | None:
    done = connections.each(lambda queue: facts.read(queue.backend, uuid))
    return next((status for _, status in done if status is not None), None)


def _whole(connections: JobConnections, given: str) -> str | None:
    """Returns the id of a tracked or failed job, or one with steps, from its beginning or end."""
    if not ids.may_be_part(given):
        return None
    there = connections.each(
        lambda queue: [*ids.tracked(queue.backend), *ids.with_steps(queue.backend)]
    )
    failed = ids.failed(connections.failed_stores())
    return ids.whole(given, itertools.chain(*(each for _, each in there), failed))


def _whole_for_event(connections: JobConnections, given: str) -> str:
    """Returns the id of the job that an event is for: a whole one may be of a job to come."""
    if not ids.may_be_part(given):
        return given
    whole = _whole(connections, given)
    if whole is None:
        there = connections.each(lambda queue: [*ids.queued(queue, given)])
        whole = ids.whole(given, itertools.chain(*(each for _, each in there)))
    if whole is None:
        raise ConfigurationError(f"no job has an id that begins or ends in {one_line(given, 60)!r}")
    return whole


def _steps(connections: JobConnections, uuid: str) -> list[dict[str, Any]]:
    """Returns what is kept of a job with durable steps."""
    done = connections.each(
        lambda queue: listed(queue.context, uuid) if Capability.FACTS in queue.capabilities else []
    )
    return [step.model_dump() for step in next((each for _, each in done if each), [])]


def _in_line(connections: JobConnections, uuid: str, queue: str = "") -> dict[str, Any]:
    """Returns what is known of a job that stands in the line of its group; {} of any other."""
    done = connections.each(lambda each: each.look_in_line(uuid, queue or None)[0])
    for connection, lined in done:
        if lined is not None:
            job = jobs.FilteredMessage.of(connection.name, lined)
            return {
                "name": job.name,
                "connection": connection.name,
                "queue": lined.queue,
                "tags": tags_of(job),
                "group": lined.group,
                "position": lined.position,
            }
    return {}


def _untracked(connections: JobConnections, uuid: str, kept: Sequence[object]) -> dict[str, Any]:
    """Returns what failed jobs and lines say of a job without status; steps may be kept of it."""
    found = find_failed(connections.failed_stores(), uuid)
    if found is None and (lined := _in_line(connections, uuid)):
        return {"uuid": uuid, "state": State.WAITING.value, **lined, "remark": "not tracked"}
    if found is None and kept:
        return {"uuid": uuid, "remark": "not tracked; its steps so far:"}
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
        "tags": tags_of(record),
        "remark": f"not tracked; qframe failed {record.uuid} shows more",
    }


def _nothing_to_cancel(connections: JobConnections, uuid: str) -> str:
    known = _read(connections, uuid)
    if known is not None and known.is_final:
        return _has_ended(known)
    unable = [
        queue.name
        for queue in statuses.connections(connections.queues, connections.only)
        if Capability.SEARCH not in queue.capabilities
    ]
    more = f" ({', '.join(unable)} cannot be searched)" if unable else ""
    return f"no job {one_line(uuid, 100)!r} waits or runs{more}"


def _has_ended(known: JobStatus) -> str:
    return f"{known.uuid} has ended already: {known.state}"


def _was_ended(queue: Connection, uuid: str) -> bool:
    """Waits until the worker has removed the request; if it does not, removes it.

    Raises `ConfigurationError` if the job came to another end by itself.
    """
    store, key = queue.store, facts.cancel_key(uuid)
    deadline, look_at, missed = time.monotonic() + _PATIENCE, time.monotonic() + _LOOK, 0
    while store.get(key) != [None]:
        known, now = facts.read(queue.backend, uuid), time.monotonic()
        if known is None and now > look_at and Capability.SEARCH in queue.capabilities:
            look_at = now + _LOOK
            missed += queue.find(uuid) is None
        by_itself = known is not None and known.is_final and known.state is not State.CANCELLED
        if by_itself or missed > 1:
            store.delete(key)  # or the next attempt ends at once
            raise ConfigurationError(_has_ended(known) if known else f"{uuid} has ended already")
        if now > deadline:
            return not store.delete(key)  # already gone: it was granted just now
        time.sleep(_EVERY)
    return True


# -- how it is shown ------------------------------------------------------------------------------


def _show(facts: dict[str, Any], kept: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({**facts, "steps": kept} if kept else facts)
    else:
        print_facts({key: _text(key, value) for key, value in facts.items() if key != "log"})
        if kept:
            print_rows([*map(_shown_step, kept)], _STEP_COLUMNS, empty="")
        for line in facts.get("log") or ():
            say(line)


def _shown_step(step: dict[str, Any]) -> dict[str, Any]:
    ends = "" if step["until"] is None else f"until {step['until']}"
    value = ends or one_line(json.dumps(step["value"], ensure_ascii=False), 200)
    return {"step": step["name"], "kind": step["kind"], "kept_at": step["at"], "value": value}


def _text(key: str, value: Any) -> str | None:  # noqa: ANN401 (any fact)
    if value is None or (key == "retries" and not value):
        return None
    if key.endswith("_at"):
        return iso(value)
    if key == "progress":
        return f"{value:.0%}"
    if key == "tags":
        return ", ".join(value)
    if isinstance(value, dict) and key == "exception":
        value = f"{value['type']}: {value['message']}"
    return one_line(str(value), 1000)


def _fresh(status: JobStatus) -> JobStatus:
    now = statuses.job_status(status.uuid, status.connection or None)
    if now is None:
        raise ConfigurationError(f"the status of {status.uuid} has expired")
    return now


def _standing(status: JobStatus) -> FollowState:
    done = 1.0 if status.state is State.COMPLETE else status.progress or 0.0
    percent = "" if status.progress is None else f" {status.progress:.0%}"
    return FollowState(
        status.is_final,
        status.state.value,
        done,
        1.0,
        one_line(status.message or status.name, 60),
        f"{status.state}{percent} {status.message}".rstrip(),
    )
