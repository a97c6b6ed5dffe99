"""Series: the counts of one class in one queue, and reading histograms."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""The upper bounds, in seconds, of a shown histogram; one more bucket has no bound."""
_RATIO = 1.1
"""The largest ratio of neighbouring stored bounds, so that a bucket's middle is within 5 %."""
_FROM, _UPTO = (0.00001, 0.0001), (86400.0, 604800.0)


def _finely(bounds: Sequence[float]) -> tuple[float, ...]:
    """Return bounds with intermediate ones, so that neighbours have at most the ratio `_RATIO`."""
    found = [bounds[0]]
    for lower, upper in pairwise(bounds):
        parts = math.ceil(math.log(upper / lower, _RATIO))
        found += [lower * (upper / lower) ** (at / parts) for at in range(1, parts)]
        found.append(upper)
    return tuple(found)


FINE = _finely((*_FROM, *BOUNDS, *_UPTO))
"""The upper bounds of a stored histogram."""

PUSHED = "pushed"
STARTED = "started"
TIMED_OUT = "timed out"
"""The count of attempts that timed out; each also has an outcome."""
OUTCOMES = {
    "done": "processed",
    "failed": "failed",
    "retried": "retried",
    "released": "released",
    "skipped": "skipped",
    "given back": "given back",
    "cancelled": "cancelled",
    "lost": "lost",
}
"""The outcomes of jobs, and their names for people."""
OLDEST = "oldest"
"""Seconds for which the next job of a queue has been ready."""
PROCESSOR = "processor us"
"""Processor time of attempts, in microseconds."""
MEASURED = "measured"
"""The count of attempts whose processor time is known."""
MEMORY = "memory"
"""The highest resident megabytes of a process while attempts ran in it."""
GAUGES = ("ready", "delayed", "reserved", "buried", OLDEST)
"""What is measured of a queue once a minute."""
HIGHEST = frozenset({*GAUGES, MEMORY})
"""The fields of which the highest number is kept; others are added up."""

UNKNOWN = "(unknown)"
"""Stands for a job without a class name."""
OTHER = "(other)"
"""Stands for queues and classes beyond the limit."""

Fields = Mapping[str, int]
"""Counts by name."""


def add(to: dict[str, int], fields: Fields) -> None:
    for field, number in fields.items():
        before = to.get(field, 0)
        to[field] = max(before, number) if field in HIGHEST else before + number


class Pair(NamedTuple):
    """The subject of a series."""

    queue: str
    job: str
    """The name of the class; "" in the series with the queue's gauges."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The names of the counts of a histogram's buckets, and of its sum."""

    bounds: tuple[float, ...]
    buckets: tuple[str, ...]
    total: str
    """Name of the sum, in microseconds."""
    places: Mapping[str, int]
    """The index of each bucket."""

    def bucket(self, seconds: float) -> str:
        return self.buckets[bisect_left(self.bounds, seconds)]

    def counts(self, fields: Fields) -> list[int]:
        """Return the number of values by `BOUNDS`."""
        found = [0] * (len(BOUNDS) + 1)
        for place, count in self._counted(fields):
            upper = self.bounds[place] if place < len(self.bounds) else math.inf
            found[bisect_left(BOUNDS, upper)] += count
        return found

    def quantile(self, fields: Fields, part: float) -> float | None:
        """Return the seconds that `part` (0 to 1) of the values do not exceed; None without values.

        It is the middle of a bucket, within 5 % of all its values, or the last bound.
        """
        counted = sorted(self._counted(fields))
        if len(counted) == 1:  # all in one bucket: their mean is more exact
            return self.mean(fields)
        rank = part * sum(count for _, count in counted)
        if not rank:
            return None
        below = 0
        for place, count in counted:
            below += count
            if below >= rank:
                return self._middle(place)
        return self._middle(counted[-1][0])

    def longest(self, fields: Fields) -> float | None:
        """Return the longest value, as exact as `quantile`."""
        found = [place for place, count in self._counted(fields) if count > 0]
        mean = self.mean(fields)
        return None if mean is None or not found else max(self._middle(max(found)), mean)

    def mean(self, fields: Fields) -> float | None:
        count = sum(count for _, count in self._counted(fields))
        return fields.get(self.total, 0) / 1e6 / count if count else None

    def _counted(self, fields: Fields) -> list[tuple[int, int]]:
        places = self.places
        return [(places[name], count) for name, count in fields.items() if name in places]

    def _middle(self, place: int) -> float:
        """Return the value with the same ratio to both bounds of a bucket."""
        if place >= len(self.bounds):
            return self.bounds[-1]
        lower, upper = self.bounds[place - 1] if place else 0.0, self.bounds[place]
        return 2 * lower * upper / (lower + upper) if lower else upper / 2


def _histogram(name: str, bounds: tuple[float, ...] = FINE) -> Histogram:
    buckets = tuple(f"{name} {at}" for at in range(len(bounds) + 1))
    places = {bucket: place for place, bucket in enumerate(buckets)}
    return Histogram(bounds, buckets, f"{name} us", places)


RUN = _histogram("run")
"""Run times of attempts."""
RUN_BUT_DONE = {each: _histogram(f"{each} run", BOUNDS) for each in OUTCOMES if each != "done"}
"""Run times of attempts with an outcome other than `done`, additionally."""
WAIT = _histogram("wait")
"""Waiting times before the first start, from when jobs were due."""
