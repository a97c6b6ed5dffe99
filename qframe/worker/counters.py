"""Counters: what became of the jobs of one worker, and of those of all, which the store adds up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qframe.drivers.store import Store

PREFIX = "counter:"
_QUEUE = f"{PREFIX}queue:"
_JOB = f"{PREFIX}job:"
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
"""What the counter of each outcome is called; one that is not here is called as itself."""

Ended = tuple[str, str, str]
"""The name of a job's class, its queue, and an outcome."""


class Counts(dict[Ended, int]):
    """How often each outcome came, since the worker began.

    Only the worker's thread writes; other threads take copies, which is one step. The name is ""
    where the class was not known: names are made up by who pushes, and there is a counter each.
    """

    def count(self, name: str, queue: str, outcome: str) -> None:
        """Count an outcome."""
        self[name, queue, outcome] = self.get((name, queue, outcome), 0) + 1

    def lost(self, name: str, queue: str, *, was_done: bool) -> None:
        """Count a lease that was lost, and an outcome that was counted before that was known."""
        self[name, queue, "lost"] = self.get((name, queue, "lost"), 0) + 1
        if was_done:
            self[name, queue, "done"] = self.get((name, queue, "done"), 0) - 1

    def by_outcome(self) -> dict[str, int]:
        """Add up the outcomes of all queues and classes."""
        total: dict[str, int] = {}
        for (_, _, outcome), count in self.copy().items():
            counter = OUTCOMES.get(outcome, outcome)
            total[counter] = total.get(counter, 0) + count
        return total


def amounts(connection: str, before: Mapping[Ended, int], now: Mapping[Ended, int]) -> Amounts:
    """Give what to add to which counters: what has come since `before`."""
    added: Amounts = {}
    for ended, count in now.items():
        more = count - before.get(ended, 0)
        if more:
            name, queue, outcome = ended
            counter = OUTCOMES.get(outcome, outcome)
            for key in (
                _key(_QUEUE, connection, queue, counter),
                _key(_JOB, connection, (name or UNKNOWN)[:_LONGEST], counter),
            ):
                added[key] = added.get(key, 0) + more
    return added


def _key(prefix: str, connection: str, name: str, counter: str) -> str:
    return f"{prefix}{connection.replace('|', '/')}|{name}|{counter}"


Amounts = dict[str, int]


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
    found: dict[tuple[str, str, str], Counted] = {}
    for key, value in store.items(PREFIX):
        place, counter = _parted(key)
        counted = found.setdefault(place, Counted(*place))
        counted.counts[counter] = int(value)
    return sorted(found.values(), key=lambda each: (each.what == "job", each.connection, each.name))


def _parted(key: str) -> tuple[tuple[str, str, str], str]:
    """Give what a key counts: kind, connection and name; and which outcome."""
    what, _, rest = key.removeprefix(PREFIX).partition(":")
    place, _, counter = rest.rpartition("|")
    connection, _, name = place.partition("|")
    return (what, connection, name), counter


def added_up(each: Iterable[Counted]) -> dict[str, int]:
    """Give the total of some counters."""
    total = dict.fromkeys(OUTCOMES.values(), 0)
    for counted in each:
        for counter, count in counted.counts.items():
            total[counter] = total.get(counter, 0) + count
    return total


def reset(store: Store, connection: str | None = None) -> None:
    """Let the counters of a store begin anew: all, or those of a connection."""
    for key in store.keys(PREFIX):
        if connection is None or _parted(key)[0][1] == connection:
            store.delete(key)
