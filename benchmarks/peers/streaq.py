"""streaq's jobs; no results are kept."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from streaq import Worker

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import MANY, REDIS, THREADS, TUNED

worker = Worker(REDIS, concurrency=MANY or 16, anyio_kwargs={"use_uvloop": TUNED})


async def _append() -> None:
    await effects.append()


def _append_in_thread() -> None:
    effects.write_byte()


async def _since(moment: float) -> None:
    effects.write_since(moment)


append = worker.task(ttl=0, name="append")(_append_in_thread if THREADS else _append)
since = worker.task(ttl=0, name="since")(_since)


class StreaqProducer(AsyncProducer):
    """Dispatches as streaq's users do."""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        async with worker:
            yield

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await append.enqueue()

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await since.enqueue(moment)

    async def bulk(self, count: int) -> None:
        """Queue no-op jobs at once."""
        await worker.enqueue_many([append.enqueue() for _ in range(count)])


PRODUCER = StreaqProducer

if __name__ == "__main__":
    worker.run_sync()  # as its command does, which would log two lines a job
