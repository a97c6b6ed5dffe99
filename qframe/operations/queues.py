"""Queues, as people see them: sizes, ages, rates; and pausing them."""

from __future__ import annotations

import time

from pydantic import BaseModel

from qframe import events
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Set, Step
from qframe.drivers.store import pause_key, pause_note_key
from qframe.features.group_lines import lines, waiting_queues
from qframe.operations.activity import Activity
from qframe.payload.text import one_line
from qframe.worker import queue_facts

RATES_OVER = 5
"""The rates are measured over so many whole minutes."""


class QueueState(BaseModel):
    """One queue. Numbers that the backend cannot give are None."""

    connection: str
    queue: str
    ready: int | None = None
    delayed: int | None = None
    reserved: int | None = None
    buried: int | None = None
    approximate: bool = False
    """Whether the backend only estimates these numbers."""
    paused: bool = False
    oldest_seconds: float | None = None
    """How long the next job has been ready; None if none is, or that is unknown."""
    in_per_minute: float | None = None
    """How many jobs came, over the last minutes; None as long as that is unknown."""
    out_per_minute: float | None = None
    """How many ended."""
    empty_in_seconds: float | None = None
    """When it is empty at these rates; None: never, or unknown."""


class PauseNote(BaseModel):
    """Who has paused a queue, beside the pause of the same moment."""

    at: str
    who: str = ""
    where: str = ""


class GroupState(BaseModel):
    """One group of a queue that has jobs."""

    connection: str
    queue: str
    group: str
    in_line: int
    """How many jobs wait for a place, and have no message yet."""
    places: int
    """How many have one: they are in the queue, run, or hold it until they are tried again."""


def groups(connection: Connection, queue: str) -> list[GroupState]:
    """Returns the groups of a queue that have jobs, the longest lines first.

    Raises `BackendUnavailable`.
    """
    found = (each.line for each in lines(connection.context, queue))
    states = [
        GroupState(
            connection=connection.name,
            queue=queue,
            group=one_line(each.name, 200),
            in_line=each.waiting,
            places=len(each.placed),
        )
        for each in found
        if each.waiting or each.placed
    ]
    return sorted(states, key=lambda each: (-each.in_line, each.group))


def states(connection: Connection, activity: Activity | None = None) -> list[QueueState]:
    """Returns the queues of a connection: its default one, those that hold jobs or are paused."""
    return [_counted(connection, each, activity) for each in named(connection)]


def named(connection: Connection) -> list[QueueState]:
    """Returns the same queues without their sizes."""
    paused = queue_facts.pauses(connection)
    names = {connection.default_queue, *(name for name in paused if name)}
    if Capability.LIST in connection.capabilities:
        names.update(with_jobs(connection))
    return [
        QueueState(connection=connection.name, queue=name, paused=name in paused or "" in paused)
        for name in sorted(names)
    ]


def with_jobs(connection: Connection) -> list[str]:
    """Returns the queues that hold jobs, sorted.

    One of which all jobs stand in line, behind a failed one, has no message.
    """
    names = {*connection.queues()}
    if any(each.blocks for each in connection.context.groups.values()):
        names |= waiting_queues(connection.context)
    return sorted(names)


def _counted(connection: Connection, state: QueueState, activity: Activity | None) -> QueueState:
    name = state.queue
    if Capability.SIZE in connection.capabilities:
        sizes = connection.sizes(name)
        state = state.model_copy(update={**sizes.counted, "approximate": sizes.approximate})
    if state.ready:
        state.oldest_seconds = queue_facts.oldest(connection, name)
    if activity is not None:
        rates = activity.rates(name, RATES_OVER)
        state.out_per_minute = rates.ended
        state.in_per_minute = rates.came
        waiting = (state.ready or 0) + (state.reserved or 0)
        falls = -rates.grown if rates.grown is not None else rates.ended
        if waiting and falls > 0:
            state.empty_in_seconds = waiting / falls * 60
    return state


def pause(
    connection: Connection,
    queue: str = "",
    seconds: float | None = None,
    *,
    who: str = "",
    where: str = "",
) -> None:
    """Stops workers from taking jobs of a queue, or of any; for some seconds, or until `resume`.

    `who` does it, and from `where`, which `qframe why` tells.
    """
    at = f"{time.time():.3f}"
    note = PauseNote(at=at, who=one_line(who, 100), where=where).model_dump_json()
    connection.backend.apply(
        Step(
            None,
            Set(pause_key(connection.name, queue), at, seconds),
            Set(pause_note_key(connection.name, queue), note, seconds),
        )
    )
    events.fire(events.QueuePaused, connection.name, queue)


def resume(connection: Connection, queue: str = "") -> None:
    """Undoes `pause`: of one queue, or, without a name, every pause there is."""
    store, key = connection.store, pause_key(connection.name, queue)
    note = pause_note_key(connection.name, queue)
    every = [] if queue else [*store.keys(f"{key}:"), *store.keys(note)]
    for each in (key, note, *every):
        store.delete(each)
    events.fire(events.QueueResumed, connection.name, queue)
