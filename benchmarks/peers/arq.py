"""ARQ's jobs; no results are kept."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.apps import effects
from benchmarks.apps.producing import AsyncProducer
from benchmarks.peers import MANY, REDIS, TUNED

if TUNED:
    uvloop.install()


async def append(_context: object) -> None:
    """Append one byte."""
    await effects.append()


async def since(_context: object, moment: float) -> None:
    """Append the time that has passed."""
    effects.write_since(moment)


QUIET = {"version": 1, "root": {"level": "WARNING"}}
"""Where it would log two lines a job."""


class WorkerSettings:
    """What `arq` is started with."""

    functions = (append, since)
    redis_settings = RedisSettings.from_dsn(REDIS)
    keep_result = 0
    poll_delay = 0.001 if TUNED else 0.5
    max_jobs = MANY or (100 if TUNED else 10)


class ArqProducer(AsyncProducer):
    """Dispatches as ARQ's users do."""

    _pool: Any

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect."""
        self._pool = await create_pool(RedisSettings.from_dsn(REDIS))
        yield
        await self._pool.aclose()

    async def dispatch(self) -> None:
        """Queue one no-op job."""
        await self._pool.enqueue_job("append")

    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""
        await self._pool.enqueue_job("since", moment)


PRODUCER = ArqProducer
