"""Bench: opens the backend under test on an empty place; a driver's author derives it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qframe.contracts.backend import Backend, Capability, Timing
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend

if TYPE_CHECKING:
    import pytest


class Bench(ABC):
    """An empty place for messages, on which any number of backends can be opened.

    Each test makes one. Only `prepare` and `make` are required.
    """

    skews: ClassVar[bool] = True
    """Whether the backend adds `timing.skew` to its clock; else time passes by waiting."""
    second: float = 0.03
    """Real seconds that a second of the tests takes where time passes by waiting.

    A lease of a minute lasts 1.8 seconds; a server that counts whole seconds needs 0.1 or more.
    """
    lapses: ClassVar[bool] = True
    """Whether a lease ends by time; False: only with the connection that has it."""
    purges_held: ClassVar[bool] = False
    """Whether a purge also deletes the messages that workers have, as Amazon's does."""
    shared: ClassVar[bool] = True
    """Whether another process can open the place, too."""
    histories: ClassVar[int] = int(os.environ.get("HISTORIES", "15"))
    """How many random histories are compared with the memory backend."""
    slack: ClassVar[float] = 10.0
    """Seconds by which a message may come before one of higher priority."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.timing = Timing()
        self.folder = folder
        self.opened: list[Backend] = []
        self.waited = False
        """Whether time has passed by waiting."""
        self.facts: Backend = MemoryBackend(timing=self.timing)
        """Keeps the facts of steps for a driver that keeps none."""
        self.driver_facts: Backend = MemoryBackend(timing=self.timing)
        """Keeps what a driver that `needs_facts` keeps for itself."""
        self.prepare(request, folder)

    @abstractmethod
    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        """Start what the backend needs, and empty it.

        `request` is pytest's, for fixtures such as a server's; `folder` is an empty one.
        """

    @abstractmethod
    def make(self) -> Backend:
        """Return a new backend on the place, with `self.timing`."""

    def open(self) -> Backend:
        """Return a backend as another worker has it, with facts beside it if it keeps none."""
        backend = self.make()
        if Capability.FACTS not in backend.capabilities:
            backend = OrderedBackend(backend, self.facts, self.facts)
        self.opened.append(backend)
        return backend

    def share_facts(self) -> None:
        """Keep the facts in files, for several processes. Before anything is opened."""
        self.facts, self.driver_facts = self._kept("facts"), self._kept("driver_facts")
        self.opened += [self.facts, self.driver_facts]

    def _kept(self, name: str) -> Backend:
        url = f"sqlite:///{self.folder}/{name}.sqlite3"
        return DatabaseBackend(name, DatabaseSettings(url=url), self.timing)

    def seconds(self, number: float) -> float:
        """Return how long so many seconds of a test really are, for a lease, a delay, a fact."""
        return number if self.skews else number * self.second

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds of a test pass for every backend of it."""
        if self.skews:
            self.timing.skew += seconds
        else:
            time.sleep(self.seconds(seconds))
            self.waited = True

    def lose_answer(self) -> bool:
        """Lose the next answer of a server on its way; False: it cannot."""
        return False

    def keep_answers(self) -> None:  # noqa: B027 (most lose none)
        """Lose none any more."""

    def close(self) -> None:
        """Close what was opened."""
        for backend in self.opened:
            backend.close()
