"""Oban's jobs (the Python package), on uvloop as its own command runs them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import MANY, SQL


class Append:
    """A no-op job."""

    async def process(self, _job: object) -> None:
        """Append one byte."""
        await effects.append()


class Since:
    """A job that notes how long after a moment it started."""

    async def process(self, job: Any) -> None:  # noqa: ANN401
        """Append the time that has passed."""
        effects.write_since(job.args["moment"])


append = worker(queue="default")(Append)
since = worker(queue="default")(Since)


def _pool() -> Any:  # noqa: ANN401
    return AsyncConnectionPool(conninfo=SQL, min_size=2, max_size=10, open=False)


async def _tables() -> None:
    async with _pool() as pool:
        await install(pool)


async def _work() -> None:
    async with _pool() as pool, Oban(pool=pool, queues={"default": MANY}):
        await asyncio.Event().wait()


class ObanProducer(AsyncProducer):
    """Dispatches as Oban's users do."""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        async with _pool() as pool, Oban(pool=pool):
            yield

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await append.enqueue({})

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await since.enqueue({"moment": moment})


PRODUCER = ObanProducer

if __name__ == "__main__":
    uvloop.run(_tables() if sys.argv[1] == "tables" else _work())
