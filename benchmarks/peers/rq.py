"""RQ's jobs."""

from __future__ import annotations

from redis import Redis
from rq import Queue

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import REDIS

REDIS_URL = REDIS
"""Where `rq worker -c` looks for it."""


def append() -> None:
    """Append one byte."""
    effects.write_byte()


def since(moment: float) -> None:
    """Append the time that has passed."""
    effects.write_since(moment)


class RqProducer(Producer):
    """Dispatches as RQ's users do."""

    def __init__(self) -> None:
        self._queue = Queue(connection=Redis.from_url(REDIS))

    def dispatch(self) -> None:
        """Queue one no-op job."""
        self._queue.enqueue(append)

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`; its worker has no scheduler."""
        if delay:
            raise NotImplementedError
        self._queue.enqueue(since, moment)


PRODUCER = RqProducer
