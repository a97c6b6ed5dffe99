"""Procrastinate's jobs; those that are done are deleted."""

from __future__ import annotations

import sys

from procrastinate import App, PsycopgConnector

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import MANY, SQL

app = App(connector=PsycopgConnector(conninfo=SQL))


async def _append() -> None:
    await effects.append()


async def _since(moment: float) -> None:
    effects.write_since(moment)


append = app.task(name="append")(_append)
since = app.task(name="since")(_since)


class ProcrastinateProducer(Producer):
    """Dispatches as Procrastinate's users do."""

    def __init__(self) -> None:
        app.open()

    def dispatch(self) -> None:
        """Queue one no-op job."""
        append.defer()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        if delay:
            raise NotImplementedError
        since.defer(moment=moment)


PRODUCER = ProcrastinateProducer

if __name__ == "__main__":
    if sys.argv[1] == "tables":
        with app.open():
            app.schema_manager.apply_schema()
    else:
        app.run_worker(concurrency=MANY, delete_jobs="always")
