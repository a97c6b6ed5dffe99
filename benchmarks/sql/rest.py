"""How soon an idle worker starts what was dispatched, and what it costs while it waits."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict

from benchmarks.rows import (
    Row,
    alternated,
    limited,
    megabytes,
    milliseconds,
    noted,
    percent,
    percentile,
)
from benchmarks.sql.bench import Bench

_TAIL = 0.95
_US = "qframe"


def latency(bench: Bench) -> list[Row]:
    """From dispatch to start, on a worker that was idle."""
    sides = [(_US, bench.ours)]
    sides += [(peer.family, side) for peer, side in bench.sides.items() if peer.first]
    times: dict[str, list[float]] = defaultdict(list)
    for turn, (family, side) in enumerate(alternated(sides, min(2, bench.rounds))):
        with bench.place(side) as place:
            times[family] += place.times_of("spaced", bench.plan.samples, turn // len(sides))
    ours = times.pop(_US)
    limit = bench.server.prompt
    name = "dispatch to start, idle worker"
    found = [
        limited(f"{name}, median", ours, milliseconds, limit),
        Row(f"{name}, p95", milliseconds(percentile(ours, _TAIL)), samples={"ours": ours}),
    ]
    for family, theirs in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        found.append(_beside(f"{name}, {family}, median", ours, theirs, 0.5))
        found.append(_beside(f"{name}, {family}, p95", ours, theirs, _TAIL))
    if times:
        best = min(statistics.median(theirs) for theirs in times.values())
        mine = statistics.median(ours)
        found.append(
            Row(
                f"{name}, the best peer, median",
                milliseconds(mine),
                milliseconds(best),
                mine / best,
                "at most 1",
                mine <= best,
            )
        )
    return found


def _beside(measure: str, ours: list[float], theirs: list[float], share: float) -> Row:
    mine, other = percentile(ours, share), percentile(theirs, share)
    samples = {"ours": ours, "peer": theirs}
    return Row(measure, milliseconds(mine), milliseconds(other), mine / other, samples=samples)


def at_rest(bench: Bench) -> list[Row]:
    """Watch workers that have run jobs and wait: their memory, and the processor time of ours."""
    plan, cpu = bench.plan, []
    memory: dict[str, list[float]] = defaultdict(list)
    sides = [(_US, plan.few, bench.ours)]
    sides += [(peer.family, peer.jobs, side) for peer, side in bench.sides.items() if peer.first]
    for family, often, side in sides:
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(bench.place(side))
            jobs = min(plan.few, often)
            place.produce("many", jobs)
            worker = stack.enter_context(place.working())
            place.wait_for(jobs + 1, worker)
            time.sleep(min(1, plan.idle_seconds))
            memory[family].append(worker.memory()["pss"])
            if family == _US:
                used, began = worker.cpu_seconds(), time.monotonic()
                time.sleep(plan.idle_seconds)
                cpu.append((worker.cpu_seconds() - used) / (time.monotonic() - began))
    ours = memory.pop(_US)
    return [
        noted("idle worker, of one core", cpu, percent),
        noted("worker's memory, PSS", ours, megabytes),
        *(
            noted(f"worker's memory, PSS, {family}", ours, megabytes, peer=theirs)
            for family, theirs in memory.items()
        ),
    ]
