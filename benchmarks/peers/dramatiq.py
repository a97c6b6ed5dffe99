"""Dramatiq's jobs on Redis or RabbitMQ; with `BENCH_SAFE` it confirms what it publishes there."""

from __future__ import annotations

import dramatiq

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import RABBITMQ, REDIS, SAFE

if RABBITMQ:
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    dramatiq.set_broker(RabbitmqBroker(url=RABBITMQ, confirm_delivery=SAFE))
else:
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=REDIS))


def _append() -> None:
    effects.write_byte()


def _since(moment: float) -> None:
    effects.write_since(moment)


append = dramatiq.actor(_append, actor_name="append")
since = dramatiq.actor(_since, actor_name="since")


class DramatiqProducer(Producer):
    """Dispatches as Dramatiq's users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        append.send()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        since.send_with_options(args=(moment,), delay=int(delay * 1000) or None)


PRODUCER = DramatiqProducer
