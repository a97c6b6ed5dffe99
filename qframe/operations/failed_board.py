"""FailedBoard: the failed jobs of all stores, by cause, and the causes that are muted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pydantic import BaseModel

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.failed.causes import first_noted
from qframe.operations.failures import CauseState, FailureIndex
from qframe.operations.source import BoardSource, keeps_facts

_MUTED = "silenced:"
_MUTED_FOR = 30 * 86400.0
_REST = 0.005
"""Seconds at least between two parts of the failed jobs that are read in the background."""
_AT_A_LOOK = 0.02
"""Seconds a request itself reads failed jobs; the rest is read in the background."""

T = TypeVar("T")


class Failed(BaseModel):
    """The failed jobs in numbers."""

    total: int
    counted: int
    """How many of them are counted by cause so far."""
    is_complete: bool
    kept_by: dict[str, int]
    """How many are kept by each connection that keeps some: its own, and those of others."""
    causes: list[CauseState]


class FailedBoard:
    """The failed jobs of a source's connections. Thread-safe."""

    def __init__(self, source: BoardSource) -> None:
        self._source = source
        self._indexes: dict[int, tuple[str, FailureIndex]] = {}
        """By store of failed jobs, a connection that uses it, and its index."""
        self._filling: set[FailureIndex] = set()
        self._lock = forks.lock()
        forks.in_child_of(self, FailedBoard._restart)

    def _restart(self) -> None:
        """Drops the indexes in a fork: the threads that read are the parent's."""
        self._indexes, self._filling = {}, set()

    def stores(self) -> list[FailedStore]:
        found: list[FailedStore] = []
        for name, index in self._places():
            with suppress(BackendUnavailable):
                self._source.outages.ask(name, index.store.place, index.store.count)
                found.append(index.store)
        return found

    def find(self, uuid: str) -> tuple[FailedStore, FailedJob] | None:
        for name, index in self._places():
            with suppress(BackendUnavailable):
                record = self._source.outages.ask(
                    name, index.store.place, partial(index.store.find, uuid)
                )
                if record is not None:
                    return index.store, record
        return None

    def indexes(self) -> list[FailureIndex]:
        return [index for _, index in self._places()]

    def ask(self, index: FailureIndex, read: Callable[[], T]) -> T:
        """Reads from a store of failed jobs. Raises `BackendUnavailable`, at once in an outage."""
        name = next(name for name, each in self._places() if each is index)
        return self._source.outages.ask(name, index.store.place, read)

    def _places(self) -> list[tuple[str, FailureIndex]]:
        with self._lock:
            for connection in self._source.connections():
                with suppress(ConfigurationError):
                    store = self._source.manager.failed_store(connection.name)
                    known = self._indexes.get(id(store.place))
                    if known is None or store.place is connection.backend:
                        index = FailureIndex(store) if known is None else known[1]
                        self._indexes[id(store.place)] = (connection.name, index)
            return list(self._indexes.values())

    def summary(self) -> Failed:
        """Returns the failed jobs by cause, as far as they were read."""

        def read() -> Failed:
            now = time.time()
            indexes, kept = [], dict[str, int]()
            for name, index in self._places():
                with suppress(BackendUnavailable):
                    refresh = partial(index.refresh, _AT_A_LOOK)
                    self._source.outages.ask(name, index.store.place, refresh)
                    indexes.append(index)
                    kept[name] = index.total
            found: dict[str, CauseState] = {}
            seen = self.causes_seen()
            for each in (failures for index in indexes for failures in index.causes()):
                state = CauseState.of(each, now, seen)
                other = found.get(state.cause)
                found[state.cause] = state if other is None else other.and_also(state)
            for index in indexes:  # not before: the request would wait for it
                self._read_on(index)
            muted = self.muted()
            for state in found.values():
                state.silenced = state.cause in muted
            causes = sorted(found.values(), key=lambda each: (each.silenced, -each.count))
            return Failed(
                total=sum(kept.values()),
                counted=sum(each.counted for each in indexes),
                is_complete=all(each.is_complete for each in indexes),
                kept_by=kept,
                causes=causes,
            )

        return self._source.cached("failed", 3.0, read)

    def _read_on(self, index: FailureIndex) -> None:
        """Reads an index to its end in the background, in at most a third of a processor's time.

        The parts are so small that a page hardly waits for the interpreter meanwhile.
        """
        if index.is_complete or index in self._filling:
            return
        self._filling.add(index)

        def fill() -> None:
            try:
                while not index.is_complete:
                    began = time.thread_time()
                    index.read_on()
                    time.sleep(max(_REST, 2 * (time.thread_time() - began)))
            except BackendUnavailable:
                pass  # the next request goes on
            finally:
                self._filling.discard(index)

        threading.Thread(target=fill, name="qframe-failures", daemon=True).start()

    def muted(self) -> set[str]:
        def read(connection: Connection) -> list[str]:
            return connection.store.keys(_MUTED)

        def listed() -> set[str]:
            return {key.removeprefix(_MUTED) for key in self._source.from_all(read, keeps_facts)}

        return self._source.cached("muted", 10.0, listed)

    def causes_seen(self) -> dict[str, float]:
        """Returns when causes were first seen whose jobs were retried."""

        def read(connection: Connection) -> Iterator[tuple[str, float]]:
            return first_noted(connection.store)

        def listed() -> dict[str, float]:
            found: dict[str, float] = {}
            for cause, moment in self._source.from_all(read, keeps_facts):
                found[cause] = min(moment, found.get(cause, moment))
            return found

        return self._source.cached("causes seen", 10.0, listed)

    def mute(self, cause: str, *, silent: bool) -> None:
        """Mutes a cause for 30 days, or ends that."""

        def note(connection: Connection) -> list[bool]:
            if silent:
                connection.store.set(_MUTED + cause, "1", _MUTED_FOR)
            else:
                connection.store.delete(_MUTED + cause)
            return [True]

        if not self._source.from_all(note, keeps_facts):
            raise BackendUnavailable("no connection answers that could store it")
        self._source.forget("failed", "muted")
