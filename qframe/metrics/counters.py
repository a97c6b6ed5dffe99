"""Counters: outcomes of jobs since the beginning, by queue and by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qframe.metrics.kept import Metrics
from qframe.metrics.series import OUTCOMES


@dataclass
class Counted:
    """The counters of one queue, or of one class of jobs, of a connection."""

    what: str
    """`queue` or `job`."""
    connection: str
    name: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES.values(), 0))


def read(metrics: Metrics) -> list[Counted]:
    """Return all counters of a connection: queues, then classes, each sorted by name."""
    found: dict[tuple[str, str], Counted] = {}
    for pair, fields in metrics.totals().items():
        counts = {name: fields[outcome] for outcome, name in OUTCOMES.items() if outcome in fields}
        for what, name in zip(("queue", "job") if counts else (), pair, strict=False):
            counted = found.setdefault((what, name), Counted(what, metrics.connection, name))
            for counter, count in counts.items():
                counted.counts[counter] += count
    return sorted(found.values(), key=lambda each: (each.what == "job", each.name))


def added_up(each: Iterable[Counted]) -> dict[str, int]:
    several = list(each)
    return {name: sum(one.counts[name] for one in several) for name in OUTCOMES.values()}
