"""TaskIQ's jobs on RabbitMQ, by aio-pika, which confirms what it publishes; no results are kept."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from taskiq_aio_pika import AioPikaBroker

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import RABBITMQ

broker = AioPikaBroker(RABBITMQ)


async def _append() -> None:
    await effects.append()


async def _since(moment: float) -> None:
    effects.write_since(moment)


append = broker.task("append")(_append)
since = broker.task("since")(_since)


class TaskiqProducer(AsyncProducer):
    """Dispatches as TaskIQ's users do."""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        await broker.startup()
        yield
        await broker.shutdown()

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await append.kiq()

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await since.kiq(moment)


PRODUCER = TaskiqProducer
