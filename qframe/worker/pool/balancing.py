"""Balancing: looks at a pool's queues each cooldown, and gives each the processes it needs.

The store keeps how long jobs run, so a supervisor that begins knows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from qframe.connection import Connection
from qframe.drivers.store import pause_key
from qframe.worker import balance
from qframe.worker.balance import BalancePlan, Decision, Known, Mean, QueueReading
from qframe.worker.pool.presence import PoolPresence, Scaled
from qframe.worker.pool.tally import GroupTally
from qframe.worker.roster import PoolEntry

_SAVED = 30.0
"""Seconds after which the means are written again."""
_KEPT = 14 * 86400.0
"""Seconds they are kept."""


class ScaleChange(NamedTuple):
    """A queue gets another number of processes, and why."""

    queue: str
    before: int
    processes: int
    why: str


class Balancing(PoolPresence):
    """The presence of a pool that is balanced by a plan each `cooldown` seconds.

    `connect` returns the connection of the queues; `tell` is called with each change.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        close: Callable[[], None],
        entry: PoolEntry,
        plan: BalancePlan,
        cooldown: float,
        report: Callable[[ScaleChange], None],
    ) -> None:
        super().__init__(lambda: connect().store, close, entry)
        self._queues = connect
        self._plan = plan
        self._cooldown = cooldown
        self._report = report
        self._known: dict[str, Known] = {}
        self._counted: Mapping[str, GroupTally] = {}
        self._looked = 0.0
        self._saved = 0.0

    def apply_orders(self) -> None:
        now, pool = time.monotonic(), self.pool
        if pool is None or (self._looked and now - self._looked < self._cooldown):
            return
        connection = self._queues()
        if not self._known:
            self._known = self._remembered(connection)
            self._counted, self._saved = pool.seen, now
        counted, paused = pool.seen, self._paused(connection, pool)
        seen = {
            group: self._seen(connection, counted, group, paused=paused[group])
            for group in self._plan.queues
        }
        decision = balance.decide(self._plan, seen, self._known, now - (self._looked or now))
        self._counted, self._looked = counted, now
        self._known = {
            # What has piled up in a pause did not arrive all at once at its end.
            group: replace(known, ready=None) if paused[group] else known
            for group, known in decision.known.items()
        }
        self._have(pool, seen, decision)
        if now - self._saved >= _SAVED:
            self._save(connection)

    def leave(self) -> None:
        """Saves the means, and removes the pool's entry."""
        if self._known:
            self._save(self._queues())
        super().leave()

    def _have(self, pool: Scaled, seen: Mapping[str, QueueReading], decision: Decision) -> None:
        targets = decision.targets
        changes = [
            ScaleChange(group, seen[group].processes, targets[group], decision.why[group])
            for group in self._plan.queues
            if targets[group] != seen[group].processes
        ]
        pool.share(targets)
        self.update(size=sum(targets.values()), shares=targets, why=decision.why)
        for each in changes:
            self._report(each)

    def _seen(
        self, connection: Connection, counted: Mapping[str, GroupTally], group: str, *, paused: bool
    ) -> QueueReading:
        now = counted.get(group, GroupTally())
        before = self._counted.get(group, GroupTally())
        queues = group.split(",")
        ready = 0 if paused else sum(connection.sizes(queue).ready for queue in queues)
        return QueueReading(
            ready=ready,
            processes=now.processes,
            begun=now.begun - before.begun,
            ended=now.ended - before.ended,
            seconds=now.seconds - before.seconds,
            running=now.running,
        )

    def _paused(self, connection: Connection, pool: Scaled) -> dict[str, bool]:
        name = connection.name
        queues = [queue for group in self._plan.queues for queue in group.split(",")]
        values = connection.store.get(pause_key(name), *(pause_key(name, each) for each in queues))
        everything = pool.paused or values[0] is not None
        held_up = {
            queue for queue, value in zip(queues, values[1:], strict=True) if value is not None
        }
        return {
            group: everything or held_up.issuperset(group.split(",")) for group in self._plan.queues
        }

    # -- the means in the store -------------------------------------------------------------------

    def _keys(self, connection: Connection) -> dict[str, str]:
        return {group: f"balance:{connection.name}|{group}" for group in self._plan.queues}

    def _remembered(self, connection: Connection) -> dict[str, Known]:
        keys = self._keys(connection)
        return {
            group: Known(run=_read(text))
            for group, text in zip(keys, connection.store.get(*keys.values()), strict=True)
        }

    def _save(self, connection: Connection) -> None:
        self._saved = time.monotonic()
        for group, key in self._keys(connection).items():
            run = self._known[group].run
            if run.weight:
                values = [round(run.seconds, 6), round(run.weight, 3), round(time.time())]
                connection.store.set(key, json.dumps(values), _KEPT)


def _read(text: str | None) -> Mean:
    """Reads the means; ignores what another version wrote differently."""
    try:
        seconds, weight, at = json.loads(text or "null")
        return Mean(float(seconds), float(weight)).after(max(0.0, time.time() - at), 0, 0.0)
    except (TypeError, ValueError):
        return Mean()
