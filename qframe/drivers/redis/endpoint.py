"""Server: a single Redis, the master that Sentinels name, or the nodes of a Cluster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from qframe import forks
from qframe.drivers.redis.errors import meaning
from qframe.drivers.redis.settings import RedisSettings
from qframe.drivers.sockets import limited, prepare_names
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.text import one_line


class Server:
    """Opens connections to the one server of the URL."""

    def __init__(self, settings: RedisSettings) -> None:
        prepare_names()
        self.settings = settings
        options = parse_url(settings.plain_url())
        self._kind: type[AbstractConnection] = options.pop("connection_class", Connection)
        self._options: dict[str, Any] = {
            "socket_timeout": settings.timeout,
            "socket_connect_timeout": settings.connect_timeout,
            "socket_keepalive": True,
            **options,
            # The backend decides what may be repeated, so redis-py must not retry by itself.
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "protocol": 2,
            "driver_info": None,
        }
        if "path" in options:
            del self._options["socket_keepalive"]
        for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
            if name in options and not Path(options[name]).exists():
                raise ConfigurationError(f"{self.shown()}: there is no {name} {options[name]}")

    def connect(self, key: str) -> AbstractConnection:
        """Open a connection to the server that has `key`.

        Raises redis-py's errors, or `BackendUnavailable`.
        """
        del key
        return self._opened({})

    def moved(self) -> None:
        """Note that a server answered that it is not (any more) the right one."""

    def connect_to(self, host: str, port: int) -> AbstractConnection:
        return self._opened({"host": host, "port": port})

    def addresses(self) -> list[tuple[str, int]]:
        """List the masters of a Cluster; [] for other servers."""
        return []

    def address_of(self, key: str) -> tuple[str, int]:
        """Return the Cluster node that has a key."""
        raise NotImplementedError

    def _opened(self, over: dict[str, Any]) -> AbstractConnection:
        waits = ("socket_timeout", "socket_connect_timeout")
        limits = {name: limited(self._options[name]) for name in waits}
        with forks.undisturbed(asks=True):
            connection = self._kind(**{**self._options, **limits, **over})
            connection.connect()
            try:
                self._greet(connection)
            except BaseException:
                connection.disconnect()
                raise
            return connection

    def _greet(self, connection: AbstractConnection) -> None:
        """Check for a missing password; the next command may be too long to be refused."""
        if self._options.get("password"):
            return
        connection.send_command("PING", check_health=False)
        with suppress(ResponseError):  # any other error: the next command reports it
            connection.read_response()

    def shown(self) -> str:
        """Describe the server, never with a password."""
        return self.settings.shown_url()


class SentinelServer(Server):
    """Asks the Sentinels for the master before each connection."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        if "path" in self._options:
            raise ConfigurationError(f"{settings.shown_url()}: sentinels name no unix socket")
        options = {
            "socket_timeout": settings.connect_timeout,
            "username": settings.sentinel_username,
            "password": settings.sentinel_password,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "ssl": settings.is_tls(),
        }
        if settings.is_tls():
            options |= {k: v for k, v in self._options.items() if k.startswith("ssl_")}
        self._sentinel = Sentinel(settings.addresses(), sentinel_kwargs=options)
        self._asking = forks.lock()

    def connect(self, key: str) -> AbstractConnection:
        with forks.undisturbed(asks=True), self._asking:
            host, port = self._sentinel.discover_master(self.settings.service)
        return self._opened({"host": host, "port": port})

    def shown(self) -> str:
        return f"{self.settings.service} by sentinels {', '.join(self.settings.sentinels)}"


class ClusterServer(Server):
    """Maps keys to Cluster nodes by slot, and reloads the map after a redirection."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        if self._options.get("db"):
            raise ConfigurationError(f"{self.shown()}: a cluster has no database but 0")
        self._nodes = settings.addresses()
        """Nodes to ask for the slot map: the configured ones and those of the last map."""
        self._map: RedisCluster | None = None
        self._learning = forks.lock()
        forks.in_child_of(self, ClusterServer.moved)  # the map has locks of its own

    def connect(self, key: str) -> AbstractConnection:
        node = self._node(key)
        try:
            return self.connect_to(node.host, node.port)
        except (RedisError, OSError):
            self.moved()
        node = self._node(key)
        return self.connect_to(node.host, node.port)

    def moved(self) -> None:
        with self._learning:
            self._map = None

    def addresses(self) -> list[tuple[str, int]]:
        return [(str(node.host), int(node.port)) for node in self._known().get_primaries()]

    def address_of(self, key: str) -> tuple[str, int]:
        node = self._node(key)
        return str(node.host), int(node.port)

    def _node(self, key: str) -> ClusterNode:
        node: ClusterNode | None = self._known().get_node_from_key(key)
        if node is None:
            self.moved()
            raise BackendUnavailable(f"{self.shown()}: no node has the slot of {one_line(key)}")
        return node

    def _known(self) -> RedisCluster:
        if (there := self._map) is not None:
            return there
        with forks.undisturbed(asks=True), self._learning:
            if self._map is None:
                options = {k: v for k, v in self._options.items() if k not in ("db", "retry")}
                start = ClusterNode(options.pop("host", "127.0.0.1"), options.pop("port", 6379))
                others = [ClusterNode(host, port) for host, port in self._nodes]
                try:
                    self._map = RedisCluster(
                        startup_nodes=[start, *others],
                        ssl=self.settings.is_tls(),
                        **options,
                    )
                except RedisClusterException as error:
                    raise meaning(_innermost(error), self.shown()) from error
                known = [(str(node.host), int(node.port)) for node in self._map.get_nodes()]
                self._nodes = list(dict.fromkeys([*self.settings.addresses(), *known]))
            return self._map


def _innermost(error: BaseException) -> Exception:
    """Return the original server error behind redis-py's own."""
    cause = error
    while (behind := cause.__cause__ or cause.__context__) is not None:
        cause = behind
    return cause if isinstance(cause, RedisError | OSError) else RedisError(str(error))


def server_of(settings: RedisSettings) -> Server:
    """Return the kind of server that the settings describe."""
    if settings.cluster:
        return ClusterServer(settings)
    if settings.sentinels:
        return SentinelServer(settings)
    return Server(settings)
