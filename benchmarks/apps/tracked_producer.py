"""Dispatches our no-op job, tracked."""

from __future__ import annotations

from benchmarks.apps.qframe_producer import QframeProducer
from benchmarks.apps.tracked_jobs import Tracked
from qframe import bulk, dispatch


class TrackedProducer(QframeProducer):
    """Dispatches as our users do who want to know what becomes of each job."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        dispatch(Tracked()).send()

    def bulk(self, count: int) -> float:
        """Queue no-op jobs at once."""
        bulk(Tracked() for _ in range(count))
        return 0


PRODUCER = TrackedProducer
