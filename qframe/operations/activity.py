"""Activity: what the metrics of a connection say of a period, by queue and by class."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.metrics.by_tag import metrics_of
from qframe.metrics.kept import (
    BY_MINUTE,
    BY_TEN_MINUTES,
    BY_TWO_HOURS,
    Metrics,
    Resolution,
    Series,
    Slots,
    added_up,
)
from qframe.metrics.series import (
    OLDEST,
    PUSHED,
    RUN,
    STARTED,
    TIMED_OUT,
    WAIT,
    Fields,
    Histogram,
    Pair,
    add,
)

FINAL = ("done", "failed", "skipped", "cancelled")
"""The outcomes after which a job is over."""
WAITING = ("ready", "delayed", "reserved")
N = TypeVar("N", int, float)
_READ = ((6, BY_MINUTE), (48, BY_TEN_MINUTES))
"""Up to how many hours a resolution is read."""
_HOUR = 3600


class ClassState(BaseModel):
    """The jobs of one class in a period. Seconds are None if none ran."""

    connection: str
    job: str
    pushed: int
    """Only by programs that count: PHP does not."""
    started: int
    done: int
    failed: int
    timed_out: int
    per_minute: float
    run_p50: float | None
    run_p95: float | None
    run_mean: float | None
    run_longest: float | None
    wait_p50: float | None
    wait_p95: float | None
    wait_mean: float | None
    wait_longest: float | None


class Trend(BaseModel):
    """Numbers by steps of time, the current one last."""

    step_seconds: int
    pushed: list[int]
    started: list[int]
    done: list[int]
    failed: list[int]
    wait_p95: list[float | None]
    run_p95: list[float | None]
    ready: list[int | None]
    """The largest measured number, in all queues; None if none was measured."""
    oldest_seconds: list[int | None]
    """The longest measured time that a queue's next job had been ready."""


class Rates(NamedTuple):
    """Jobs of a queue per minute."""

    pushed: float
    """Only by programs that count."""
    ended: float
    grown: float | None
    """Its growth; None if the size was not measured at both ends."""

    @property
    def came(self) -> float | None:
        """Arrivals: the counted pushes, or what ended plus the growth if that is more; or None.

        PHP does not count its pushes, but its jobs have ended or are still there.
        """
        if self.grown is None:
            return self.pushed or None
        return max(self.pushed, self.ended + self.grown)


class Activity:
    """The counts of one connection until now, by the steps of a resolution."""

    def __init__(self, series: Series, kind: Resolution, since: float, now: float) -> None:
        self.series = series
        self.kind = kind
        self.first = int(since // kind.step)
        self.last = int(now // kind.step)

    @classmethod
    def of(
        cls, connection: Connection, hours: float = 1.0, *, by_tag: bool = False
    ) -> Activity | None:
        """Reads the last hours; None if there are no metrics.

        By minutes up to six hours, by ten minutes up to two days, then by two hours.
        """
        if not connection.is_measured:
            return None
        now = time.time()
        kind = next((each for upto, each in _READ if hours <= upto), BY_TWO_HOURS)
        since = now - hours * _HOUR + kind.step
        kept = metrics_of if by_tag else Metrics
        metrics = kept(connection.store, connection.name)
        return cls(metrics.series(kind, since, now), kind, since, now)

    @property
    def minutes(self) -> float:
        return (self.last - self.first + 1) * self.kind.step / 60

    def rates(self, queue: str, minutes: int) -> Rates:
        """Returns the rates of a queue over so many whole minutes."""
        upto = self.last - 1
        pushed = ended = 0
        for pair, fields in self.series.items():
            if pair.queue == queue and pair.job:
                for slot in range(upto - minutes + 1, upto + 1):
                    pushed += fields.get(PUSHED, {}).get(slot, 0)
                    ended += sum(fields.get(outcome, {}).get(slot, 0) for outcome in FINAL)
        sizes = self.series.get(Pair(queue, ""), {})
        at_first, at_last = (_size(sizes, slot) for slot in (upto - minutes, upto))
        grown = None if at_first is None or at_last is None else (at_last - at_first) / minutes
        return Rates(pushed / minutes, ended / minutes, grown)

    def trend(self, queue: str = "", job: str = "", together: int = 1) -> Trend:
        """Returns the counts by so many steps, of all, of a queue or of a class."""
        at = [dict[str, int]() for _ in range(-((self.first - self.last - 1) // together))]
        for pair, fields in self.series.items():
            if pair.job and queue in {"", pair.queue} and job in {"", pair.job}:
                for field, slots in fields.items():
                    for slot, number in slots.items():
                        if self.first <= slot <= self.last:
                            counts = at[(slot - self.first) // together]
                            counts[field] = counts.get(field, 0) + number
        return Trend(
            step_seconds=self.kind.step * together,
            pushed=[each.get(PUSHED, 0) for each in at],
            started=[each.get(STARTED, 0) for each in at],
            done=[each.get("done", 0) for each in at],
            failed=[each.get("failed", 0) for each in at],
            wait_p95=[WAIT.quantile(each, 0.95) for each in at],
            run_p95=[RUN.quantile(each, 0.95) for each in at],
            ready=self._looks("ready", queue, job, sum, together),
            oldest_seconds=self._looks(OLDEST, queue, job, max, together),
        )

    def _looks(
        self, name: str, queue: str, job: str, put: Callable[[list[int]], int], together: int
    ) -> list[int | None]:
        """Returns the measurements of queues by so many steps; None if there is none."""
        slots = [
            fields[name]
            for pair, fields in self.series.items()
            if not (pair.job or job) and queue in {"", pair.queue} and name in fields
        ]
        by_step = [
            put(found) if (found := [each[at] for each in slots if at in each]) else None
            for at in range(self.first, self.last + 1)
        ]
        return [
            _longest(by_step[first : first + together])
            for first in range(0, len(by_step), together)
        ]

    def classes(self, connection: str, job: str = "") -> list[ClassState]:
        """Returns the state of each class, or of one, the most frequent first."""
        found: dict[str, dict[str, int]] = {}
        for pair, fields in self.series.items():
            if pair.job and job in {"", pair.job}:
                add(found.setdefault(pair.job, {}), added_up(fields))
        states = [self._class(connection, each, fields) for each, fields in found.items()]
        return sorted(states, key=lambda each: (-each.started, each.job))

    def quantile(self, histogram: Histogram, part: float, queue: str) -> float | None:
        found: dict[str, int] = {}
        for pair, fields in self.series.items():
            if pair.job and pair.queue == queue:
                add(found, added_up(fields))
        return histogram.quantile(found, part)

    def _class(self, connection: str, job: str, fields: Fields) -> ClassState:
        started = fields.get(STARTED, 0)
        return ClassState(
            connection=connection,
            job=job,
            pushed=fields.get(PUSHED, 0),
            started=started,
            done=fields.get("done", 0),
            failed=fields.get("failed", 0),
            timed_out=fields.get(TIMED_OUT, 0),
            per_minute=started / self.minutes,
            run_p50=RUN.quantile(fields, 0.5),
            run_p95=RUN.quantile(fields, 0.95),
            run_mean=RUN.mean(fields),
            run_longest=RUN.longest(fields),
            wait_p50=WAIT.quantile(fields, 0.5),
            wait_p95=WAIT.quantile(fields, 0.95),
            wait_mean=WAIT.mean(fields),
            wait_longest=WAIT.longest(fields),
        )


def put_together(trends: Iterable[Trend]) -> Trend | None:
    """Returns the trend of several connections: sums, and the longest waits and run times."""
    several = list(trends)
    if not several:
        return None
    return Trend(
        step_seconds=several[0].step_seconds,
        pushed=[*map(sum, zip(*(each.pushed for each in several), strict=False))],
        started=[*map(sum, zip(*(each.started for each in several), strict=False))],
        done=[*map(sum, zip(*(each.done for each in several), strict=False))],
        failed=[*map(sum, zip(*(each.failed for each in several), strict=False))],
        wait_p95=[*map(_longest, zip(*(each.wait_p95 for each in several), strict=False))],
        run_p95=[*map(_longest, zip(*(each.run_p95 for each in several), strict=False))],
        ready=[*map(_sum, zip(*(each.ready for each in several), strict=False))],
        oldest_seconds=[
            *map(_longest, zip(*(each.oldest_seconds for each in several), strict=False))
        ],
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _longest(values: Iterable[N | None]) -> N | None:
    return max((each for each in values if each is not None), default=None)


def _size(sizes: Mapping[str, Slots], slot: int) -> int | None:
    """Returns the measured size of a queue in a minute, or the minute before."""
    for at in (slot, slot - 1):
        if any(at in sizes.get(name, {}) for name in WAITING):
            return sum(sizes.get(name, {}).get(at, 0) for name in WAITING)
    return None
