"""PoolPresence: a pool's entry in the store, and its orders: how many workers and slots.

A thread looks once a second, so that a long job does not delay the orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from qframe.drivers.heartbeat import Heartbeat
from qframe.drivers.store import Store
from qframe.worker.control import number, size_key, slots_key
from qframe.worker.pool.tally import GroupTally
from qframe.worker.presence import EVERY, PARTING, Writing
from qframe.worker.roster import BEAT, TTL, PoolEntry


class Scaled(Protocol):
    """What runs the pool: `size` workers, each of `slots` jobs at once."""

    slots: int
    paused: bool
    seen: Mapping[str, GroupTally]

    @property
    def size(self) -> int:
        """How many workers there are to be."""

    def scale(self, size: int, slots: int) -> None:
        """Sets both, 0: as it is; from any thread."""

    def share(self, sizes: Mapping[str, int]) -> None:
        """Sets the workers of each group; from any thread."""


class PoolPresence:
    """Updates a pool's entry. `connect` returns the store; `close` is called at the end."""

    def __init__(
        self, connect: Callable[[], Store], close: Callable[[], None], entry: PoolEntry
    ) -> None:
        self.entry = entry
        self._connect = connect
        self._beats = Heartbeat(close=close)
        self._writing = Writing("the pool's entry")
        self._written = 0.0
        self._pool: Scaled | None = None

    @property
    def pool(self) -> Scaled | None:
        """The pool, once `begin` was called."""
        return self._pool

    def begin(self, pool: Scaled) -> None:
        """Updates the entry from now on; does nothing the second time."""
        if self._pool is None:
            self._pool = pool
            self._beats.add(
                EVERY, lambda: self._writing.attempt(self.apply_orders, self._write), first=0
            )

    def end(self) -> None:
        if self._pool is not None:
            self._beats.end(lambda: self._writing.attempt(self.leave), PARTING)

    def apply_orders(self) -> None:
        """Carries out the orders in the store."""
        entry, pool = self.entry, self._pool
        size, slots = map(number, self._connect().get(size_key(entry.id), slots_key(entry.id)))
        if pool is not None:
            pool.scale(size if entry.may_keep(size) else 0, slots if entry.scales else 0)
            self.update(size=pool.size, concurrency=pool.slots)

    def update(self, **fields: object) -> None:
        """Sets fields of the entry, which is written soon if they changed."""
        if fields != self.entry.model_dump(include={*fields}):
            self.entry, self._written = self.entry.model_copy(update=fields), 0.0

    def _write(self) -> None:
        now = time.monotonic()
        if not self._written or now - self._written >= BEAT:
            self.entry = self.entry.model_copy(update={"beat_at": round(time.time(), 3)})
            self._connect().set(self.entry.key, self.entry.model_dump_json(), TTL)
            self._written = now

    def leave(self) -> None:
        self._connect().delete(self.entry.key)
