"""Our backends under the conformance suite: one class each, and one line in `BACKENDS`.

`slow` on a class: only `.ci/run` and `make test-all` test it; `long`: `make test-all` alone.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe.contracts.backend import Backend
from qframe.drivers.beanstalkd.backend import BeanstalkdBackend
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.failover.backend import FailoverBackend
from qframe.drivers.failover.settings import FailoverSettings
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.settings import RedisSettings
from qframe.drivers.sqs.backend import SqsBackend
from qframe.drivers.sqs.settings import SqsSettings
from qframe.testing.conformance import Bench
from tests.support.bare_broker import BareBroker, BrokerServer, VisibleBroker
from tests.support.later import LaterServer
from tests.support.proxy import Mode, Proxy
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisCluster, RedisServer
from tests.support.sql_server import SqlServer
from tests.support.sqs_server import SqsServer

NAME = "here"
"""The name of the connection under test."""
FEW = int(os.environ.get("SLOW_HISTORIES", "6"))
"""The histories of a backend that takes a second or two for each."""


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

    histories = FEW
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
    slack = 600.0  # it knows when what has no priority was seen, not when it became ready

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
    histories = FEW
    kind = SqliteBench


class OrderedPostgresBench(OrderedBench):
    histories = FEW
    kind = PostgresBench
    slow = long = True


class OrderedRedisBench(OrderedBench):
    kind = RedisBench


class FailoverBench(Bench):
    """Two backends in memory of which both answer, with facts in a third."""

    shared = False

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._members = {name: MemoryBackend(timing=self.timing) for name in ("one", "two")}

    def make(self) -> Backend:
        settings = FailoverSettings(driver="failover", connections=[*self._members])
        return FailoverBackend(NAME, settings, lambda: self.facts, self._members.__getitem__)


class BeanstalkdBench(Bench):
    """Beanstalkd with facts in memory; its clock is set forward, too."""

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._server: LaterServer = request.getfixturevalue("later_server")
        self._server.set_back()
        self._server.empty()

    def make(self) -> Backend:
        # Its leases are those of its settings.
        settings = BeanstalkdSettings(port=self._server.port, retry_after=60)
        return BeanstalkdBackend(NAME, settings, lambda: self.driver_facts, self.timing)

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self._server.forward(seconds)


class AgelessBeanstalkdBench(BeanstalkdBench):
    """The same for histories, whose leases are of many lengths, and there all of one: none ends."""

    skews = False


class RabbitmqBench(Bench):
    """RabbitMQ with facts in memory. Its tests have queues of their own: emptying takes longer."""

    histories = FEW
    skews = False
    lapses = False
    slow = True
    _prefixes = itertools.count()

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        server: RabbitmqServer = request.getfixturevalue("rabbitmq_running")
        prefix = f"t{next(self._prefixes)}:"
        self._settings = RabbitmqSettings(url=server.url, prefix=prefix)

    def make(self) -> Backend:
        return RabbitmqBackend(NAME, self._settings, lambda: self.driver_facts, self.timing)


class SqsBench(Bench):
    """A strict SQS with facts in memory; its clock is that of the test."""

    purges_held = True
    slow = True

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        server: SqsServer = request.getfixturevalue("sqs_running")
        server.empty()
        server.timing = self.timing
        self._settings = SqsSettings(**server.settings)

    def make(self) -> Backend:
        return SqsBackend(NAME, self._settings, lambda: self.driver_facts, self.timing)


class AmazonBench(Bench):
    """SQS of the account whose credentials are in the environment: `QFRAME_AWS=1` adds it."""

    purges_held = True
    shared = False
    skews = False
    second = 0.1  # it counts whole seconds

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._prefix = f"qframe-test-{uuid.uuid4().hex[:12]}-"

    def make(self) -> SqsBackend:
        settings = SqsSettings(
            prefix=self._prefix, create=True, block_for=1, retry_after=self.seconds(60)
        )
        return SqsBackend(NAME, settings, lambda: self.driver_facts, self.timing)

    def close(self) -> None:
        """Delete the queues."""
        super().close()
        calls = self.make()._client
        found = calls.call("list_queues", QueueNamePrefix=self._prefix).get("QueueUrls") or ()
        for url in found:
            calls.call("delete_queue", QueueUrl=url)


class BrokerBench(Bench):
    """A broker that only delivers, with facts in memory."""

    shared = False
    kind: ClassVar[type[BareBroker]] = BareBroker

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._server = BrokerServer(self.timing)

    def make(self) -> Backend:
        return self.kind(NAME, self._server, lambda: self.driver_facts, self.timing)


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
    "rabbitmq": RabbitmqBench,
    "sqs": SqsBench,
    "bare broker": BrokerBench,
    "visible broker": VisibleBrokerBench,
    "ordered memory": OrderedBench,
    "ordered sqlite": OrderedSqliteBench,
    "ordered postgresql": OrderedPostgresBench,
    "ordered redis": OrderedRedisBench,
    "redis cluster": ClusterBench,
    "failover": FailoverBench,
    **({"amazon": AmazonBench} if os.environ.get("QFRAME_AWS") == "1" else {}),
}


def named(backends: Mapping[str, type[Bench]]) -> list[Any]:
    """Give backends as the parameters of a test."""
    return [pytest.param(kind, id=name, marks=_marks(kind)) for name, kind in backends.items()]


def _marks(kind: type[Bench]) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, each) for each in ("slow", "long") if getattr(kind, each, False)]
