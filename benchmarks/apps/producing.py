"""The producer's side of a measure: `python -m benchmarks.apps.producing MODULE METHOD NUMBERS`.

The module's `PRODUCER` dispatches; what is asked on the command line is timed in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator

_TICK = 0.001


def intervals(count: int, seed: int, shortest: float, longest: float) -> Iterator[float]:
    """Give irregular intervals in seconds, the same for every side."""
    chance = random.Random(seed)  # noqa: S311 (nobody is to be kept from guessing them)
    for _ in range(count):
        yield chance.uniform(shortest, longest)


class Producer(ABC):
    """Dispatches jobs as one of the sides does; prints what it measured as JSON."""

    @abstractmethod
    def dispatch(self) -> None:
        """Queue one no-op job."""

    @abstractmethod
    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`, ready after `delay`."""

    def many(self, count: int) -> float:
        """Queue no-op jobs one by one and give how many a second; one before them warms up."""
        self.dispatch()
        began = time.perf_counter()
        for _ in range(count):
            self.dispatch()
        return count / (time.perf_counter() - began)

    def spaced(self, count: int, seed: int) -> float:
        """Queue jobs at irregular intervals, each on a worker that is idle by then.

        One no-op job before them warms up.
        """
        self.dispatch()
        for interval in intervals(count, seed, 0.1, 0.3):
            time.sleep(interval)
            self.dispatch_since(time.time(), 0)
        return 0

    def paced(self, count: int, each_second: int) -> float:
        """Queue jobs at a steady rate, whatever the worker does; one before them warms up."""
        self.dispatch()
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(0, began + number / each_second - time.perf_counter()))
            self.dispatch_since(time.time(), 0)
        return 0

    def delayed(self, count: int, seed: int) -> float:
        """Queue delayed jobs, due one after the other at irregular intervals.

        One no-op job before them warms up.
        """
        self.dispatch()
        delay = 1.0
        for interval in intervals(count, seed, 0.1, 0.5):
            delay += interval
            self.dispatch_since(time.time() + delay, delay)
        return 0


class AsyncProducer(ABC):
    """A `Producer` for those who dispatch inside an event loop."""

    def connected(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Give what has to be entered before the first job, where there is such a thing."""
        return contextlib.nullcontext()

    @abstractmethod
    async def dispatch(self) -> None:
        """Queue one no-op job."""

    @abstractmethod
    async def dispatch_since(self, moment: float) -> None:
        """Queue a job that notes the time since `moment`."""

    async def many(self, count: int) -> float:
        """Do as `Producer.many`."""
        async with self.connected():
            await self.dispatch()
            began = time.perf_counter()
            for _ in range(count):
                await self.dispatch()
            return count / (time.perf_counter() - began)

    async def spaced(self, count: int, seed: int) -> float:
        """Do as `Producer.spaced`."""
        async with self.connected():
            await self.dispatch()
            for interval in intervals(count, seed, 0.1, 0.3):
                await asyncio.sleep(interval)
                await self.dispatch_since(time.time())
            return 0

    async def paced(self, count: int, each_second: int) -> float:
        """Do as `Producer.paced`."""
        async with self.connected():
            await self.dispatch()
            began = time.perf_counter()
            for number in range(count):
                await asyncio.sleep(max(0, began + number / each_second - time.perf_counter()))
                await self.dispatch_since(time.time())
            return 0

    async def together(self, count: int, rounds: int, bulk: int) -> list[list[float]]:
        """Queue so many no-op jobs at once, so often; one round before them warms up.

        With `bulk` by the one call for many. Gives of each round how many a second, the longest the
        loop was blocked, in seconds, and the most threads there were.
        """

        async def dispatch_all() -> None:
            if bulk:
                await self.bulk(count)
            else:
                await asyncio.gather(*(self.dispatch() for _ in range(count)))

        async with self.connected():
            await dispatch_all()
            return [await _watched(count, dispatch_all) for _ in range(rounds)]

    async def bulk(self, count: int) -> None:
        """Queue no-op jobs by the one call for many, where there is one."""
        raise NotImplementedError


async def _watched(count: int, act: Callable[[], Awaitable[None]]) -> list[float]:
    longest, threads = 0.0, 0

    async def tick() -> None:
        nonlocal longest, threads
        while True:
            slept = time.perf_counter()
            await asyncio.sleep(_TICK)
            longest = max(longest, time.perf_counter() - slept - _TICK)
            threads = max(threads, threading.active_count())

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(10 * _TICK)
    longest = 0.0
    began = time.perf_counter()
    await act()
    seconds = time.perf_counter() - began
    await asyncio.sleep(10 * _TICK)  # so that the last blockage is seen
    ticking.cancel()
    return [count / seconds, longest, threads]


def main() -> None:
    """Do what the command line asks for: a module, a method of its producer, whole numbers."""
    module, name, *numbers = sys.argv[1:]
    if os.environ.get("BENCH_UVLOOP"):
        importlib.import_module("uvloop").install()
    measured = getattr(importlib.import_module(module).PRODUCER(), name)(*map(int, numbers))
    print(json.dumps(asyncio.run(measured) if isinstance(measured, Coroutine) else measured))


if __name__ == "__main__":
    main()
