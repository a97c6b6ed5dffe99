"""The application on a Redis, or a Cluster, that Laravel uses as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.laravel.application import Application
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer


class RedisApplication(Application):
    """A project on a Redis in which Laravel puts `prefix` before every key."""

    driver = "redis"

    def __init__(
        self, root: Path, server: RedisServer, php: str, prefix: str, **settings: object
    ) -> None:
        self.server = server
        self.prefix = prefix
        super().__init__(root, php, **settings)

    def connection(self) -> dict[str, Any]:
        return {"url": self.server.url, "prefix": self.prefix}

    def php_connection(self) -> dict[str, Any]:
        return {"port": self.server.port, "prefix": self.prefix}

    def key(self, name: str) -> str:
        """Give a key as it is called in Redis."""
        return f"{self.prefix}{name}"

    def members(self, queue: str, state: str = "") -> list[bytes]:
        """Give the payloads of a queue as they are stored: ready, or `delayed`, or `reserved`."""
        key = self.key(f"queues:{queue}")
        if state:
            return list(self.server.command("ZRANGE", f"{key}:{state}", 0, -1))
        return list(self.server.command("LRANGE", key, 0, -1))

    def scores(self, queue: str, state: str) -> list[float]:
        """Give when the delayed jobs of a queue are due, or the leases of the reserved end."""
        key = self.key(f"queues:{queue}:{state}")
        members = self.members(queue, state)
        return [float(self.server.command("ZSCORE", key, member)) for member in members]

    def wait_for_blocked(self, count: int = 1) -> None:
        """Wait until so many clients are blocked in a pop."""

        def blocked() -> bool:
            return int(self.server.info("clients")["blocked_clients"]) >= count

        wait_for(blocked, f"{count} blocked clients")
