"""Dispatches our jobs that are coroutines."""

from __future__ import annotations

from benchmarks.apps.async_jobs import Append, Since
from benchmarks.apps.qframe_producer import QframeProducer
from qframe import bulk, dispatch


class AsyncJobsProducer(QframeProducer):
    """Dispatches as our users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        dispatch(Append()).send()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        dispatch(Since(moment=moment)).delay(delay).send()

    def bulk(self, count: int) -> float:
        """Queue no-op jobs at once."""
        bulk(Append() for _ in range(count))
        return 0


PRODUCER = AsyncJobsProducer
