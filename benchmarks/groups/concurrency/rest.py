"""What fifty slots cost: the memory of their process, and a worker that has but one."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.groups.concurrency.bench import ONE, THREADS, UVLOOP, Bench
from benchmarks.rows import (
    Row,
    alternated,
    compared,
    limited,
    megabytes,
    microseconds,
    noted,
    per_second,
)

_MOST = 80
_NO_SLOWER = 0.97
"""What two sides that are the same differ by from run to run."""


def memory(bench: Bench) -> list[Row]:
    """Watch a process all of whose slots are taken."""
    rows = []
    for kind in (UVLOOP, THREADS):
        side = bench.ours(kind)
        side = replace(side, environment={**side.environment, "BENCH_WAITS": "0.01"})
        jobs, found = bench.plan.few, []
        with bench.place(side) as place:
            place.produce("bulk", jobs)
            with place.working() as worker:
                for part in range(1, 4):
                    place.wait_for(jobs * part // 4, worker)
                    found.append(worker.memory()["pss"])
        name = f"memory of 50 slots on {bench.name}, PSS, {kind}"
        rows.append(limited(name, [max(found)], megabytes, _MOST))
    return rows


def one(bench: Bench) -> list[Row]:
    """Drain one at a time, in turns with the qframe of another checkout."""
    measure = f"--concurrency 1 on {bench.name}, and before"
    plan = bench.plan
    if plan.against is None:
        return [Row(measure, "", "give --against PATH")]
    ours = bench.ours(ONE)
    sides = {"ours": ours, "before": replace(ours, checkout=plan.against)}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for name in alternated([*sides], min(6, 2 * plan.rounds)):
        with bench.place(sides[name]) as place:
            place.produce("bulk", plan.jobs)
            cost = place.drain(plan.jobs, after=plan.jobs // 5)
        rates[name].append(cost.rate)
        cpu[name].append(cost.cpu)
    return [
        compared(measure, rates["ours"], rates["before"], per_second, at_least=_NO_SLOWER),
        noted(f"{measure}, processor time per job", cpu["ours"], microseconds, peer=cpu["before"]),
    ]
