"""The links of a connection: each thread has its own, and a forked child none of its parent's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from redis.connection import AbstractConnection
from redis.exceptions import RedisError

from qframe import host
from qframe.drivers.redis.keys import Keys
from qframe.drivers.redis.link import Link
from qframe.drivers.redis.server import server_of
from qframe.drivers.redis.trouble import meaning
from qframe.guard import guarded

if TYPE_CHECKING:
    from qframe.config import RedisSettings

_PAGE = 1000


class _Thread(threading.local):
    """What one thread has."""

    def __init__(self) -> None:
        self.pid = host.pid()
        self.links: dict[str, Link] = {}


class Links:
    """Gives the link for a key: but on a Cluster it is the same for all."""

    def __init__(self, settings: RedisSettings) -> None:
        self.server = server_of(settings)
        self.keys = Keys(settings.prefix, braces=settings.cluster)
        self._by_key = settings.cluster
        self._thread = _Thread()

    def of(self, key: str) -> Link:
        """Give this thread's link for a key; as a context it is in use."""
        thread = self._thread
        if thread.pid != host.pid():
            # The sockets are the parent's: used no more, closed without a word.
            self._thread = thread = _Thread()
        name = key if self._by_key else ""
        link = thread.links.get(name)
        if link is None:
            link = thread.links[name] = Link(self.server, key)
        return link

    def close(self) -> None:
        """Close this thread's links."""
        with guarded():
            if self._thread.pid != host.pid():
                return
            for link in self._thread.links.values():
                link.close()
            self._thread.links.clear()

    def scan(self, pattern: str) -> set[str]:
        """Name the keys a pattern matches, on all nodes of a Cluster."""
        found: set[str] = set()
        with guarded():
            try:
                for connection in self._everywhere():
                    try:
                        found |= _scanned(connection, pattern)
                    finally:
                        connection.disconnect()
            except (RedisError, OSError) as error:
                self.server.moved()
                raise meaning(error, self.server.shown()) from error
        return found

    def _everywhere(self) -> list[AbstractConnection]:
        if not self._by_key:
            return [self.server.connect("")]
        return [self.server.connect_to(host, port) for host, port in self.server.addresses()]


def _scanned(connection: AbstractConnection, pattern: str) -> set[str]:
    found: set[str] = set()
    cursor = b"0"
    while True:
        connection.send_command("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
        cursor, keys = connection.read_response(disable_decoding=True)
        found.update(key.decode("utf-8", "replace") for key in keys)
        if cursor == b"0":
            return found
