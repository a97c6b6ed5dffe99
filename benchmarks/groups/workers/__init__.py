"""Processes per job, several workers, statuses, and what becomes of a killed worker's job."""

from __future__ import annotations

import contextlib

from benchmarks.groups.workers.bench import Bench
from benchmarks.groups.workers.killed import by_peers, ours
from benchmarks.groups.workers.rates import at_rest, isolated, several, tracked
from benchmarks.groups.workers.recording import recorded
from benchmarks.parts import measured_parts
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row
from benchmarks.said import versions

TITLE = "Workers: a process per job, several of them, tracked jobs, killed workers"

PARTS = {
    part.__name__: part for part in (isolated, recorded, several, tracked, at_rest, ours, by_peers)
}


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis", "beanstalkd")


def rows(plan: Plan) -> list[Row]:
    """Measure the parts that the plan names, or all."""
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        return measured_parts(plan, bench, PARTS, "workers")
