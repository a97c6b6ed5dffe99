"""The servers that scenarios run against, each started privately and broken on purpose."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from faults.requests import ACTIONS, mark_of, mark_of_action
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy
from tests.support.rabbitmq_cluster import RabbitmqCluster, RabbitmqNode
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisCluster, RedisServer, SentinelGroup, wait_until
from tests.support.sql_server import USER, SqlServer
from tests.support.sqs_server import SqsServer


class Backend(ABC):
    """What holds the jobs; `features` says which scenarios it can take part in."""

    features: ClassVar[frozenset[str]] = frozenset()
    shortest_lease: ClassVar[float] = 1.0
    silence: ClassVar[float] = 0.0
    """Seconds after which the server takes a silent worker for dead, where no lease says so."""
    store: ClassVar[str] = ""
    """The connection with the facts and the failed jobs; "" for that of the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection's settings, through a proxy where there is one."""

    def others(self, proxy: Proxy | None = None) -> dict[str, dict[str, Any]]:
        """Give the settings of the connections that this one, and the store, are made of."""
        del proxy
        return {}

    def proxy(self) -> Proxy:
        """Put a proxy in front of the server."""
        raise NotImplementedError

    def requests(self) -> Mapping[str, bytes]:
        """Give what the requests of a kind can be told by: the bytes they hold."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 (a file has nothing to end)
        """End what was started."""


class SqliteBackend(Backend):
    """The database driver on an SQLite file: no server that could be broken."""

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to the file."""
        del proxy
        return {
            "driver": "database",
            "url": f"sqlite:///{self.folder / 'qframe.sqlite3'}",
            "busy_timeout": 5,
        }


class ServerBackend(Backend):
    """A server in a process of its own."""

    server: RedisServer | BeanstalkdServer | RabbitmqServer | SqlServer

    def proxy(self) -> Proxy:
        """Put a proxy in front of the server."""
        return Proxy(*self.server.address)

    def kill(self) -> None:
        """Kill it with signal 9."""
        self.server.kill()

    def start(self) -> None:
        """Start it on its port, and with what it wrote, and wait until it answers."""
        self.server.start()

    def pause(self) -> None:
        """Let it stand still."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.server.resume()

    def close(self) -> None:
        """End it."""
        self.server.close()

    def outage(self, seconds: float) -> None:
        """Kill it, and start it again later."""
        self.kill()
        time.sleep(seconds)
        self.start()


class RedisBackend(ServerBackend):
    """A Redis that writes an append-only file."""

    features = frozenset({"server", "network", "points", "redis"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server: RedisServer = RedisServer(
            folder / "redis",
            fsync="everysec",
            config=["enable-debug-command local", "loading-process-events-interval-bytes 1024"],
        ).start()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to the server."""
        url = self.server.url_at(proxy.port if proxy else 0)
        return {"driver": "redis", "url": url, "block_for": 1}

    def requests(self) -> Mapping[str, bytes]:
        """Give their words."""
        names = ("start", "delete", "release", "push", "reserve")
        return {name: mark_of(name) for name in names}


class BeanstalkdBackend(ServerBackend):
    """A beanstalkd that writes its log with an fsync for each change, and takes large jobs."""

    features = frozenset({"server", "network", "points", "beanstalkd"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server: BeanstalkdServer = BeanstalkdServer(
            folder / "beanstalkd", max_job=1_000_000
        ).start()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to the server."""
        settings = self.server.settings
        return {**settings, "port": proxy.port if proxy else settings["port"], "block_for": 1}

    def requests(self) -> Mapping[str, bytes]:
        """Give the words of the protocol."""
        return {
            "delete": b"delete ", "release": b"release ", "push": b"put ", "reserve": b"reserve",
        }  # fmt: skip


_NOTICES_SOON = {"driver": "rabbitmq", "heartbeat": 1, "timeout": 3, "connect_timeout": 1}


class RabbitmqBackend(ServerBackend):
    """A RabbitMQ of one node; the facts are in an SQLite file."""

    features = frozenset({"server", "network", "rabbitmq"})
    silence = 3.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server: RabbitmqServer = RabbitmqServer(folder / "rabbitmq").start()
        self._is_synced = False

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to the server."""
        port = proxy.port if proxy else self.server.port
        return {**_NOTICES_SOON, "url": f"amqp://guest:guest@127.0.0.1:{port}"}

    def requests(self) -> Mapping[str, bytes]:
        """Give the numbers of their methods: `ack`, `publish` and `get` of the class `basic`."""
        numbers = {"delete": 80, "push": 40, "reserve": 70}
        return {name: struct.pack(">HH", 60, number) for name, number in numbers.items()}

    def kill(self) -> None:
        """Kill it with signal 9, once it has written down that the queues are there."""
        if not self._is_synced:
            self.server.sync()
            self._is_synced = True
        super().kill()


class StrictSqsBackend(Backend):
    """The strict SQS of the tests, in a thread of this process; the facts are in an SQLite file.

    Amazon's does not die with its messages, so nor does this: it refuses calls, and loses answers.
    """

    features = frozenset({"network", "points", "sqs"})
    shortest_lease = 3.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sqs = SqsServer()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to the server."""
        settings = {"driver": "sqs", **self.sqs.settings, **_SOON}
        return {
            **settings,
            "endpoint": f"http://127.0.0.1:{proxy.port if proxy else self.sqs.port}",
        }

    def proxy(self) -> Proxy:
        """Put a proxy in front of the server."""
        return Proxy("127.0.0.1", self.sqs.port)

    def requests(self) -> Mapping[str, bytes]:
        """Give their actions."""
        return {name: mark_of_action(action) for name, action in ACTIONS.items()}

    def close(self) -> None:
        """End it."""
        self.sqs.close()


_SOON = {"block_for": 1, "timeout": 3, "connect_timeout": 1}


class SqlBackend(ServerBackend):
    """The database driver on a server."""

    def prepare(self, server: SqlServer) -> None:
        """Start the server, with the tables in it."""
        self.server: SqlServer = server.start()
        self.server.prepared()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to its first database."""
        return {"driver": "database", "url": self.server.url_at(proxy.port if proxy else 0)}

    def requests(self) -> Mapping[str, bytes]:
        """Take any statement for any kind: one that is prepared does not say what it does."""
        return dict.fromkeys(("start", "delete", "release", "push", "reserve"), b"")

    @abstractmethod
    def cut_off(self) -> None:
        """End all sessions of the jobs' database, as an administrator does."""

    @abstractmethod
    def raise_isolation(self) -> None:
        """Isolate the transactions of new sessions as far as the server can."""


class PostgresBackend(SqlBackend):
    """A PostgreSQL."""

    features = frozenset({"server", "network", "sql"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.prepare(PostgresServer(folder / "postgres"))

    def cut_off(self) -> None:
        """End them by `pg_terminate_backend`."""
        self.server.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where usename = %s and pid <> pg_backend_pid()", USER,
        )  # fmt: skip

    def raise_isolation(self) -> None:
        """Have them serializable by default."""
        isolation = "default_transaction_isolation = 'serializable'"
        self.server.sql(f"alter database {USER} set {isolation}")


class MariadbBackend(SqlBackend):
    """A MariaDB."""

    features = frozenset({"server", "network", "sql"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.prepare(MariadbServer(folder / "mariadb"))

    def cut_off(self) -> None:
        """End them by KILL."""
        self.server.sql(f"kill hard user '{USER}'")

    def raise_isolation(self) -> None:
        """Refuse to change a record that has changed since the transaction's snapshot."""
        self.server.sql("set global innodb_snapshot_isolation = on")


class MembersBackend(RedisBackend):
    """The failover driver: a Redis, else a PostgreSQL, which is the store of both."""

    features = frozenset({"server", "network", "failover"})
    store = "second"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.second = PostgresServer(folder / "postgres")
        try:
            self.second.start().prepared()
        except BaseException:
            self.close()
            raise

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection that is both, and soon asks the first again after it was down."""
        del proxy
        names = ["first", "second"]
        return {"driver": "failover", "connections": names, "retry_down_after": 0.2}

    def others(self, proxy: Proxy | None = None) -> dict[str, dict[str, Any]]:
        """Give a connection to each, that to the first through a proxy."""
        second = {"driver": "database", "url": self.second.url_at(0)}
        return {"first": {**super().connection(proxy), "timeout": 2}, "second": second}

    def close(self) -> None:
        """End both."""
        self.second.close()
        super().close()


class Failover(Backend):
    """Several servers, of which another can take the place of the one that is asked."""

    @abstractmethod
    def fail_over(self) -> None:
        """Kill a server in charge, and wait until another is."""


class SentinelBackend(Failover):
    """A Redis and its replica under three Sentinels; a push waits until the replica has it."""

    features = frozenset({"sentinel"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._group = SentinelGroup(
            folder / "redis", replicas=2, fsync="everysec", down_after=1000
        ).start()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection by the Sentinels."""
        del proxy
        return {
            "driver": "redis", "sentinels": self._group.sentinels, "service": self._group.service,
            "block_for": 1, "min_replicas": 1,
        }  # fmt: skip

    def fail_over(self) -> None:
        """Kill the master, and wait until its replica is one."""
        self._group.fail_over()

    def close(self) -> None:
        """End all of them."""
        self._group.close()


class ClusterBackend(Failover):
    """A Redis Cluster of three masters, each with a replica that has to have what is pushed."""

    features = frozenset({"cluster"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = RedisCluster(folder / "redis", replicas=1, fsync="everysec").start()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection that knows some of the nodes."""
        del proxy
        nodes = [node.host_and_port for node in self._cluster.nodes[1:]]
        return {
            "driver": "redis", "url": self._cluster.url, "cluster": True, "nodes": nodes,
            "block_for": 1, "min_replicas": 1,
        }  # fmt: skip

    def fail_over(self) -> None:
        """Kill the master of the default queue's slot, and wait until its replica is one."""
        key = "queues:{default}"
        node = self._cluster.node_of(key)
        node.kill()
        wait_until(lambda: self._cluster.node_of(key) is not node, "another master")
        self._cluster.wait_until_ok()

    def close(self) -> None:
        """End all nodes."""
        self._cluster.close()


class StandbyBackend(Failover):
    """A PostgreSQL and its standby, which has to have what is committed."""

    features = frozenset({"standby"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._primary = PostgresServer(folder / "primary").start()
        self._primary.prepared()
        self._standby = self._primary.standby(folder / "standby", synchronous=True)

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection to whichever of the two takes writes."""
        del proxy
        hosts = [each.host_and_port for each in (self._primary, self._standby)]
        query = "&".join(f"host={each}" for each in hosts)
        name = self._primary.url.rpartition("/")[2]
        url = f"postgresql://{USER}@/{name}?{query}&target_session_attrs=read-write"
        return {"driver": "database", "url": url}

    def fail_over(self) -> None:
        """Kill the primary, and promote its standby."""
        self._primary.kill()
        self._standby.sql("alter system reset synchronous_standby_names")
        self._standby.promote()

    def close(self) -> None:
        """End both."""
        self._standby.close()
        self._primary.close()


class RabbitmqClusterBackend(Backend):
    """A RabbitMQ of three nodes, each in a network of its own; the facts are in an SQLite file."""

    features = frozenset({"nodes"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = RabbitmqCluster(folder / "rabbitmq")
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.close()
            raise

    @property
    def nodes(self) -> Sequence[RabbitmqNode]:
        """The nodes."""
        return self._cluster.nodes

    def wait_until_whole(self) -> None:
        """Wait until all nodes are one cluster again."""
        self._cluster.wait_until_whole()

    def connection(self, proxy: Proxy | None = None) -> dict[str, Any]:
        """Give a connection that knows all nodes."""
        del proxy
        return {**self._cluster.settings, **_NOTICES_SOON}

    def close(self) -> None:
        """End all nodes."""
        self._cluster.close()


BACKENDS: dict[str, list[type[Backend]]] = {
    "redis": [RedisBackend, SentinelBackend, ClusterBackend],
    "redis-sentinel": [SentinelBackend],
    "redis-cluster": [ClusterBackend],
    "beanstalkd": [BeanstalkdBackend],
    "failover": [MembersBackend],
    "sqs": [StrictSqsBackend],
    "rabbitmq": [RabbitmqBackend, RabbitmqClusterBackend],
    "database": [SqliteBackend],
    "postgres": [PostgresBackend, StandbyBackend],
    "mariadb": [MariadbBackend],
}
"""What can be tried, and the kinds of each: a scenario takes the first with what it needs."""
