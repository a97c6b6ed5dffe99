"""Celery's jobs on its SQLAlchemy transport; no results are kept."""

from __future__ import annotations

import sys

from celery import Celery

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import SQL

_DIALECTS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_scheme, _, _rest = SQL.partition("://")

app = Celery("bench", broker=f"sqla+{_DIALECTS.get(_scheme, _scheme)}://{_rest}")
app.conf.update(task_ignore_result=True, broker_transport_options={"pool_pre_ping": False})


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

if __name__ == "__main__":
    if sys.argv[1] == "tables":
        with app.connection_for_write() as connection:
            connection.default_channel.queue_declare(queue="celery", passive=False)
    else:
        worker = ["worker", "-c", "1", "-P", "solo", "-l", "ERROR"]
        app.worker_main([*worker, "--without-gossip", "--without-mingle", "--without-heartbeat"])
