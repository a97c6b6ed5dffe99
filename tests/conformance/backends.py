"""The backends under test: one class each, and one line in `BACKENDS`.

A backend of a third party derives `Bench`, enters itself in `BACKENDS`, and runs this folder and
`tests/histories`; its capabilities say what it is tested for.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe.contracts.backend import Backend, Timing
from qframe.drivers.beanstalkd.backend import BeanstalkdBackend
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.settings import RedisSettings
from tests.support.bare_broker import BareBroker, BrokerServer, VisibleBroker
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisCluster, RedisServer
from tests.support.sql_server import SqlServer

NAME = "here"
"""The name of the connection under test."""


class Bench(ABC):
    """An empty place for messages, that any number of backends can be opened on."""

    skews: ClassVar[bool] = True
    """Whether time passes by `timing.skew`; else only by waiting."""
    shared: ClassVar[bool] = True
    """Whether another process can open it, too."""
    slow: ClassVar[bool] = False
    """Whether only `make test-all` tests it."""
    long: ClassVar[bool] = False
    """Whether not even `.ci/run` does."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.timing = Timing()
        self.opened: list[Backend] = []
        self.prepare(request, folder)

    @abstractmethod
    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        """Start what it needs, and empty it."""

    @abstractmethod
    def make(self) -> Backend:
        """Give a backend on it, with the timing of this bench."""

    def open(self) -> Backend:
        """Give a backend on it as another worker has it."""
        backend = self.make()
        self.opened.append(backend)
        return backend

    def pass_time(self, seconds: float) -> None:
        """Let the clock of every backend of it be so much later."""
        self.timing.skew += seconds

    def lose_answer(self) -> bool:
        """Lose the next answer of a server on its way; says whether there is a way."""
        return False

    def keep_answers(self) -> None:  # noqa: B027 (most lose none)
        """Lose none any more."""

    def close(self) -> None:
        """Close what was opened."""
        for backend in self.opened:
            backend.close()


class MemoryBench(Bench):
    shared = False

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._backend = MemoryBackend(timing=self.timing)

    def make(self) -> Backend:
        return self._backend


class SqliteBench(Bench):
    _files = itertools.count()

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._url = f"sqlite:///{folder}/{next(self._files)}.sqlite3"

    def make(self) -> Backend:
        return DatabaseBackend(NAME, DatabaseSettings(url=self._url), self.timing)


class SqlBench(Bench):
    """The first database of a server."""

    fixture: ClassVar[str]

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.server: SqlServer = request.getfixturevalue(self.fixture)
        self._url = self.server.prepared()

    def make(self) -> Backend:
        return DatabaseBackend(NAME, DatabaseSettings(url=self._url), self.timing)


class PostgresBench(SqlBench):
    fixture = "postgres_running"


class MariadbBench(SqlBench):
    slow = long = True
    fixture = "mariadb_running"


class MariadbSnapshotBench(MariadbBench):
    """MariaDB as 11.8 is by default: what changed since a transaction began is not locked."""

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        super().prepare(request, folder)
        self.server.sql("set global innodb_snapshot_isolation = ON")

    def close(self) -> None:
        super().close()
        self.server.sql("set global innodb_snapshot_isolation = OFF")


class RedisBench(Bench):
    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        server: RedisServer = request.getfixturevalue("redis_running")
        server.command("FLUSHALL")
        self.url = server.url

    def make(self) -> Backend:
        return RedisBackend(NAME, RedisSettings(url=self.url), self.timing)


class LossyRedisBench(RedisBench):
    """Redis behind a proxy that can lose answers."""

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        super().prepare(request, folder)
        server: RedisServer = request.getfixturevalue("redis_running")
        self._proxy = Proxy("127.0.0.1", server.port)
        self.url = server.url_at(self._proxy.port)

    @property
    def losses(self) -> int:
        """How many answers were lost."""
        return self._proxy.faults

    def lose_answer(self) -> bool:
        self._proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=1)
        return True

    def keep_answers(self) -> None:
        self._proxy.switch(Mode.PASS)

    def close(self) -> None:
        super().close()
        self._proxy.close()


class ClusterBench(Bench):
    """A Cluster, on which messages are in other slots than facts."""

    slow = True

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.empty()
        self._url = cluster.url

    def make(self) -> Backend:
        redis = RedisBackend(NAME, RedisSettings(url=self._url, cluster=True), self.timing)
        return OrderedBackend(redis, redis, redis)


class OrderedBench(Bench):
    """Messages, facts and failed records each in a backend of its own."""

    kind: ClassVar[type[Bench]] = MemoryBench
    shared = False

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._messages = self.kind(request, folder)
        self._messages.timing = self.timing
        self._facts = MemoryBackend(timing=self.timing)
        self._failed = MemoryBackend(timing=self.timing)

    def make(self) -> Backend:
        if isinstance(self._messages, MemoryBench):
            self._messages.make().timing = self.timing
        return OrderedBackend(self._messages.make(), self._facts, self._failed)


class OrderedSqliteBench(OrderedBench):
    kind = SqliteBench


class OrderedPostgresBench(OrderedBench):
    kind = PostgresBench
    slow = long = True


class OrderedRedisBench(OrderedBench):
    kind = RedisBench


class BeanstalkdBench(Bench):
    """Beanstalkd with facts in memory."""

    skews = False
    shared = False

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        server: BeanstalkdServer = request.getfixturevalue("beanstalkd_running")
        server.empty()
        self._port = server.port
        self._facts = MemoryBackend(timing=self.timing)
        self._attempts = MemoryBackend(timing=self.timing)

    def make(self) -> Backend:
        settings = BeanstalkdSettings(port=self._port)
        messages = BeanstalkdBackend(NAME, settings, lambda: self._attempts, self.timing)
        return OrderedBackend(messages, self._facts, self._facts)


class BrokerBench(Bench):
    """A broker that only delivers, with facts in memory."""

    shared = False
    kind: ClassVar[type[BareBroker]] = BareBroker

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._server = BrokerServer(self.timing)
        self._facts = MemoryBackend(timing=self.timing)
        self._attempts = MemoryBackend(timing=self.timing)

    def make(self) -> Backend:
        messages = self.kind(NAME, self._server, lambda: self._attempts, self.timing)
        return OrderedBackend(messages, self._facts, self._facts)


class VisibleBrokerBench(BrokerBench):
    kind = VisibleBroker


BACKENDS: dict[str, type[Bench]] = {
    "memory": MemoryBench,
    "sqlite": SqliteBench,
    "postgresql": PostgresBench,
    "mariadb": MariadbBench,
    "mariadb with innodb_snapshot_isolation=ON": MariadbSnapshotBench,
    "redis": RedisBench,
    "beanstalkd": BeanstalkdBench,
    "bare broker": BrokerBench,
    "visible broker": VisibleBrokerBench,
    "ordered memory": OrderedBench,
    "ordered sqlite": OrderedSqliteBench,
    "ordered postgresql": OrderedPostgresBench,
    "ordered redis": OrderedRedisBench,
    "redis cluster": ClusterBench,
}


def named(backends: Mapping[str, type[Bench]]) -> list[Any]:
    """Give backends as the parameters of a test."""
    return [pytest.param(kind, id=name, marks=_marks(kind)) for name, kind in backends.items()]


def _marks(kind: type[Bench]) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] if kind.slow else []
    return [*marks, pytest.mark.long] if kind.long else marks
