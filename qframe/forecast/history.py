"""History: how many jobs came to a queue, and how long they ran, by hour of the week.

The metrics of two weeks are kept by two hours. What is expected of two hours is the median of the
same hours one and two weeks ago and of the same hours of all days: one odd day decides nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from statistics import median_low
from typing import NamedTuple

from qframe.connection import Connection
from qframe.metrics.kept import BY_TEN_MINUTES, BY_TWO_HOURS, Metrics, Series
from qframe.metrics.series import GAUGES, PUSHED, RUN, STARTED
from qframe.payload.text import is_queue_name

DAY = 86400
NEEDED_DAYS = 2
"""So many whole days of metrics are needed."""
NEEDED_RUNS = 20
"""So many ended jobs of a queue are needed to know how long they run."""
_STEP = BY_TWO_HOURS.step
_BY_DAY, _BY_WEEK = DAY // _STEP, 7 * DAY // _STEP
_FINE = BY_TEN_MINUTES.step
_FINE_BY_DAY = DAY // _FINE
_PARTS = _STEP // _FINE
_FINAL = ("done", "failed", "skipped", "cancelled")
_READ = frozenset({PUSHED, STARTED, RUN.total, *_FINAL, *GAUGES})
_OVERHEAD = 0.001
"""Seconds that a worker needs for an attempt beside its run."""
_COUNTED = 0.9
"""Part of the ended jobs whose pushes were counted, if programs that push count."""
_ENOUGH = 20
"""So many jobs in two hours show when in them jobs come."""


class _Arrivals(NamedTuple):
    """How many jobs came to a queue."""

    slow: Counter[int]
    """By two hours."""
    fine: Counter[int]
    """By ten minutes."""


class PastLoad:
    """The load of a connection's queues in the last two weeks."""

    def __init__(self, slow: Series, fine: Series, now: float) -> None:
        self._now = now
        self._current = int(now // _STEP)
        self._pushed = _by_queue(slow, (PUSHED,))
        self._ended = _by_queue(slow, _FINAL)
        self._started = _by_queue(slow, (STARTED,))
        self._run = _by_queue(slow, (RUN.total,))
        self._fine_pushed, self._fine_ended = _by_queue(fine, (PUSHED,)), _by_queue(fine, _FINAL)
        self._arrivals: dict[str, _Arrivals] = {}
        slots = [slot for fields in slow.values() for each in fields.values() for slot in each]
        self._first = min(slots, default=self._current) + 1  # the first one may be partial

    @classmethod
    def of(cls, connection: Connection, now: float) -> PastLoad:
        """Read it. Raises `BackendUnavailable`."""
        metrics = Metrics(connection.store, connection.name)
        slow = metrics.series(BY_TWO_HOURS, now - 14 * DAY, now, _READ)
        whole = (now // _STEP - NEEDED_DAYS * _BY_DAY) * _STEP
        fine = metrics.series(BY_TEN_MINUTES, whole, now, _READ)
        return cls(slow, fine, now)

    @cached_property
    def queues(self) -> set[str]:
        """The queues of which jobs came or ended; not what is counted for many others together."""
        return {each for each in (*self._pushed, *self._ended) if is_queue_name(each)}

    @property
    def days(self) -> int:
        """For how many whole days there are metrics."""
        return max(0, self._current - self._first) // _BY_DAY

    @property
    def is_enough(self) -> bool:
        """Whether there are metrics of the same hours of two days at least."""
        return self.days >= NEEDED_DAYS

    def ended(self, queue: str) -> int:
        """Return how many jobs of a queue ended."""
        return sum(self._ended[queue].values())

    def _arrived(self, queue: str) -> _Arrivals:
        """Return how many jobs came: what was pushed, or what ended.

        Programs that do not count, as PHP, leave only the second.
        """
        found = self._arrivals.get(queue)
        if found is None:
            is_counted = sum(self._pushed[queue].values()) >= _COUNTED * self.ended(queue)
            found = self._arrivals[queue] = (
                _Arrivals(self._pushed[queue], self._fine_pushed[queue])
                if is_counted
                else _Arrivals(self._ended[queue], self._fine_ended[queue])
            )
        return found

    def came_between(self, queue: str, since: float, until: float) -> tuple[float, float]:
        """Return how many jobs came from one moment to another, and how many usually would.

        Of the last two days within ten minutes, before within two hours; usual is what came in
        the time before it.
        """
        is_fine = since >= self._now - (NEEDED_DAYS * DAY - _STEP)
        came = self._arrived(queue)
        counts, step = (came.fine, _FINE) if is_fine else (came.slow, _STEP)
        first, last = int(since // step), int(until // step)
        before = [counts[first - 1], counts[first - 2]]
        return sum(counts[at] for at in range(first, last + 1)), max(before) * (last - first + 1)

    def _samples(self, slot: int) -> tuple[list[int], list[int]]:
        """Return the two hours that are like a slot: those of its weekday, and of each day."""
        weekly = [slot - _BY_WEEK * weeks for weeks in (1, 2)]
        daily = [slot - _BY_DAY * days for days in range(1, 14)]
        return self._known(weekly), self._known(daily)

    def _known(self, slots: Iterable[int]) -> list[int]:
        return [each for each in slots if self._first <= each < self._current]

    def expected(self, queue: str, slot: int) -> float:
        """Return how many jobs come in two hours."""
        weekly, daily = self._samples(slot)
        came = self._arrived(queue).slow
        usual = [median_low([came[each] for each in daily])] if daily else []
        return float(median_low([*(came[each] for each in weekly), *usual, *([0] * (not usual))]))

    def shape(self, queue: str, slot: int) -> list[float]:
        """Return which part of the jobs of two hours comes in each ten minutes of them."""
        counts = self._arrived(queue).fine
        parts = [0.0] * _PARTS
        for days in range(1, NEEDED_DAYS + 1):
            if slot - days * _BY_DAY in self._known([slot - days * _BY_DAY]):
                first = slot * _PARTS - days * _FINE_BY_DAY
                for at in range(_PARTS):
                    parts[at] += counts[first + at]
        total = sum(parts)
        return [each / total for each in parts] if total >= _ENOUGH else [1 / _PARTS] * _PARTS

    def work(self, queue: str, slot: int) -> float | None:
        """Return the seconds of a worker's time that a job takes; None if that is unknown.

        In these hours if enough jobs ended in them before, else at any time.
        """
        weekly, daily = self._samples(slot)
        for slots in (weekly, daily, self._ended[queue]):
            ended = sum(self._ended[queue][each] for each in slots)
            if ended >= NEEDED_RUNS:
                run = sum(self._run[queue][each] for each in slots) / 1e6
                attempts = sum(self._started[queue][each] for each in slots)
                return (run + attempts * _OVERHEAD) / ended or _OVERHEAD
        return None


def slot_at(moment: float) -> int:
    """Return the two hours of a moment."""
    return int(moment // _STEP)


def part_at(moment: float) -> int:
    """Return the ten minutes of a moment, within its two hours."""
    return int(moment % _STEP // _FINE)


def minutes_of_part() -> int:
    """Return how many minutes a part has."""
    return _FINE // 60


def _by_queue(series: Series, fields: Iterable[str]) -> defaultdict[str, Counter[int]]:
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for pair, counts in series.items():
        if pair.job:
            for name in fields:
                found[pair.queue].update(counts.get(name, {}))
    return found
