"""Processes per job, several workers, statuses, and what becomes of a killed worker's job."""

from __future__ import annotations

import contextlib
import sys
import time

from benchmarks.groups.workers.bench import Bench
from benchmarks.groups.workers.killed import by_peers, ours
from benchmarks.groups.workers.rates import at_rest, isolated, several, tracked
from benchmarks.groups.workers.recording import recorded
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row
from benchmarks.said import versions

TITLE = "Workers: a process per job, several of them, tracked jobs, killed workers"

_MEASURES = (isolated, recorded, several, tracked, at_rest, ours, by_peers)
PARTS = tuple(each.__name__ for each in _MEASURES)


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis", "beanstalkd")


def rows(plan: Plan) -> list[Row]:
    """Measure everything."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for measure in _MEASURES:
            if plan.parts and measure.__name__ not in plan.parts:
                continue
            began = time.monotonic()
            found += measure(bench)
            spent = time.monotonic() - began
            print(f"workers {measure.__name__}: {spent:.0f} s", file=sys.stderr)
    return found
