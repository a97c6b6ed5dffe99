"""What 10,000 schedules cost a worker, and how late their jobs are."""

from __future__ import annotations

import contextlib

from benchmarks.groups.web import places
from benchmarks.groups.workers.bench import Bench
from benchmarks.places import Place
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import (
    Row,
    each_second,
    limited,
    milliseconds,
    noted,
    percent,
    percentile,
)
from benchmarks.said import versions

TITLE = "Schedules"

_SHARE = 0.01
"""Of one processor, while nothing is due."""


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis")


def rows(plan: Plan) -> list[Row]:
    """Measure a scheduler on each backend."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for name, place in places(bench):
            found += _rows(plan, {"redis": "Redis"}.get(name, name), place)
    return found


def _rows(plan: Plan, name: str, place: Place) -> list[Row]:
    count = plan.many
    said = place.measured("benchmarks.apps.scheduling", count, plan.idle_seconds * 2)
    idle, burst, steady = said["idle"], said["burst"], said["steady"]
    what = f"{name}, {count:,} schedules"
    late, all_at_once = steady["lateness"], burst["lateness"]
    return [
        noted(f"{what}, first start", [said["start"]], milliseconds),
        limited(f"{what}, none due, of one processor", [idle["processor"]], percent, _SHARE),
        noted(f"{what}, none due, calls of the backend", [idle["calls"]], each_second),
        noted(f"{what}, all due at once, the last late by", [max(all_at_once)], milliseconds),
        noted(f"{name}, 100 a second, of one processor", [steady["processor"]], percent),
        noted(f"{name}, 100 a second, calls of the backend", [steady["calls"]], each_second),
        noted(f"{name}, 100 a second, late by, median", [percentile(late, 0.5)], milliseconds),
        noted(f"{name}, 100 a second, late by, p99", [percentile(late, 0.99)], milliseconds),
    ]
