"""PgQueuer's jobs, on asyncpg."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import MANY, SQL

_MOST = int(os.environ.get("BENCH_MOST", "0"))
"""How many it runs at once, of whatever it has taken; unlimited where it is not said."""


async def _made() -> PgQueuer:
    """Make what a worker runs."""
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(SQL)))

    async def append(_job: object) -> None:
        await effects.append()

    async def since(job: Any) -> None:  # noqa: ANN401
        effects.write_since(float(job.payload))

    queuer.entrypoint("append")(append)
    queuer.entrypoint("since")(since)
    return queuer


async def _tables() -> None:
    connection = await asyncpg.connect(SQL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def _work() -> None:
    await (await _made()).run(batch_size=MANY, max_concurrent_tasks=_MOST)


class PgqueuerProducer(AsyncProducer):
    """Dispatches as PgQueuer's users do."""

    _queries: Any

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        connection = await asyncpg.connect(SQL)
        self._queries = Queries(AsyncpgDriver(connection))
        yield
        await connection.close()

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await self._queries.enqueue("append", None)

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await self._queries.enqueue("since", str(moment).encode())


PRODUCER = PgqueuerProducer

if __name__ == "__main__":
    # Not by `pgq run`, which fails with the typer of today; it too runs this on uvloop.
    uvloop.run(_tables() if sys.argv[1] == "tables" else _work())
