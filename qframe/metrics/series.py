"""Series: what is counted of the jobs of one class in one queue, and how histograms are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""The upper bounds of the buckets of a histogram, in seconds; one more bucket has no bound."""

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


class Histogram(NamedTuple):
    """The names under which the buckets of a histogram are counted, and its sum."""

    buckets: tuple[str, ...]
    total: str
    """Microseconds."""

    def bucket(self, seconds: float) -> str:
        """Name the bucket of a value."""
        return self.buckets[bisect_left(BOUNDS, seconds)]

    def counts(self, fields: Fields) -> list[int]:
        """Give how many values each bucket has."""
        return [fields.get(name, 0) for name in self.buckets]

    def quantile(self, fields: Fields, part: float) -> float | None:
        """Give the seconds that `part` (0 to 1) of the values are within; None where none are.

        Within a bucket they are taken to lie evenly; of one without bound the last bound is given.
        """
        counts = self.counts(fields)
        rank = part * sum(counts)
        if not rank:
            return None
        lower, below = 0.0, 0
        for bound, count in zip(BOUNDS, counts, strict=False):
            if below + count >= rank:
                return lower + (bound - lower) * (rank - below) / count
            lower, below = bound, below + count
        return BOUNDS[-1]

    def mean(self, fields: Fields) -> float | None:
        """Give the mean of the values, in seconds."""
        count = sum(self.counts(fields))
        return fields.get(self.total, 0) / 1e6 / count if count else None


def _histogram(name: str) -> Histogram:
    return Histogram(tuple(f"{name}{at}" for at in range(len(BOUNDS) + 1)), f"{name} us")


RUN = _histogram("run")
"""How long attempts ran."""
RUN_BUT_DONE = {each: _histogram(f"{each} run") for each in OUTCOMES if each != "done"}
"""How long those ran that had another outcome than `done`, once more."""
WAIT = _histogram("wait")
"""How long jobs had waited at their first start, from when they were due."""
