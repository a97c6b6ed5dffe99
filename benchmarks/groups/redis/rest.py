"""What an idle worker costs, what a long queue does, and what waiting for a replica does."""

from __future__ import annotations

import contextlib
import time

from benchmarks.groups.redis.bench import Bench, ours
from benchmarks.places import Place
from benchmarks.redis_server import RedisServer
from benchmarks.rows import (
    Row,
    alternated,
    compared,
    each_second,
    limited,
    megabytes,
    noted,
    per_second,
    percent,
)


def at_rest(bench: Bench) -> list[Row]:
    """Watch a worker that has run jobs and waits."""
    plan = bench.plan
    trips, cpu, memory = [], [], []
    with bench.place(bench.ours) as place:
        place.produce("many", plan.few)
        with place.working() as worker:
            place.wait_for(plan.few + 1, worker)
            time.sleep(min(2, plan.idle_seconds))
            for _ in range(min(3, plan.rounds)):
                asked, used = bench.server.round_trips(), worker.cpu_seconds()
                began = time.monotonic()
                time.sleep(plan.idle_seconds)
                seconds = time.monotonic() - began
                cpu.append((worker.cpu_seconds() - used) / seconds)
                trips.append((bench.server.round_trips() - asked - 1) / seconds)
                memory.append(worker.memory()["pss"])
    return [
        limited("idle worker, round trips", trips, each_second, 1),
        limited("idle worker, of one core", cpu, percent, 0.003),
        limited("worker's memory, PSS", memory, megabytes, 60),
    ]


def backlog(bench: Bench) -> list[Row]:
    """Drain as many jobs of a short queue and of a long one."""
    plan = bench.plan
    rates: dict[bool, list[float]] = {False: [], True: []}
    bench.server.empty()
    with contextlib.ExitStack() as stack:
        places = {
            long: stack.enter_context(Place(ours(bench.server.url(int(long)))))
            for long in (False, True)
        }
        places[True].produce("fill", 0, plan.redis_waiting - plan.redis_few)
        for long in alternated((False, True), plan.rounds):
            place = places[long]
            place.produce("fill", 0, plan.redis_few)
            rates[long].append(place.drain(plan.redis_few, "--max-jobs", str(plan.redis_few)).rate)
    return [
        compared(
            f"drain at {plan.redis_waiting:,} waiting, at {plan.redis_few:,}",
            rates[True],
            rates[False],
            per_second,
            at_least=0.85,
        )
    ]


def replicated(bench: Bench) -> list[Row]:
    """Dispatch with, and without, waiting until a replica has each job."""
    plan = bench.plan
    waiting: list[float] = []
    alone: list[float] = []
    with RedisServer(bench.server):
        for _ in range(min(3, plan.rounds)):
            for rates, more in ((alone, ""), (waiting, "min_replicas = 1\n")):
                with bench.place(ours(bench.server.url(), more)) as place:
                    rates.append(place.produce("many", plan.few))
    return [noted("dispatch with min_replicas=1, without", waiting, per_second, peer=alone)]
