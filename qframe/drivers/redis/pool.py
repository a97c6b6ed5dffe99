"""Pool: the connections of a backend, separate for each thread and each forked child."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from qframe import forks
from qframe.drivers.guard import guarded
from qframe.drivers.redis.commands import RedisCommand, command
from qframe.drivers.redis.connection import RedisConnection, Reply
from qframe.drivers.redis.endpoint import Server, server_of
from qframe.drivers.redis.errors import is_elsewhere, meaning
from qframe.drivers.redis.keys import Keys
from qframe.drivers.redis.wait import Waiter
from qframe.drivers.redis.wire import Wire

if TYPE_CHECKING:
    from qframe.drivers.redis.settings import RedisSettings

T = TypeVar("T")
_PAGE = 1000


class _ThreadConnections(forks.PerThread):
    def __init__(self, server: Server, *, apart: bool) -> None:
        self._server, self._apart = server, apart
        super().__init__()

    def begin(self) -> None:
        self.connections: dict[str, RedisConnection] = {}
        self.waiter = Waiter(self._server, apart=self._apart)


class RedisPool:
    """Returns the connection for a key. Without a Cluster it is the same for all keys."""

    def __init__(self, settings: RedisSettings, keys: Keys) -> None:
        self.server = server_of(settings)
        self._keys = keys
        self._by_key = settings.cluster
        self._own = _ThreadConnections(self.server, apart=self._by_key)

    def of(self, key: str) -> RedisConnection:
        connections, place = self._own.connections, key if self._by_key else ""
        connection = connections.get(place)
        if connection is None:
            connection = RedisConnection(self.server, key, self._keys.markers_beside(key))
            connections[place] = connection
        return connection

    @property
    def waiter(self) -> Waiter:
        return self._own.waiter

    def read_replies(self) -> None:
        for connection in self._own.connections.values():
            connection.read_replies()

    def close(self) -> None:
        with guarded:
            own = self._own
            own.waiter.close()
            for connection in own.connections.values():
                connection.close()
            own.connections.clear()

    def scan(self, pattern: str, seconds: float = math.inf) -> set[str]:
        """Return the keys that match a pattern, on all nodes of a Cluster.

        Stops after `seconds` on each node and returns what it has found.
        """
        if not self._by_key:
            return _scanned(self.of("").ask, pattern, seconds)
        return self._with_nodes(partial(self._scanned_everywhere, pattern, seconds))

    def _scanned_everywhere(self, pattern: str, seconds: float) -> set[str]:
        found: set[str] = set()
        for address in self.server.addresses():
            with self._wire_to(address) as wire:
                found |= _scanned(partial(_asked, wire), pattern, seconds)
        return found

    def ask_each(self, commands: Mapping[str, RedisCommand]) -> dict[str, Reply]:
        """Send script calls to a Cluster, those for one node in one exchange.

        Server errors are among the replies.
        """
        return self._with_nodes(partial(self._asked_each, commands))

    def _asked_each(self, commands: Mapping[str, RedisCommand]) -> dict[str, Reply]:
        on_nodes: dict[tuple[str, int], list[str]] = {}
        for key in commands:
            on_nodes.setdefault(self.server.address_of(key), []).append(key)
        found: dict[str, Reply] = {}
        for address, keys in on_nodes.items():
            with self._wire_to(address) as wire:
                first, *others = (commands[key] for key in keys)
                wire.send(first.whole() + b"".join(each.packed for each in others))
                found.update((key, wire.read()) for key in keys)
        for reply in found.values():
            if is_elsewhere(reply):
                raise reply
        return found

    @contextmanager
    def _wire_to(self, address: tuple[str, int]) -> Iterator[Wire]:
        wire = Wire(self.server.connect_to(*address))
        try:
            yield wire
        finally:
            wire.disconnect()

    def _with_nodes(self, act: Callable[[], T]) -> T:
        """Call `act`; once more after an error, because the nodes may have changed."""
        with guarded:
            try:
                return act()
            except (RedisError, OSError):
                self.server.moved()
            try:
                return act()
            except (RedisError, OSError) as error:
                self.server.moved()
                raise meaning(error, self.server.shown()) from error


def _asked(wire: Wire, request: RedisCommand) -> list[Reply]:
    wire.send(request.packed)
    reply = wire.read()
    if isinstance(reply, Exception):
        raise reply
    return [reply]


def _scanned(
    ask: Callable[[RedisCommand], list[Reply]], pattern: str, seconds: float = math.inf
) -> set[str]:
    found: set[str] = set()
    cursor, until = b"0", time.monotonic() + seconds
    while True:
        ((cursor, keys),) = ask(command("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE))
        found.update(key.decode("utf-8", "replace") for key in keys)
        if cursor == b"0" or time.monotonic() > until:
            return found
