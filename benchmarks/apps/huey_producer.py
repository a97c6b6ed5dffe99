"""Dispatches Huey's jobs."""

from __future__ import annotations

from benchmarks.apps.huey_jobs import append, since
from benchmarks.apps.producing import Producer


class HueyProducer(Producer):
    """Dispatches as Huey's users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        append()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        if delay:
            since.schedule((moment,), delay=delay)
        else:
            since(moment)


PRODUCER = HueyProducer
