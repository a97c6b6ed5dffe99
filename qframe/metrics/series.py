"""Series: what is counted of the jobs of one class in one queue, and how histograms are read."""

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
"""The upper bounds, in seconds, by which a histogram is shown; one more bucket has no bound."""
_RATIO = 1.1
"""Between two bounds of a histogram as it is kept, at most: so its middle is within 5 % of all."""
_FROM, _UPTO = (0.00001, 0.0001), (86400.0, 604800.0)


def _finely(bounds: Sequence[float]) -> tuple[float, ...]:
    """Give bounds with as many between them as makes the ratio of two `_RATIO` at most."""
    found = [bounds[0]]
    for lower, upper in pairwise(bounds):
        parts = math.ceil(math.log(upper / lower, _RATIO))
        found += [lower * (upper / lower) ** (at / parts) for at in range(1, parts)]
        found.append(upper)
    return tuple(found)


FINE = _finely((*_FROM, *BOUNDS, *_UPTO))
"""The upper bounds by which it is kept."""

PUSHED = "pushed"
STARTED = "started"
TIMED_OUT = "timed out"
"""How many attempts ended so; each has an outcome besides."""
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
"""The outcomes of jobs, and what each is called where they are counted for people."""
OLDEST = "oldest"
"""How many seconds the next job of a queue has been ready."""
GAUGES = ("ready", "delayed", "reserved", "buried", OLDEST)
"""What is looked at once a minute, of a queue."""

UNKNOWN = "(unknown)"
"""Stands for what names no class."""
OTHER = "(other)"
"""Stands for the queues and classes beyond those that are kept apart."""

Fields = Mapping[str, int]
"""What was counted, by name."""


def add(to: dict[str, int], fields: Fields) -> None:
    """Add what was counted to other counts."""
    for field, number in fields.items():
        to[field] = to.get(field, 0) + number


class Pair(NamedTuple):
    """What a series is of."""

    queue: str
    job: str
    """The name of the class; "" in the series that has the queue's gauges."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The names under which the buckets of a histogram are counted, and its sum."""

    bounds: tuple[float, ...]
    buckets: tuple[str, ...]
    total: str
    """Microseconds."""
    places: Mapping[str, int]
    """The place of each bucket among all."""

    def bucket(self, seconds: float) -> str:
        """Name the bucket of a value."""
        return self.buckets[bisect_left(self.bounds, seconds)]

    def counts(self, fields: Fields) -> list[int]:
        """Give how many values there are by `BOUNDS`."""
        found = [0] * (len(BOUNDS) + 1)
        for place, count in self._counted(fields):
            upper = self.bounds[place] if place < len(self.bounds) else math.inf
            found[bisect_left(BOUNDS, upper)] += count
        return found

    def quantile(self, fields: Fields, part: float) -> float | None:
        """Give the seconds that `part` (0 to 1) of the values are within; None where none are.

        That is the middle of a bucket, within 5 % of all that is in it, or the last bound.
        """
        counted = sorted(self._counted(fields))
        if len(counted) == 1:  # all are alike: their mean says more than the bucket
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
        """Give the longest of the values, as `quantile` does."""
        found = [place for place, count in self._counted(fields) if count > 0]
        mean = self.mean(fields)
        return None if mean is None or not found else max(self._middle(max(found)), mean)

    def mean(self, fields: Fields) -> float | None:
        """Give the mean of the values, in seconds."""
        count = sum(count for _, count in self._counted(fields))
        return fields.get(self.total, 0) / 1e6 / count if count else None

    def _counted(self, fields: Fields) -> list[tuple[int, int]]:
        places = self.places
        return [(places[name], count) for name, count in fields.items() if name in places]

    def _middle(self, place: int) -> float:
        """Give what is as far from both bounds of a bucket, relatively."""
        if place >= len(self.bounds):
            return self.bounds[-1]
        lower, upper = self.bounds[place - 1] if place else 0.0, self.bounds[place]
        return 2 * lower * upper / (lower + upper) if lower else upper / 2


def _histogram(name: str, bounds: tuple[float, ...] = FINE) -> Histogram:
    buckets = tuple(f"{name} {at}" for at in range(len(bounds) + 1))
    places = {bucket: place for place, bucket in enumerate(buckets)}
    return Histogram(bounds, buckets, f"{name} us", places)


RUN = _histogram("run")
"""How long attempts ran."""
RUN_BUT_DONE = {each: _histogram(f"{each} run", BOUNDS) for each in OUTCOMES if each != "done"}
"""How long those ran that had another outcome than `done`, once more."""
WAIT = _histogram("wait")
"""How long jobs had waited at their first start, from when they were due."""
