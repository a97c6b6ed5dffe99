"""The store in Redis: a key each, all in one slot of a Cluster."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence

from qframe import host
from qframe.contracts import Store
from qframe.drivers.redis.keys import escaped
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call

_KEPT = 3600
"""Seconds the last step of a caller is kept."""
_SWAP_KEPT = 60
"""Seconds the last swap of a thread is kept: longer than it takes to say it again."""


class RedisStore(Store):
    """Keys and values beside the jobs."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._start = links.keys.store
        self._local = _Swaps()

    def get(self, *keys: str) -> list[str | None]:
        if not keys:
            return []
        with self._links.of(self._start) as link:
            (values,) = link.ask(Command("MGET", *(self._start + key for key in keys)))
        return [None if value is None else value.decode() for value in values]

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        with self._links.of(self._start) as link:
            link.ask(Command("SET", self._start + key, value, *_expiry(ttl)))

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        name = self._start + key
        with self._links.of(self._start) as link:
            (done,) = link.ask(Command("SET", name, value, "NX", *_expiry(ttl)))
            if done is None and link.repeated:  # perhaps it was set, and the answer got lost
                (found,) = link.ask(Command("GET", name))
                return bool(found == value.encode())
        return done is not None

    def delete(self, key: str, value: str | None = None) -> bool:
        name = self._start + key
        command = Command("DEL", name) if value is None else call("store_delete", (name,), value)
        with self._links.of(self._start) as link:
            (count,) = link.ask(command)
            return bool(count) or link.repeated

    def keys(self, prefix: str) -> Sequence[str]:
        found = self._links.scan(f"{escaped(self._start + prefix)}*")
        return sorted(key.removeprefix(self._start) for key in found)

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        names = tuple(self._start + key for key in (marker, *amounts))
        command = call("store_increment", names, step, _KEPT, *amounts.values())
        with self._links.of(self._start) as link:
            (added,) = link.ask(command)
            return bool(added) or link.repeated

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        if not changes:
            return True
        values = [given(value) for change in changes.values() for value in change]
        with self._links.of(self._start) as link:
            marker, step = self._local.next()
            names = (f"{self._links.keys.swaps}{marker}", *(self._start + key for key in changes))
            rest: tuple[str | int, ...] = (
                _SWAP_KEPT, 0 if ttl is None else milliseconds(ttl), *values,
            )  # fmt: skip
            (done,) = link.ask(
                call("store_swap", names, step, 0, *rest),
                again=lambda: [call("store_swap", names, step, 1, *rest)],
            )
        return bool(done)


class _Swaps(threading.local):
    """Numbers this thread's swaps: one said again is known by its number."""

    def __init__(self) -> None:
        self.name = ""
        self.pid = 0
        self.step = 0

    def next(self) -> tuple[str, int]:
        """Give the thread's name, which no other has, and the number of its next swap."""
        if self.pid != host.pid():
            self.name, self.pid = secrets.token_hex(8), host.pid()
        self.step += 1
        return self.name, self.step


def given(value: str | None) -> str:
    """Write a value, or that there is none, as the scripts read it."""
    return "" if value is None else f"={value}"


def _expiry(ttl: float | None) -> tuple[str | int, ...]:
    return () if ttl is None else ("PX", milliseconds(ttl))


def milliseconds(ttl: float) -> int:
    """Give a time to live as Redis takes it."""
    return max(1, int(ttl * 1000))
