"""Reading: what is known of a connection's queues now, and what comes of it in some hours."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError
from qframe.forecast.course import MINUTE, QueueCourse, QueueDemand, WorkerGroup, courses
from qframe.forecast.history import (
    NEEDED_DAYS,
    NEEDED_RUNS,
    PastLoad,
    minutes_of_part,
    part_at,
    slot_at,
)
from qframe.forecast.surges import PlannedRuns, ScheduledSurge, planned, surges
from qframe.manager import QueueManager
from qframe.payload.text import count_of
from qframe.worker import queue_facts, roster
from qframe.worker.concurrency import in_each, over_all
from qframe.worker.queues import WorkedQueues

LONGEST = 24.0
"""Hours that can be forecast."""
_MOST = 200
"""So many queues of a connection are read."""
_DUE_STEP = 300.0
"""Seconds in which delayed jobs that are due are counted together."""


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """What comes of a queue; with `unknown` nothing but that is known."""

    connection: str
    queue: str
    read_at: float
    unknown: str = ""
    """Why nothing can be said."""
    course: QueueCourse = field(default_factory=QueueCourse)
    waiting: float = 0.0
    workers: int = 0
    """How many take its jobs."""
    slots: int = 0
    is_paused: bool = False
    surges: Sequence[ScheduledSurge] = ()
    due: Sequence[tuple[float, int]] = ()
    """When delayed jobs are due, and how many."""

    @property
    def behind(self) -> float:
        """The longest time in seconds for which a job will have waited."""
        return max(self.course.behind, default=0.0)


@dataclass(slots=True)
class _Crew:
    """The workers of a connection."""

    by_queues: Counter[tuple[str, ...]] = field(default_factory=Counter)
    workers: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)

    @property
    def groups(self) -> list[WorkerGroup]:
        return [WorkerGroup(queues, slots) for queues, slots in self.by_queues.items()]

    def add(self, queues: Sequence[str], names: Collection[str], workers: int, slots: int) -> None:
        try:
            worked = tuple(WorkedQueues(queues, lambda: names).find())
        except ConfigurationError:  # of another version
            return
        self.by_queues[worked] += slots
        for name in worked:
            self.workers[name] += workers
            self.slots[name] += slots


def forecasts(
    manager: QueueManager, connection: Connection, hours: float, queue: str = ""
) -> list[QueueForecast]:
    """Return what comes of the queues of a connection, or of one, in so many hours.

    Raises `BackendUnavailable`.
    """
    now = time.time()
    able = connection.capabilities
    if Capability.FACTS not in able or not connection.is_measured:
        why = f"{connection.name} keeps no metrics"
        return [QueueForecast(connection.name, queue or connection.default_queue, now, why)]
    if Capability.SIZE not in able:
        why = f"{connection.name} cannot count its jobs"
        return [QueueForecast(connection.name, queue or connection.default_queue, now, why)]
    return _ConnectionForecast(manager, connection, now, hours, queue).made()


class _ConnectionForecast:
    """One reading of a connection."""

    def __init__(
        self, manager: QueueManager, connection: Connection, now: float, hours: float, queue: str
    ) -> None:
        self._manager, self._connection, self._now = manager, connection, now
        self._minutes = max(1, math.ceil(min(hours, LONGEST) * 60))
        self._load = PastLoad.of(connection, now)
        listed = [*islice(connection.queues(), _MOST)] if self._can_list else []
        named = [queue] if queue else [connection.default_queue]
        self._names = list(dict.fromkeys([*named, *listed, *sorted(self._load.queues)]))[:_MOST]
        self._wanted = [queue] if queue else self._names
        self._crew = self._read_crew()
        self._pauses = queue_facts.pauses(connection)
        self._plans: list[PlannedRuns] = []

    @property
    def _can_list(self) -> bool:
        return Capability.LIST in self._connection.capabilities

    def _read_crew(self) -> _Crew:
        crew, mine = _Crew(), self._connection.name
        for each in roster.listed(self._connection.store):
            if each.connection == mine and not each.is_gone and each.state != "paused":
                crew.add(each.queues, self._names, 1, each.concurrency)
        for pool in roster.pools(self._connection.store):
            if pool.connection == mine and pool.shares and not pool.is_gone:
                # A supervisor adds workers as jobs come.
                more = max(0, (pool.most or pool.size) - pool.size)
                crew.add(pool.queues, self._names, more, more * pool.concurrency)
        return crew

    def made(self) -> list[QueueForecast]:
        if not self._load.is_enough:
            why = (
                "too little history: metrics of "
                f"{count_of(self._load.days, 'whole day', 'whole days')}, {NEEDED_DAYS} are needed"
            )
            return [self._forecast(each, why) for each in self._wanted]
        until = self._now + self._minutes * MINUTE
        self._plans = planned(self._manager, self._now, until)
        demands = {each: self._demand(each) for each in self._beside_wanted()}
        found = courses([each for each, _, _ in demands.values()], self._crew.groups, self._minutes)
        return [self._described(name, found[name], *demands[name]) for name in self._wanted]

    def _beside_wanted(self) -> list[str]:
        """Return the wanted queues, and those that share workers with them."""
        shared = {
            name
            for group in self._crew.groups
            if not {*group.queues}.isdisjoint(self._wanted)
            for name in group.queues
        }
        return [*dict.fromkeys([*self._wanted, *(each for each in self._names if each in shared)])]

    def _demand(
        self, name: str
    ) -> tuple[QueueDemand, list[ScheduledSurge], list[tuple[float, int]]]:
        connection, load = self._connection, self._load
        sizes = connection.sizes(name)
        oldest = queue_facts.oldest(connection, name) if sizes.ready else None
        due = self._due(name) if sizes.delayed else []
        coming = surges(self._plans, load, name)
        arrivals = self._usual(name, coming)
        real = [each for each in coming if not each.is_paused]
        for at, jobs in [*((each.at, each.jobs) for each in real), *due]:
            minute = int((at - self._now) // MINUTE)
            if 0 <= minute < self._minutes:
                arrivals[minute] += jobs
        known = {slot: load.work(name, slot) for slot in self._slots()}
        rest = next((each for each in known.values() if each is not None), 1.0)
        work = [known[slot_at(at)] or rest for at in self._moments()]
        demand = QueueDemand(
            name,
            arrivals,
            work,
            waiting=float(sizes.ready or 0),
            oldest=oldest or 0.0,
            at_once=self._limit(name),
            is_paused="" in self._pauses or name in self._pauses,
        )
        return demand, real, due

    def _moments(self) -> Iterable[float]:
        return (self._now + minute * MINUTE for minute in range(self._minutes))

    def _slots(self) -> range:
        last = self._now + (self._minutes - 1) * MINUTE
        return range(slot_at(self._now), slot_at(last) + 1)

    def _usual(self, name: str, coming: Sequence[ScheduledSurge]) -> list[float]:
        """Return the usual arrivals by minute, without what schedules put there."""
        load, parts = self._load, dict[int, list[float]]()
        for slot in self._slots():
            jobs, shape = load.expected(name, slot), load.shape(name, slot)
            surging = sum(each.jobs for each in coming if slot_at(each.at) == slot)
            if surging and jobs > surging / 2:
                jobs, shape = max(0.0, jobs - surging), [1 / len(shape)] * len(shape)
            parts[slot] = [jobs * part / minutes_of_part() for part in shape]
        return [parts[slot_at(at)][part_at(at)] for at in self._moments()]

    def _due(self, name: str) -> list[tuple[float, int]]:
        steps = math.ceil(self._minutes * MINUTE / _DUE_STEP)
        backend = self._connection.backend
        counts = backend.due_by_step(name, self._now, _DUE_STEP, steps)
        return [(self._now + at * _DUE_STEP, count) for at, count in enumerate(counts) if count]

    def _limit(self, name: str) -> float:
        settings, workers = self._manager.settings.queues, self._crew.workers[name]
        here, everywhere = in_each(settings, name), over_all(settings, name)
        return min(
            math.inf if here is None else here * workers,
            math.inf if everywhere is None else everywhere,
        )

    def _described(
        self,
        name: str,
        course: QueueCourse,
        demand: QueueDemand,
        coming: list[ScheduledSurge],
        due: list[tuple[float, int]],
    ) -> QueueForecast:
        is_any = demand.waiting or any(each > 0 for each in demand.arrivals)
        ended = self._load.ended(name)
        if is_any and ended < NEEDED_RUNS:
            return self._forecast(
                name,
                f"too little history: {count_of(ended, 'job has', 'jobs have')} ended in 14 days, "
                f"{NEEDED_RUNS} are needed to know how long they run",
            )
        return QueueForecast(
            self._connection.name,
            name,
            self._now,
            course=course,
            waiting=demand.waiting,
            workers=self._crew.workers[name],
            slots=self._crew.slots[name],
            is_paused=demand.is_paused,
            surges=tuple(coming),
            due=tuple(due),
        )

    def _forecast(self, name: str, unknown: str) -> QueueForecast:
        return QueueForecast(self._connection.name, name, self._now, unknown)
