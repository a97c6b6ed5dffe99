"""WithoutOverlapping: eight workers, one key, kills: never two at once, and the key is busy."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from pathlib import Path

from benchmarks.apps import MARKS
from benchmarks.groups.workers.bench import Bench
from benchmarks.places import BenchmarkError, Place, Worker
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row, percent
from benchmarks.said import versions
from tests.support import alone

TITLE = "WithoutOverlapping: 8 workers, one key, jobs of 5 ms, workers killed in them"

_WORKERS = 8
_KILLS = 5
_BUSY = 0.7
_PATIENCE = 240.0
_OFTEN = 0.2


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis")


def rows(plan: Plan) -> list[Row]:
    """Measure on each backend that is here."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for driver in bench.connections:
            began = time.monotonic()
            found += _on(bench, driver)
            spent = time.monotonic() - began
            print(f"overlapping {driver}: {spent:.0f} s", file=sys.stderr)
    return found


def _on(bench: Bench, driver: str) -> list[Row]:
    """Drain the jobs some times; no target on beanstalkd, which delays in whole seconds."""
    held = driver != "beanstalkd"
    shares, both, ran = [], 0, 0
    for _ in range(min(3, bench.plan.rounds) if held else 1):
        runs = _drained(bench, driver)
        shares.append(alone.busy(runs))
        both += len(alone.overlaps(runs))
        ran += len(runs)
    share = statistics.median(shares)
    return [
        Row(f"two at once, on {driver}", f"{both} of {ran:,}", target="none", met=not both),
        Row(
            f"key busy, on {driver}",
            percent(share),
            target=f"at least {percent(_BUSY)}" if held else "",
            met=share >= _BUSY if held else None,
            samples={"ours": shares},
        ),
    ]


def _drained(bench: Bench, driver: str) -> list[alone.Run]:
    """Work the jobs in a pool, and kill a worker that has just begun one, a few times."""
    count = bench.plan.alone_at_a_time
    killed: dict[int, float] = {}
    side = bench.leased(driver, "--workers", str(_WORKERS), jobs="overlapping")
    with bench.place(side) as place, place.working() as parent:
        _wait_until_up(place, parent)
        place.produce("bulk", count)
        for number in range(1, _KILLS + 1):
            _wait_for(place, parent, count * number // (_KILLS + 1))
            pid = int([words for words in _marks(place) if words[0] == "S"][-1][3])
            killed[pid] = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for(place, parent, count)
        return alone.runs(_marks(place), killed)


def _marks(place: Place) -> list[list[str]]:
    file = Path(place.folder / MARKS)
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def _wait_until_up(place: Place, parent: Worker) -> None:
    """Queue jobs until each worker has had one."""
    deadline = time.monotonic() + _PATIENCE
    while len({words[1] for words in _marks(place) if words[0] == "U"}) < _WORKERS:
        parent.check()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{place.side.name}: no {_WORKERS} workers in {_PATIENCE:g} s")
        place.produce("many", 4 * _WORKERS)


def _wait_for(place: Place, parent: Worker, count: int) -> None:
    """Wait until so many jobs have ended: each counts once, however often it ran."""
    deadline = time.monotonic() + _PATIENCE
    while len({words[1] for words in _marks(place) if words[0] == "D"}) < count:
        parent.check()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{place.side.name}: the jobs are not done in {_PATIENCE:g} s")
        time.sleep(_OFTEN)
