"""Short words for what nearly every test of the suite does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from qframe.contracts import Job, Sizes
from qframe.drivers.base import BaseQueue
from tests.conformance.drivers import Bench

TICK = 0.05
"""Seconds that keep two moments apart on any backend's clock."""


def body(uuid: str) -> str:
    """Give a small payload."""
    return json.dumps({"uuid": uuid, "displayName": "Test", "job": "x.Test", "data": {}})


def push(bench: Bench, *uuids: str, queue: str = "default", delay: float = 0) -> None:
    """Push payloads one after the other, at moments the backend can tell apart."""
    for uuid in uuids:
        bench.queue.push_raw(body(uuid), queue, delay)
        bench.forward(TICK)


def take(where: Bench | BaseQueue, *queues: str) -> Job:
    """Reserve the one job that must be there."""
    queue = where.queue if isinstance(where, Bench) else where
    (job,) = queue.reserve(queues or ("default",))
    return job


def begin(where: Bench | BaseQueue, *queues: str) -> Job:
    """Reserve and start the one job that must be there."""
    queue = where.queue if isinstance(where, Bench) else where
    job = take(queue, *queues)
    assert queue.start(job)
    return job


def drain(queue: BaseQueue, *queues: str) -> list[str]:
    """Work off everything that is ready and give the uuids in order."""
    uuids = []
    while jobs := queue.reserve(queues or ("default",), 10):
        for job in jobs:
            assert queue.start(job)
            uuids.append(job.uuid)
            job.delete()
    return uuids


def at(ready: int = 0, delayed: int = 0, reserved: int = 0, buried: int = 0) -> Sizes:
    return Sizes(ready, delayed, reserved, buried)


def until(
    condition: Callable[[], object], what: str, seconds: float = 20, every: float = 0.01
) -> None:
    """Wait until something is so; fails, saying what was waited for, when it does not become."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(every)


def uuids(jobs: Sequence[Job]) -> list[str]:
    return [job.uuid for job in jobs]
