"""View: one connection during one look, asked for each thing once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Step, Unset
from qframe.exceptions import BackendUnavailable
from qframe.metrics.kept import BY_MINUTE, Metrics, Series
from qframe.rules import Rule
from qframe.worker import queue_facts, roster
from qframe.worker.roster import Entry

_MOST = 200
"""So many queues of a connection are read."""

T = TypeVar("T")


class ConnectionView:
    """One connection during one look."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.name
        self.able = connection.capabilities
        self.silent: BackendUnavailable | None = None
        self._known: dict[object, object] = {}

    def ask(self, key: object, read: Callable[[], T]) -> T:
        """Reads something, once. Raises `BackendUnavailable`, at once if it has before."""
        if self.silent is not None:
            raise self.silent
        if key not in self._known:
            try:
                self._known[key] = read()
            except BackendUnavailable as error:
                self.silent = error
                raise
        return self._known[key]  # type: ignore[return-value]

    def queues(self, rule: Rule) -> list[str]:
        """Returns the queues of a rule: those it names, and those that match its patterns."""
        if rule.queues and len(rule.names) == len(rule.queues):
            return list(rule.names)
        there = self.ask("queues", self._listed)
        return list(dict.fromkeys([*rule.names, *(each for each in there if rule.is_about(each))]))

    def _listed(self) -> list[str]:
        names = {self.connection.default_queue}
        if Capability.LIST in self.able:
            names.update(islice(self.connection.queues(), _MOST))
        return sorted(names)

    def sizes(self, queue: str) -> Mapping[str, int | None]:
        if Capability.SIZE not in self.able:
            return {}
        return self.ask(("sizes", queue), lambda: self.connection.sizes(queue).counted)

    def oldest(self, queue: str) -> float | None:
        return self.ask(("oldest", queue), lambda: queue_facts.oldest(self.connection, queue))

    def pauses(self) -> Mapping[str, float]:
        return self.ask("pauses", lambda: queue_facts.pauses(self.connection))

    def entries(self) -> list[Entry]:
        if Capability.FACTS not in self.able:
            return []
        listed = self.ask("workers", lambda: roster.listed(self.connection.store))
        return [each for each in listed if each.connection == self.name]

    def dead_workers(self) -> list[Entry]:
        """Returns those of its workers that died."""
        if Capability.FACTS not in self.able:
            return []
        store, entries = self.connection.store, self.entries()
        found = self.ask("dead workers", lambda: roster.dead(store, entries))
        return [each for each in found if each.connection == self.name]

    def forget(self, entry: Entry) -> None:
        self.connection.store.backend.apply(Step(None, Unset(entry.registration)))

    def counted(self, seconds: float) -> Series:
        """Returns the counts of so many seconds, and those of the minute they began in."""
        if not self.connection.is_measured:
            return {}
        metrics, now = Metrics(self.connection.store, self.name), time.time()
        return self.ask(("counted", seconds), lambda: metrics.series(BY_MINUTE, now - seconds, now))

    def answers(self) -> None:
        """Raises `BackendUnavailable` unless the connection answers."""
        self.ask("check", self.connection.backend.check)
