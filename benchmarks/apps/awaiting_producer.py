"""Dispatches our jobs from an event loop."""

from __future__ import annotations

from benchmarks.apps.producing import AsyncProducer
from benchmarks.apps.qframe_jobs import Append, Since
from qframe import abulk, dispatch


class AwaitingProducer(AsyncProducer):
    """Dispatches as our users do."""

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await dispatch(Append())

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await dispatch(Since(moment=moment))

    async def bulk(self, count: int) -> None:
        """Queue no-op jobs at once."""
        await abulk(Append() for _ in range(count))


PRODUCER = AwaitingProducer
