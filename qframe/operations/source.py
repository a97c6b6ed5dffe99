"""BoardSource: reads all connections; each value is cached, and shared by all viewers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.operations.outages import Outages
from qframe.operations.reading import KNOWN, Reading
from qframe.payload.text import one_line

_THREADS = 2
"""How many threads read in the background, each with its own database connection."""
_MOST = 500
"""So many values are kept, those that were asked for last."""

T = TypeVar("T")


class BoardSource:
    """Reads the connections of a manager, or the `only` one. Thread-safe.

    A value is used for a second or more, and for five times as long as it took to read: viewers
    cost a slow backend no more than a sixth of its time. A connection that does not answer is in
    `silent`, and the others are shown.
    """

    def __init__(self, manager: QueueManager, only: str | None = None) -> None:
        self.manager = manager
        self._only = only
        self.outages = Outages()
        self._readings: dict[str, Reading] = {}
        self._background = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-board")
        self._lock = forks.lock()
        forks.in_child_of(self, BoardSource._restart)

    def _restart(self) -> None:
        """Drops readings under way in a fork: the threads that read are the parent's."""
        self._background = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-board")
        self._readings = {}

    @property
    def silent(self) -> dict[str, str]:
        """Why each connection that does not answer does not."""
        return dict(self.outages.why)

    def connections(self) -> list[Connection]:
        return list(self.manager.holding_jobs(self._only))

    def connection(self, name: str) -> Connection:
        """Returns the connection of a name. Raises `ConfigurationError` for another name."""
        found = self.known(name)
        if found is None:
            shown = one_line(name, 60)
            raise ConfigurationError(f"there is no connection {shown!r} that holds jobs")
        return found

    def known(self, name: str) -> Connection | None:
        """Returns the connection of a name; None for another name."""
        return next((each for each in self.connections() if each.name == name), None)

    def ask(self, connection: Connection, read: Callable[[], T]) -> T:
        """Reads from a connection. Raises `BackendUnavailable`, at once in an outage."""
        return self.outages.ask(connection.name, connection.backend, read)

    def from_all(
        self,
        read: Callable[[Connection], Iterable[T]],
        able: Callable[[Connection], bool] = lambda _: True,
    ) -> list[T]:
        """Reads from each able connection; those that do not answer are left out."""
        found: list[T] = []
        for connection in filter(able, self.connections()):
            with suppress(QframeError):
                found += self.ask(connection, partial(_listed, read, connection))
        return found

    def cached(
        self,
        name: str,
        seconds: float,
        read: Callable[[], T],
        patience: float | None = None,
        late: float = KNOWN,
    ) -> T:
        """Returns a value that is read again after so many seconds.

        Raises `NotYetError` if the first reading takes longer than `patience`. A value that is slow
        to read may be too old by `late` seconds.
        """
        with self._lock:
            reading = self._readings.pop(name, None) or Reading(seconds, read, self._background)
            reading.read = read  # that of the latest caller, who may know more than the first
            self._readings[name] = reading
            if len(self._readings) > _MOST:
                del self._readings[next(iter(self._readings))]
        value: T = reading.get(patience, late)
        return value

    def forget(self, *names: str) -> None:
        """Drops cached values, all without names: somebody has just changed them."""
        with self._lock:
            for name, reading in self._readings.items():
                if not names or name in names:
                    reading.forget()


def _listed(read: Callable[[Connection], Iterable[T]], connection: Connection) -> list[T]:
    return [*read(connection)]


def keeps_facts(connection: Connection) -> bool:
    return Capability.FACTS in connection.capabilities


def is_measured(connection: Connection) -> bool:
    return connection.is_measured
