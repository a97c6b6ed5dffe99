"""TaskIQ's jobs on a Redis stream, or RabbitMQ; no results are kept.

On RabbitMQ it is aio-pika that publishes, and confirms.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import RABBITMQ, REDIS, THREADS

if RABBITMQ:
    from taskiq_aio_pika import AioPikaBroker

    broker = AioPikaBroker(RABBITMQ)
else:
    from taskiq_redis import RedisStreamBroker

    # "0": what was dispatched before the first worker is run as well.
    broker = RedisStreamBroker(REDIS, consumer_id="0")


async def _append() -> None:
    await effects.append()


def _append_in_thread() -> None:
    effects.write_byte()


async def _since(moment: float) -> None:
    effects.write_since(moment)


append = broker.task("append")(_append_in_thread if THREADS else _append)
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
