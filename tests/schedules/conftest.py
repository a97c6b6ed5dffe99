"""Schedules on the memory backend, by a clock that a test sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, QueueManager, manager
from qframe.connection import Connection
from qframe.contracts.browsing import Place
from qframe.schedules.definition import book
from qframe.schedules.scheduler import Scheduler
from qframe.schedules.schedulers import Schedulers
from tests.support.clock import Clock

START = datetime(2026, 11, 25, 12, 0, 30, tzinfo=UTC).timestamp()


class Send(Queueable):
    number: int = 0

    def handle(self) -> None: ...


class Bench:
    """A manager, and any number of hosts that dispatch its schedules."""

    def __init__(self, queues: QueueManager) -> None:
        self.queues = queues
        self.queue: Connection = queues.connection()
        self.clock = Clock(START)

    def host(self, clock: Callable[[], float] | None = None) -> Scheduler:
        """Give another host, which has taken its first turn."""
        made = Schedulers(self.queues, [self.queue], clock=clock or self.clock)
        scheduler = made.scheduler(self.queue)
        scheduler.turn()
        return scheduler

    def pass_(self, *hosts: Scheduler, seconds: float, step: float = 1.0) -> None:
        """Let time pass, each host having a turn at each step."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + step)
            for host in hosts:
                while host.turn() == 0:
                    pass

    def payloads(self) -> list[dict[str, Any]]:
        """Give what waits in all queues."""
        backend = self.queue.backend
        return [
            json.loads(each.raw_body)
            for name in self.queue.queues()
            for place in (Place.READY, Place.DELAYED)
            for each in backend.browse(name, place, 1000).found
        ]

    def times(self, name: str = "") -> list[str]:
        """Give the planned times of the jobs that wait, as UTC times of day."""
        runs = [each["schedule"] for each in self.payloads()]
        return sorted(
            datetime.fromtimestamp(each["at"], UTC).strftime("%H:%M:%S")
            for each in runs
            if name in {"", each["name"]}
        )


@pytest.fixture(autouse=True)
def _empty_book() -> Iterator[None]:
    book.clear()
    yield
    book.clear()


@pytest.fixture
def bench(fresh: Path) -> Iterator[Bench]:
    """Give one over memory."""
    queues = QueueManager({"default": "memory", "root": fresh})
    manager.use(queues)
    yield Bench(queues)
    manager.use(None)


@pytest.fixture
def apart(fresh: Path) -> Iterator[Bench]:
    """Give one whose facts are elsewhere than its messages."""
    connections = {"jobs": {"driver": "memory"}, "facts": {"driver": "memory"}}
    settings = {"default": "jobs", "root": fresh, "connections": connections}
    queues = QueueManager({**settings, "store": {"driver": "facts"}})
    manager.use(queues)
    yield Bench(queues)
    manager.use(None)
