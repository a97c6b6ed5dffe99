"""Celery's jobs on Redis, RabbitMQ or SQS; no results are kept.

With `BENCH_SAFE` it confirms what it publishes to RabbitMQ, and acks there after the job, as we do;
without it, it does as it comes.
"""

from __future__ import annotations

from celery import Celery

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import QUORUM, RABBITMQ, REDIS, SAFE, SQS, TUNED

app = Celery("bench", broker=SQS or RABBITMQ or REDIS)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64 if TUNED else 4)
if SQS:
    app.conf.broker_transport_options = {"region": "us-east-1", "is_secure": False}
elif RABBITMQ:
    app.conf.update(task_acks_late=SAFE, broker_transport_options={"confirm_publish": SAFE})
    if QUORUM:
        app.conf.task_default_queue_type = "quorum"


def _append() -> None:
    effects.write_byte()


def _since(moment: float) -> None:
    effects.write_since(moment)


append = app.task(name="append")(_append)
since = app.task(name="since")(_since)


class CeleryProducer(Producer):
    """Dispatches as Celery's users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        append.delay()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        since.apply_async((moment,), countdown=delay or None)


PRODUCER = CeleryProducer
