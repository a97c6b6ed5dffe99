"""Every driver under the suite: one line each in `DRIVERS`."""

from __future__ import annotations

import atexit
import itertools
import sqlite3
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import QueueManager
from qframe.contracts import BatchStore, Capability, FailedStore, History, Job, Store
from qframe.drivers.base import HOLD, BaseQueue
from qframe.drivers.beanstalkd.queue import BeanstalkdQueue
from qframe.drivers.database.queue import DatabaseQueue
from qframe.drivers.null import NullQueue
from qframe.drivers.redis import clock as redis_clock
from qframe.drivers.redis import scripts as redis_scripts
from qframe.drivers.redis.link import Answered, Link
from qframe.drivers.redis.queue import RedisQueue
from qframe.drivers.reservation import BaseJob
from qframe.drivers.sync import SyncQueue
from tests.drivers.beanstalkd.support import emptied
from tests.plugins.memory_driver.qframe_memory import Memory, MemoryJob, MemoryQueue, spaces
from tests.support.client import Client, ProcessClient, ThreadClient
from tests.support.later import LaterServer
from tests.support.redis_server import RedisServer

NAME = "here"
"""The name of the connection under test."""

RETRY_AFTER = 60


class Bench(ABC):
    """One driver, set up in an empty folder: its queue, and a hand on its clock.

    A harness for a backend says how to configure a connection (`connection`), how to move the
    backend's clock (`forward`), and whether other processes see the same jobs (`client`).
    """

    kind: ClassVar[type[BaseQueue]]
    keeps_places: ClassVar[bool] = True
    """Whether a job whose lease ran out is back in its old place, and not just at the head."""
    longer: ClassVar[float] = 0.0
    """Seconds a lease may last longer than asked where its start is not waited for."""
    steps_in_client: ClassVar[bool] = True
    """Whether an atomic step is made of calls here, that can be broken into."""
    by_readiness: ClassVar[bool] = True
    """Whether jobs come in the order in which they became ready, and not in that of their push."""
    unstarted: ClassVar[int] = 0
    """1 where each reservation counts, but is told as an attempt only once it has started."""
    own_stores: ClassVar[bool] = True
    """Whether the backend keeps the store and the failed jobs itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.managers: list[QueueManager] = []
        self.patches = pytest.MonkeyPatch()
        """What the harness changes in the driver, until it is closed."""
        self.manager = self.another_manager()
        self.queue = self.manager.connection(NAME)

    @abstractmethod
    def connection(self) -> dict[str, Any]:
        """Give the connection's settings."""

    @abstractmethod
    def forward(self, seconds: float) -> None:
        """Let the backend's clock be `seconds` later."""

    def extended(self, manager: QueueManager) -> None:  # noqa: B027 (most are built in)
        """Add the driver to a manager, where it is not built in."""

    def another_manager(self) -> QueueManager:
        """Give a manager that shares nothing with the others but the backend."""
        settings = {"retry_after": RETRY_AFTER, **self.connection()}
        manager = QueueManager(
            {"root": self.folder, "default": NAME, "connections": {NAME: settings}}
        )
        self.extended(manager)
        self.managers.append(manager)
        return manager

    def another(self) -> BaseQueue:
        """Give a queue as another worker has it."""
        return self.another_manager().connection(NAME)

    @property
    def store(self) -> Store:
        """The store of the driver's own."""
        store = self.queue.own_store()
        assert store is not None
        return store

    @property
    def batches(self) -> BatchStore:
        """Where its batches are kept: by the driver itself, if it can."""
        return self.manager.batches(NAME)

    @property
    def failed(self) -> FailedStore:
        """The failed store of the driver's own."""
        store = self.queue.own_failed_store()
        assert store is not None
        return store

    def client(self) -> Client:
        """Give somebody else who uses the backend at the same time: a process, where it can be."""
        if Capability.DURABLE in self.kind.capabilities:
            return ProcessClient(
                self.folder, {NAME: {"retry_after": RETRY_AFTER, **self.connection()}}
            )
        return ThreadClient(self.another_manager)

    def close(self) -> None:
        """Close the connections of this thread; let the driver be as it is."""
        try:
            for manager in self.managers:
                manager.close()
        finally:
            self.patches.undo()


class SqliteBench(Bench):
    """The database driver on an SQLite file. Time passes by making everything in it older."""

    kind = DatabaseQueue

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jobs.sqlite3"
        self._passed = 0.0
        self._aging = threading.Lock()
        super().__init__(folder)

    def connection(self) -> dict[str, Any]:
        return {"driver": "database", "url": f"sqlite:///{self.file}"}

    def forward(self, seconds: float) -> None:
        """Make every row older; the columns in whole seconds follow when a second is full."""
        self.queue.ping()  # there are tables to age
        with self._aging:
            before, self._passed = self._passed, self._passed + seconds
            ms = round(self._passed * 1000) - round(before * 1000)
            whole = int(self._passed) - int(before)
            with closing(sqlite3.connect(self.file, timeout=10, isolation_level=None)) as raw:
                raw.execute("BEGIN IMMEDIATE")
                raw.execute("UPDATE jobs SET due_at = due_at - ? WHERE due_at < 1 << 53", [ms])
                raw.execute("UPDATE jobs SET lease_until = lease_until - ?", [ms])
                raw.execute(
                    "UPDATE jobs SET reserved_at = reserved_at - ?1, leased_at = leased_at - ?1",
                    [whole],
                )
                raw.execute(
                    "UPDATE jobs SET available_at = available_at - ? WHERE due_at IS NOT 1 << 53",
                    [whole],
                )
                raw.execute("UPDATE qframe_store SET expires_at = expires_at - ?", [ms])
                raw.execute("COMMIT")


class RedisBench(Bench):
    """The Redis driver on a private server that all tests of this process share, emptied for each.

    The server's clock cannot be set: its scripts add what is kept beside the jobs, and values with
    a time to live are made older. The worker's own clock moves along.
    """

    kind: ClassVar[type[BaseQueue]] = RedisQueue
    keeps_places = False
    longer = HOLD / 3
    steps_in_client = False
    _passed: ClassVar[float] = 0.0

    def __init__(self, folder: Path) -> None:
        self.server = shared_server()
        self.server.command("FLUSHALL")
        type(self)._passed = 0.0
        super().__init__(folder)
        self.patches.setattr(redis_scripts, "script", _later_script)
        self.patches.setattr(Link, "tell", _tell_and_hear)
        self.patches.setattr(RedisQueue, "clock", staticmethod(_later_clock))

    def connection(self) -> dict[str, Any]:
        return {"driver": "redis", "url": self.server.url}

    def forward(self, seconds: float) -> None:
        type(self)._passed += seconds
        self.server.command("INCRBYFLOAT", _PASSED, seconds)
        for key in self.server.command("KEYS", "qframe:{store}:*"):
            left = self.server.command("PTTL", key)
            if left > 0:
                self.server.command("PEXPIRE", key, max(0, left - round(seconds * 1000)))


_PASSED = "seconds passed"


@cache
def shared_server() -> RedisServer:
    """Start the server of this process, ended with it."""
    folder = tempfile.TemporaryDirectory(prefix="qframe-redis-")
    server = RedisServer(Path(folder.name))
    server.start()

    @atexit.register
    def end() -> None:
        server.kill()
        folder.cleanup()

    return server


_ASKED = "return time[1] + time[2] / 1000000"
_script = redis_scripts.script
_redis_clock = redis_clock.clock
_tell = Link.tell


@cache
def _later_script(name: str) -> redis_scripts.Script:
    """Give a script that counts the seconds that were let pass."""
    text = _script(name).text.decode()
    assert _ASKED in text
    passed = f"(redis.call('GET', '{_PASSED}') or 0)"
    return redis_scripts.Script(text.replace(_ASKED, f"{_ASKED} + {passed}"))


def _later_clock() -> float:
    return _redis_clock() + RedisBench._passed


def _tell_and_hear(link: Link, command: redis_scripts.Command, answered: Answered) -> None:
    """Let others see at once what was told."""
    _tell(link, command, answered)
    link.ask()


class BeanstalkdBench(Bench):
    """The beanstalkd driver on a private server that all tests of this process share.

    The server's clock can be set forward; the worker's own moves along. The stores are those of the
    embedded database in the folder.
    """

    kind: ClassVar[type[BaseQueue]] = BeanstalkdQueue
    keeps_places = True
    steps_in_client = True
    by_readiness = False
    unstarted = 1
    own_stores = False
    _passed: ClassVar[float] = 0.0

    def __init__(self, folder: Path) -> None:
        self.server = shared_beanstalkd()
        emptied(self.server)
        super().__init__(folder)
        self.patches.setattr(BeanstalkdQueue, "clock", staticmethod(_later_beanstalkd_clock))

    def connection(self) -> dict[str, Any]:
        return self.server.settings

    def forward(self, seconds: float) -> None:
        type(self)._passed += seconds
        self.server.forward(seconds)

    @property
    def store(self) -> Store:
        return self.manager.store(NAME)

    @property
    def failed(self) -> FailedStore:
        store = self.manager.connection("database").own_failed_store()
        assert store is not None
        return store


@cache
def shared_beanstalkd() -> LaterServer:
    """Start the server of this process, ended with it; it takes jobs a little over 1 MB."""
    folder = tempfile.TemporaryDirectory(prefix="qframe-beanstalkd-")
    server = LaterServer(Path(folder.name), max_job=1_100_000)
    server.start()

    @atexit.register
    def end() -> None:
        server.kill()
        folder.cleanup()

    return server


_beanstalkd_clock = BeanstalkdQueue.clock


def _later_beanstalkd_clock() -> float:
    return _beanstalkd_clock() + BeanstalkdBench._passed


class SyncBench(Bench):
    """The sync driver, which keeps nothing."""

    kind: ClassVar[type[BaseQueue]] = SyncQueue

    def connection(self) -> dict[str, Any]:
        return {"driver": "sync"}

    def forward(self, seconds: float) -> None:
        """Change nothing: nothing waits."""


class NullBench(SyncBench):
    """The null driver, which keeps nothing either."""

    kind = NullQueue

    def connection(self) -> dict[str, Any]:
        return {"driver": "null"}


class MemoryBench(Bench):
    """The example driver of a third party, with a clock that can be set."""

    kind: ClassVar[type[BaseQueue]] = MemoryQueue
    _spaces: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.space = f"space-{next(self._spaces)}"
        self._passed = 0.0
        memory = spaces[self.space] = Memory()
        memory.clock = lambda: time.time() + self._passed
        super().__init__(folder)

    def connection(self) -> dict[str, Any]:
        return {"driver": "memory", "space": self.space}

    def extended(self, manager: QueueManager) -> None:
        manager.extend("memory", self.kind)

    def forward(self, seconds: float) -> None:
        self._passed += seconds
        spaces[self.space].changed()

    def close(self) -> None:
        super().close()
        del spaces[self.space]


class LeastJob(MemoryJob):
    """A job of a backend that can hardly do anything."""

    ticket = BaseJob.ticket

    @property
    def history(self) -> History:
        return History()

    def _bury(self) -> bool:
        raise self.connection.cannot(Capability.BURY)

    def _renew(self) -> bool:
        raise self.connection.cannot(Capability.RENEW)


class LeastQueue(MemoryQueue):
    """The least a backend with jobs can be: every optional capability is missing.

    As Beanstalkd does, it gives one job at a time and counts its attempt when that is reserved.
    """

    capabilities = Capability.RESERVE | Capability.FENCE

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        if delay:
            raise self.cannot(Capability.DELAY)
        return super().put(messages, queue, delay)

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        memory = self.memory
        with memory.lock:
            taken = super().reserve(queues, min(limit, 1), finished=finished)
            rows = [memory.rows[int(job.id)] for job in taken]
            for row in rows:
                row.attempts += 1
                row.lease_until = memory.clock() + self.retry_after
            return [LeastJob(self, row) for row in rows]

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        assert isinstance(job, MemoryJob)
        with self.memory.lock:
            self._delete(finished)
            row = self.memory.held_by(job.number, job.lease)
            job.started = row is not None
            if row is None:
                job.mark("lost")
            else:
                row.lease_until = self.memory.clock() + self.retry_after
        return job.started

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        BaseQueue.wait(self, queues, timeout, wake)

    def shares(self, store: FailedStore) -> bool:
        return False

    sizes = BaseQueue.sizes
    queues = BaseQueue.queues
    clear = BaseQueue.clear
    cancel = BaseQueue.cancel
    kick = BaseQueue.kick
    take_up = BaseQueue.take_up
    requeue = BaseQueue.requeue


class LeastBench(MemoryBench):
    """What the suite asks of a driver that declares next to nothing."""

    kind = LeastQueue


DRIVERS: dict[str, type[Bench]] = {
    "sqlite": SqliteBench,
    "redis": RedisBench,
    "beanstalkd": BeanstalkdBench,
    "sync": SyncBench,
    "null": NullBench,
    "memory": MemoryBench,
    "least": LeastBench,
}
