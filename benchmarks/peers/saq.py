"""SAQ's jobs on Redis, or on PostgreSQL where `BENCH_SQL` says where."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvloop
from saq import Queue

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import MANY, REDIS, SQL, TUNED

if TUNED:
    uvloop.install()

queue = Queue.from_url(SQL or REDIS)
_CONCURRENCY = MANY or (50 if TUNED else 10)


async def append(_context: object) -> None:
    """Append one byte."""
    await effects.append()


async def since(_context: object, *, moment: float) -> None:
    """Append the time that has passed."""
    effects.write_since(moment)


settings = {"queue": queue, "functions": [append, since], "concurrency": _CONCURRENCY}


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


async def _tables() -> None:
    await queue.connect()
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(_tables())
