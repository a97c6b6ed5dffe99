"""Counters: what became of the jobs of one worker, and of those of all, which the store adds up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from qframe.drivers.store import Store

PREFIX = "counter:"
_LONGEST = 150
UNKNOWN = "(unknown)"
"""Stands for every job whose class is not known to its worker."""

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
"""What the counter of each outcome is called."""

Place = tuple[str, str, str]
"""`queue` or `job`, a connection, and the name of a queue or class."""
Ended = tuple[str, str, str]
"""The name of a job's class, its queue, and an outcome."""


class Counts(dict[Ended, int]):
    """How often each outcome came, since the worker began.

    Any thread may count, or take a copy, which is one step. The name is "" where the class was not
    known: names are made up by who pushes, and there is a counter each.
    """

    def __init__(self, counts: Mapping[Ended, int] = MappingProxyType({})) -> None:
        super().__init__(counts)
        self._counting = threading.Lock()

    def count(self, name: str, queue: str, outcome: str, times: int = 1) -> None:
        """Count an outcome."""
        with self._counting:
            self[name, queue, outcome] = self.get((name, queue, outcome), 0) + times

    def lost(self, name: str, queue: str, *, was_done: bool) -> None:
        """Count a lease that was lost, and an outcome that was counted before that was known."""
        self.count(name, queue, "lost")
        if was_done:
            self.count(name, queue, "done", -1)

    def by_outcome(self) -> dict[str, int]:
        """Add up the outcomes of all queues and classes."""
        total: Counter[str] = Counter()
        for (_, _, outcome), count in self.copy().items():
            total[OUTCOMES[outcome]] += count
        return dict(total)


def amounts(connection: str, before: Mapping[Ended, int], now: Mapping[Ended, int]) -> Counter[str]:
    """Give what to add to which counters: what has come since `before`."""
    added: Counter[str] = Counter()
    for ended, count in now.items():
        name, queue, outcome = ended
        more = count - before.get(ended, 0)
        if more:
            for what, named in (("queue", queue), ("job", (name or UNKNOWN)[:_LONGEST])):
                place = f"{what}:{connection.replace('|', '/')}|{named}"
                added[f"{PREFIX}{place}|{OUTCOMES[outcome]}"] += more
    return added


@dataclass
class Counted:
    """The counters of one queue, or of one class of jobs, of a connection."""

    what: str
    """`queue` or `job`."""
    connection: str
    name: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES.values(), 0))


def read(store: Store) -> list[Counted]:
    """Read all counters of a store: queues, then classes, each sorted by name."""
    found: dict[Place, Counted] = {}
    for key, value in store.items(PREFIX):
        place, counter = _parted(key)
        counted = found.setdefault(place, Counted(*place))
        counted.counts[counter] = int(value)
    return sorted(found.values(), key=lambda each: (each.what == "job", each.connection, each.name))


def _parted(key: str) -> tuple[Place, str]:
    """Give where a key counts what."""
    what, _, rest = key.removeprefix(PREFIX).partition(":")
    connection, _, rest = rest.partition("|")
    name, _, counter = rest.rpartition("|")
    return (what, connection, name), counter


def added_up(each: Iterable[Counted]) -> dict[str, int]:
    """Give the total of some counters."""
    several = list(each)
    return {name: sum(one.counts[name] for one in several) for name in OUTCOMES.values()}


def reset(store: Store, connection: str | None = None) -> None:
    """Let the counters of a store begin anew: all, or those of a connection."""
    for key in store.keys(PREFIX):
        if connection in {None, _parted(key)[0][1]}:
            store.delete(key)
