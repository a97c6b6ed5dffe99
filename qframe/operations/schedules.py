"""Schedules, as people see them: when each runs, how runs ended; pausing, running now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.step import Set, Step
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.payload.scheduled import NamedRun
from qframe.payload.text import one_line
from qframe.payload.timing import iso
from qframe.schedules.definition import checked_name
from qframe.schedules.known import MOST, calendar_of, summaries
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.state import ScheduleKeys, ScheduleProgress, ScheduleSummary
from qframe.schedules.timetable import ASKED
from qframe.schedules.words import in_words


class PastRunState(BaseModel):
    """A run. `state` is how its job ended, or `dispatched` if that is not known (yet)."""

    planned_at: str
    dispatched_at: str
    uuid: str
    state: str
    error: str
    manual: bool
    """Whether a person started it, at no planned time."""


class ScheduleState(BaseModel):
    """One schedule. Times are UTC."""

    connection: str
    name: str
    job: str
    when: str
    words: str
    """The same as a person says it, like `daily at 03:30 Europe/Vienna`."""
    timezone: str
    queue: str
    source: str
    """`code`, or `row` for what was added at run time."""
    place: str
    paused: bool
    next_at: str | None
    next_in_seconds: float | None
    late_seconds: float
    """How long it has been due without a scheduler running it."""
    missed: str
    grace_seconds: float
    """How old missed runs may be to be made up for."""
    overlap_seconds: float
    spread_seconds: int
    maintenance: bool
    """Whether it is dispatched even while the whole connection is paused."""
    conditions: int
    environments: list[str]
    refused: str
    """Why a row is not run: whoever added or changed it had no signing key."""
    count: int
    runs: list[PastRunState]
    skipped_at: str | None
    skipped: str
    """Why the last planned time without a run had none."""


def coming(state: ScheduleState) -> str:
    """Returns when it is next planned, or why it is not."""
    if state.refused:
        return "REFUSED: not signed"
    return "paused" if state.paused else state.next_at or "over"


def states(
    queues: QueueManager, connection: Connection, abouts: Iterable[ScheduleSummary] | None = None
) -> list[ScheduleState]:
    chosen = list(summaries(queues, connection) if abouts is None else abouts)[:MOST]
    keys, store, now = keys_of(queues, connection), connection.store, time.time()
    names = [each.name for each in chosen]
    paused, *texts = store.get(keys.paused(), *(keys.progress(name) for name in names))
    tracks = [None if text is None else ScheduleProgress.read(text) for text in texts]
    ends = _ends(connection, keys, names, tracks)
    return [
        _state(
            connection,
            about,
            progress,
            ends,
            now,
            paused=paused is not None or (progress is not None and progress.paused),
        )
        for about, progress in zip(chosen, tracks, strict=True)
    ]


def _ends(
    connection: Connection,
    keys: ScheduleKeys,
    names: Sequence[str],
    tracks: Sequence[ScheduleProgress | None],
) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns how runs ended, by schedule and number."""
    wanted = {
        NamedRun(name, run.at, run.number, keys.scope).end_key: (name, run.number)
        for name, progress in zip(names, tracks, strict=True)
        if progress is not None
        for run in progress.runs
    }
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for text, (name, number) in zip(connection.store.get(*wanted), wanted.values(), strict=True):
        try:
            end = json.loads(text or "{}")
        except ValueError:
            continue
        if end.get("number") == number:
            found[name, number] = end
    return found


def _state(
    connection: Connection,
    about: ScheduleSummary,
    progress: ScheduleProgress | None,
    ends: dict[tuple[str, int], dict[str, Any]],
    now: float,
    *,
    paused: bool,
) -> ScheduleState:
    since = now if progress is None else progress.at
    next_at = None if paused or about.refused else _next(about, since)
    runs = () if progress is None else progress.runs
    return ScheduleState(
        connection=connection.name,
        name=about.name,
        job=about.job,
        when=about.when,
        words=_words(about),
        timezone=about.zone,
        queue=about.queue,
        source="code" if about.module else "row",
        place=about.place,
        paused=paused,
        next_at=None if next_at is None else iso(next_at),
        next_in_seconds=None if next_at is None else round(max(0.0, next_at - now), 3),
        late_seconds=0.0 if next_at is None else round(max(0.0, now - next_at), 3),
        missed=about.missed,
        grace_seconds=about.grace,
        overlap_seconds=about.overlap,
        spread_seconds=about.spread,
        maintenance=about.maintenance,
        conditions=about.conditions,
        environments=list(about.environments),
        refused=about.refused,
        count=0 if progress is None else progress.number,
        runs=[
            PastRunState(
                planned_at=iso(run.at),
                dispatched_at=iso(run.pushed_at),
                uuid=run.uuid,
                state=str(
                    ends.get((about.name, run.number), {}).get("state", "dispatched")
                ).lower(),
                error=one_line(str(ends.get((about.name, run.number), {}).get("error", ""))),
                manual=run.manual,
            )
            for run in runs
        ],
        skipped_at=iso(progress.skipped_at) if progress is not None and progress.skipped else None,
        skipped="" if progress is None else progress.skipped,
    )


def _next(about: ScheduleSummary, since: float) -> float | None:
    try:
        return calendar_of(about).next(since)
    except ConfigurationError:
        return None


def _words(about: ScheduleSummary) -> str:
    try:
        return in_words(calendar_of(about))
    except ConfigurationError:
        return about.when


# -- acting ---------------------------------------------------------------------------------------


def pause(queues: QueueManager, connection: Connection, name: str | None = None) -> None:
    """Stops dispatching a schedule, or any of the connection; planned times pass by."""
    ScheduleRows(queues).pause(connection, name)


def resume(queues: QueueManager, connection: Connection, name: str | None = None) -> None:
    """Undoes `pause`: of one schedule, or, without a name, every pause there is."""
    ScheduleRows(queues).resume(connection, name)


def ask(queues: QueueManager, connection: Connection, name: str) -> None:
    """Makes a worker run a schedule now, within some seconds."""
    keys = keys_of(queues, connection)
    key = keys.requested(name)
    wanted = Set(key, connection.context.sealed(key, f"{time.time():.6f}"), ASKED)
    connection.backend.apply(Step(None, wanted, keys.mark()))


def find(queues: QueueManager, connection: Connection, name: str) -> ScheduleSummary:
    """Returns a schedule of a connection by name. Raises `ConfigurationError`."""
    for each in summaries(queues, connection):
        if each.name == name:
            return each
    raise ConfigurationError(f"there is no schedule {one_line(name, 150)!r} on {connection.name}")


def data_of_text(text: str) -> Any:  # noqa: ANN401 (any JSON)
    """Reads the fields of a job from JSON text. Raises `ConfigurationError`."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the data is not JSON: {one_line(str(error), 100)}") from None


def add(queues: QueueManager, connection: Connection, name: str, row: ScheduleRow) -> None:
    """Adds a row. Raises `ConfigurationError` if there is a schedule of this name."""
    if _named(queues, connection, name) is not None:
        raise ConfigurationError(f"there is a schedule {one_line(name, 150)!r} already")
    ScheduleRows(queues).add(connection, name, row)


def change(queues: QueueManager, connection: Connection, name: str, **fields: Any) -> None:  # noqa: ANN401 (the fields of a row)
    """Changes fields of a row. Raises `ConfigurationError` if there is no such row."""
    found = _named(queues, connection, name)
    if found is None or found.module:
        why = "there is no such row" if found is None else f"it is in the code, at {found.place}"
        raise ConfigurationError(f"{one_line(name, 150)!r} cannot be changed: {why}")
    ScheduleRows(queues).change(connection, name, **fields)


def _named(queues: QueueManager, connection: Connection, name: str) -> ScheduleSummary | None:
    checked_name(name)
    return next((each for each in summaries(queues, connection) if each.name == name), None)


def remove(queues: QueueManager, connection: Connection, name: str) -> None:
    """Removes a row. Raises `ConfigurationError` for a schedule of the code."""
    if not ScheduleRows(queues).remove(connection, name):
        raise ConfigurationError(f"{one_line(name, 150)!r} is in the code: pause it instead")
