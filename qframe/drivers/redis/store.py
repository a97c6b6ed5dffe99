"""The store in Redis: a key each, all in one slot of a Cluster."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.contracts import Store
from qframe.drivers.redis.keys import escaped
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call


class RedisStore(Store):
    """Keys and values beside the jobs."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._start = links.keys.store

    def get(self, *keys: str) -> list[str | None]:
        if not keys:
            return []
        with self._links.using(self._start) as link:
            (values,) = link.ask(Command("MGET", *(self._start + key for key in keys)))
        return [None if value is None else value.decode() for value in values]

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        with self._links.using(self._start) as link:
            link.ask(Command("SET", self._start + key, value, *_expiry(ttl)))

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        name = self._start + key
        with self._links.using(self._start) as link:
            (done,) = link.ask(Command("SET", name, value, "NX", *_expiry(ttl)))
            if done is None and link.repeated:  # perhaps it was set, and the answer got lost
                (found,) = link.ask(Command("GET", name))
                return bool(found == value.encode())
        return done is not None

    def delete(self, key: str, value: str | None = None) -> bool:
        name = self._start + key
        command = Command("DEL", name) if value is None else call("store_delete", (name,), value)
        with self._links.using(self._start) as link:
            (count,) = link.ask(command)
            return bool(count) or link.repeated

    def keys(self, prefix: str) -> Sequence[str]:
        found = self._links.scan(f"{escaped(self._start + prefix)}*")
        return sorted(key.removeprefix(self._start) for key in found)


def _expiry(ttl: float | None) -> tuple[str | int, ...]:
    return () if ttl is None else ("PX", max(1, int(ttl * 1000)))
