"""Surges: the jobs that schedules put into queues, known from what came after their last runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median_low
from typing import NamedTuple

from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.forecast.history import PastLoad
from qframe.manager import QueueManager
from qframe.schedules.known import MOST, calendar_of, summaries
from qframe.schedules.rows import keys_of
from qframe.schedules.schedulers import able
from qframe.schedules.state import ScheduleProgress

_WITHIN = 600.0
"""Seconds after a run in which its jobs come."""
_RUNS = 3
"""So many of its last runs are looked at."""
_NEEDED = 2
"""So many are needed."""
_LEAST = 100
"""So many jobs more than usual are a surge."""
_MOST_TIMES = 100


class ScheduledSurge(NamedTuple):
    """The jobs that come after a planned run."""

    at: float
    schedule: str
    queue: str
    jobs: float
    runs: int
    """After so many of its last runs as many came."""
    is_paused: bool = False
    """Whether nothing comes, as the schedule is paused."""


class PlannedRuns(NamedTuple):
    """A schedule: when it runs next, and when it ran, the latest first."""

    schedule: str
    coming: tuple[float, ...]
    past: tuple[float, ...]
    is_paused: bool


def planned(queues: QueueManager, now: float, until: float) -> list[PlannedRuns]:
    """Return the schedules of all connections that answer which run before a moment."""
    return [*_planned(queues, now, until)]


def _planned(queues: QueueManager, now: float, until: float) -> Iterator[PlannedRuns]:
    for connection in able(queues):
        try:
            known = [each for each in summaries(queues, connection)[:MOST] if not each.refused]
            keys = keys_of(queues, connection)
            progress = [keys.progress(each.name) for each in known]
            paused, *texts = connection.store.get(keys.paused(), *progress)
        except BackendUnavailable:
            continue
        for about, text in zip(known, texts, strict=True):
            done = None if text is None else ScheduleProgress.read(text)
            if done is None:
                continue
            try:
                times = calendar_of(about).upto(now, until)
            except ConfigurationError:  # of another version
                continue
            coming = tuple(at for at, _ in zip(times, range(_MOST_TIMES), strict=False))
            past = tuple(run.pushed_at for run in done.runs[:_RUNS])
            if coming and len(past) >= _NEEDED:
                is_paused = paused is not None or done.paused
                yield PlannedRuns(about.name, coming, past, is_paused)


def surges(plans: Iterable[PlannedRuns], load: PastLoad, queue: str) -> list[ScheduledSurge]:
    """Return the surges of a queue, in order; of several schedules at a time the largest."""
    found: dict[int, ScheduledSurge] = {}
    for plan in sorted(plans, key=lambda each: each.is_paused):
        more = [_more_than_usual(load, queue, at) for at in plan.past]
        jobs = median_low(more) if more else 0.0
        if jobs < _LEAST:
            continue
        for at in plan.coming:
            surge = ScheduledSurge(at, plan.schedule, queue, jobs, len(more), plan.is_paused)
            place = int(at // _WITHIN)
            if place not in found or found[place].jobs < jobs:
                found[place] = surge
    return [found[place] for place in sorted(found)]


def _more_than_usual(load: PastLoad, queue: str, at: float) -> float:
    came, usual = load.came_between(queue, at, at + _WITHIN)
    return came - usual if came > 2 * usual else 0.0
