"""What a process per job costs, what a second worker brings, and what a status costs."""

from __future__ import annotations

import time

from benchmarks.groups.workers.bench import Bench
from benchmarks.peers.sides import PEERS
from benchmarks.places import NotHereError
from benchmarks.rows import (
    Row,
    alternated,
    compared,
    limited,
    megabytes,
    noted,
    per_second,
    percent,
)

_BARE = "benchmarks.apps.bare_fork"


def isolated(bench: Bench) -> list[Row]:
    """Drain with a process per job, against RQ's and against fork and wait alone."""
    plan = bench.plan
    ours, bare, large, preloaded, rq = [], [], [], [], []
    forking = next(peer for peer in PEERS if peer.name == "RQ, a fork per job")
    side, theirs, missing = bench.ours("redis", "--isolate"), None, "left out"
    if not plan.alone:
        try:
            theirs = forking.at_its_best(forking.side(bench.redis.url()))
        except NotHereError as error:
            missing = f"not installed: {error}"
    for _ in range(plan.rounds):
        with bench.place(side) as place:
            place.produce("bulk", plan.forks)
            ours.append(place.drain(plan.forks).rate)
            bare.append(place.run(_BARE, plan.forks))
            large.append(place.run(_BARE, plan.forks, "large"))
        with bench.place(bench.ours("redis", "--isolate", "--preload")) as place:
            place.produce("bulk", plan.forks)
            preloaded.append(place.drain(plan.forks).rate)
        if theirs is not None:
            jobs = max(20, int(forking.jobs * plan.seconds))
            with bench.place(theirs) as place:
                place.produce("many", jobs)
                rq.append(place.drain(jobs).rate)
    against_rq = "--isolate, RQ's fork per job"
    return [
        compared(against_rq, ours, rq, per_second, at_least=10)
        if theirs is not None
        else Row(against_rq, "", missing),
        compared("--isolate, bare fork and wait", ours, bare, per_second, at_least=0.3),
        noted("--isolate --preload, bare fork and wait", preloaded, per_second, peer=bare),
        noted("--isolate --preload, the same, as large", preloaded, per_second, peer=large),
    ]


def several(bench: Bench) -> list[Row]:
    """Drain jobs that burn processor time with two workers, and with one."""
    count = bench.plan.burning
    rates: dict[str, list[float]] = {"1": [], "2": []}
    for number in alternated(("1", "2"), bench.plan.rounds):
        options = ("--workers", number) if number != "1" else ()
        with bench.place(bench.ours("redis", *options)) as place:
            place.produce("burning", count)
            rates[number].append(place.drain(count).rate)
    return [
        compared("--workers 2, one worker; 5 ms jobs", rates["2"], rates["1"], per_second,
                 at_least=1.6)
    ]  # fmt: skip


def tracked(bench: Bench) -> list[Row]:
    """Drain jobs whose statuses are kept, and jobs whose are not."""
    found = []
    for driver in bench.connections:
        rates: dict[str, list[float]] = {"qframe": [], "tracked": []}
        for jobs in alternated(tuple(rates), bench.plan.rounds):
            with bench.place(bench.ours(driver, jobs=jobs)) as place:
                place.produce("bulk", bench.plan.jobs)
                rates[jobs].append(place.drain(bench.plan.jobs).rate)
        found.append(
            compared(f"drain on {driver}, tracked, and not", rates["tracked"], rates["qframe"],
                     per_second, at_least=0.75)
        )  # fmt: skip
    return found


def at_rest(bench: Bench) -> list[Row]:
    """Watch parents that have nothing to do."""
    plan, found = bench.plan, []
    for options in (("--isolate",), ("--workers", "2")):
        cpu, memory = [], []
        with bench.place(bench.ours("redis", *options)) as place:
            place.produce("bulk", 20)
            with place.working() as parent:
                place.wait_for(20, parent)
                time.sleep(min(2, plan.idle_seconds))
                for _ in range(min(3, plan.rounds)):
                    used, began = parent.cpu_seconds(), time.monotonic()
                    time.sleep(plan.idle_seconds)
                    cpu.append((parent.cpu_seconds() - used) / (time.monotonic() - began))
                    memory.append(parent.memory()["pss"])
        name = " ".join(options)
        found.append(limited(f"{name}, idle parent, of one core", cpu, percent, 0.003))
        found.append(noted(f"{name}, parent's memory, PSS", memory, megabytes))
    return found
