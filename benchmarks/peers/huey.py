"""Huey's jobs on Redis."""

from __future__ import annotations

from huey import RedisHuey

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import REDIS

huey = RedisHuey("bench", url=REDIS)


def _append() -> None:
    effects.write_byte()


def _since(moment: float) -> None:
    effects.write_since(moment)


append = huey.task(name="append")(_append)
since = huey.task(name="since")(_since)


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
