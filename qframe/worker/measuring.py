"""Measuring: writes the metrics of a connection, one worker at a time, once a minute.

That worker adds up what all have counted, and reads how long the queues are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.exceptions import BackendUnavailable
from qframe.metrics.deploys import Deploys
from qframe.metrics.kept import Gauge, Metrics
from qframe.metrics.series import OLDEST
from qframe.worker import queue_facts

EVERY = 60.0
"""Seconds between two looks."""
_TURN = 1.5 * EVERY
"""Seconds after which another worker takes over from one that is gone."""
_MOST = 200
"""So many queues are measured."""


class Measuring:
    """`beat` is called once the backend has answered the worker, and once a minute."""

    def __init__(
        self, connection: Connection, metrics: Metrics, who: str, queues: Sequence[str]
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._who = who
        self._queues = queues
        self.also: Metrics | None = None
        """The metrics by tag."""
        self.version = ""
        """The application's version, until the worker has reported it."""

    def beat(self) -> None:
        """Measures if it is this worker's turn and the backend answers."""
        with suppress(BackendUnavailable):
            if self.version:
                Deploys(self._connection.store).seen(self.version)
                self.version = ""
            if self._metrics.takes_turn(self._who, _TURN):
                self._metrics.put_together(self._gauges())
                if self.also is not None:
                    self.also.put_together()

    def _gauges(self) -> list[Gauge]:
        connection = self._connection
        able = connection.capabilities
        if Capability.SIZE not in able:
            return []
        names = connection.queues() if Capability.LIST in able else self._queues
        return [self._gauge(name) for name in islice(names, _MOST)]

    def _gauge(self, queue: str) -> Gauge:
        counted = self._connection.sizes(queue).counted
        fields = {state: number for state, number in counted.items() if number is not None}
        oldest = queue_facts.oldest(self._connection, queue) if fields.get("ready") else 0.0
        return Gauge(queue, fields if oldest is None else {**fields, OLDEST: round(oldest)})
