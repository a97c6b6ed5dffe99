"""SAQ's jobs on Redis."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from saq import Queue

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import REDIS, TUNED

queue = Queue.from_url(REDIS)


async def append(_context: object) -> None:
    """Append one byte."""
    effects.write_byte()


async def since(_context: object, *, moment: float) -> None:
    """Append the time that has passed."""
    effects.write_since(moment)


settings = {"queue": queue, "functions": [append, since], "concurrency": 50 if TUNED else 10}


class SaqProducer(AsyncProducer):
    """Dispatches as SAQ's users do."""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        await queue.connect()
        yield
        await queue.disconnect()

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await queue.enqueue("append")

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await queue.enqueue("since", moment=moment)


PRODUCER = SaqProducer
