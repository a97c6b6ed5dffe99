"""PoolHealth: how a pool stands: it comes round, and at least one of its workers is alive."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from qframe.worker.health import EVERY, HealthReport, Vitals, WritesHealth
from qframe.worker.pool.slot import PoolWorker


class PoolHealth:
    """Writes every few seconds how a pool stands; `look` is called whenever it comes round."""

    def __init__(self, place: WritesHealth) -> None:
        self._report = HealthReport(self._vitals, place)
        self._due = 0.0
        self._workers: Sequence[PoolWorker] = ()
        self._is_stopping = False

    def look(self, workers: Sequence[PoolWorker], *, stopping: bool) -> None:
        """Writes if that is due."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + EVERY
            self._workers, self._is_stopping = workers, stopping
            self._report.beat()

    def _vitals(self) -> Vitals:
        """Returns how the pool stands. One that replaces its workers is alive."""
        now = time.monotonic()
        scores = [each.score for each in self._workers]
        alive = [each for each in scores if each.is_alive(now)]
        until = math.inf if alive or not scores else 0.0
        is_ready = not self._is_stopping and any(each.takes_jobs() for each in alive)
        words = f"{len(alive)} of {len(scores)} workers are alive"
        return Vitals(until, is_ready, f"stops, {words}" if self._is_stopping else words)
