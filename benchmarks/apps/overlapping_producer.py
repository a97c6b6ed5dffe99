"""Dispatches jobs that have one key."""

from __future__ import annotations

from benchmarks.apps.overlapping_jobs import Alone, Here
from benchmarks.apps.qframe_producer import QframeProducer
from qframe import bulk, dispatch


class OverlappingProducer(QframeProducer):
    """Dispatches as our users do."""

    def dispatch(self) -> None:
        """Queue a job that says that a worker is up."""
        dispatch(Here()).send()

    def bulk(self, count: int) -> float:
        """Queue jobs at once."""
        bulk(Alone(number=number) for number in range(count))
        return 0


PRODUCER = OverlappingProducer
