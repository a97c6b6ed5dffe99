"""Dispatches our jobs."""

from __future__ import annotations

import time

from benchmarks.apps.producing import Producer
from benchmarks.apps.qframe_jobs import Append, Burn, Since, Tomorrow
from qframe import bulk, dispatch

_BATCH = 10_000


class QframeProducer(Producer):
    """Dispatches as our users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        dispatch(Append()).send()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        dispatch(Since(moment=moment)).delay(delay).send()

    def bulk(self, count: int) -> float:
        """Queue no-op jobs at once and give how many a second; one before them warms up."""
        self.dispatch()
        began = time.perf_counter()
        bulk(Append() for _ in range(count))
        return count / (time.perf_counter() - began)

    def burning(self, count: int) -> float:
        """Queue jobs that need processor time."""
        bulk(Burn() for _ in range(count))
        return 0

    def fill(self, delayed: int, waiting: int) -> float:
        """Queue a backlog: delayed jobs, not due for a day, then waiting ones."""
        for kind, total in ((Tomorrow, delayed), (Append, waiting)):
            for begin in range(0, total, _BATCH):
                bulk(kind() for _ in range(min(_BATCH, total - begin)))
        return 0


PRODUCER = QframeProducer
