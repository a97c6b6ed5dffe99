"""LoopVitals: how a worker stands, as another thread sees it; it costs the loop nothing."""

from __future__ import annotations

import time
from pathlib import Path

from qframe.drivers import process
from qframe.payload.text import one_line
from qframe.worker.health import Vitals
from qframe.worker.loop import Loop

ROUND = 60.0
"""Seconds in which a loop without a job comes round: longer than any call of a driver."""


class LoopVitals:
    """Looks at the loop of a worker."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._round = ROUND + max(loop.options.sleep, loop.options.rest)
        self._well_at = time.monotonic()
        """When a job last ran as it should."""
        self._moves = _MainThreadClock()

    def __call__(self) -> Vitals:
        now = time.monotonic()
        ready, doing = self._loop.standing()
        return Vitals(self._until(now), ready, one_line(doing, 120))

    def _until(self, now: float) -> float:
        loop = self._loop
        came_round = max(loop.turned_at, self._well_at) + self._round
        until = loop.runner.accounted_until(came_round, self._moves.look(now) + ROUND)
        if until > came_round:
            # After a long job the loop has some time to come round again.
            self._well_at = max(self._well_at, min(now, until - self._round))
        return until


class _MainThreadClock:
    """When the main thread of this process last ran, as its processor time shows."""

    def __init__(self) -> None:
        # By the thread's id in the system: what `threading` calls an id is not one under gevent.
        self._place = Path(f"/proc/self/task/{process.pid()}/schedstat")
        self._used = b""
        self._moved_at = 0.0

    def look(self, now: float) -> float:
        """Returns when it was last seen to have run; `now` where that cannot be known."""
        try:
            used = self._place.read_bytes().partition(b" ")[0]
        except OSError:
            return now
        if used != self._used:
            self._used, self._moved_at = used, now
        return self._moved_at
