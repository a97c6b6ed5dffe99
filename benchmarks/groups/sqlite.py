"""The embedded default against Huey's SqliteHuey, and against bare `sqlite3`."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections import defaultdict

from benchmarks import report
from benchmarks.places import Place, Side, our_side, producing
from benchmarks.plan import Plan
from benchmarks.rows import (
    Row,
    alternated,
    compared,
    limited,
    megabytes,
    microseconds,
    milliseconds,
    noted,
    per_second,
    percent,
    percentile,
)

TITLE = "SQLite, one worker process, no-op jobs (peer: Huey's SqliteHuey, one worker thread)"

BARE = "benchmarks.apps.bare"
_HUEY = ("huey_consumer", "benchmarks.apps.huey_jobs.huey", "-q", "-w", "1")
_EAGER = ("-d", "0.001", "-m", "0.001")


def _ours(synchronous: str) -> Side:
    name, settings = f"qframe, synchronous={synchronous}", f'synchronous = "{synchronous}"\n'
    return our_side("database", settings, name=name)


def _huey(synchronous: str = "") -> Side:
    return Side(
        f"huey, synchronous={synchronous or 'full, its default'}",
        producing("benchmarks.apps.huey_producer"),
        _HUEY,
        environment={"BENCH_SYNCHRONOUS": synchronous},
    )


OURS, HUEY = _ours("normal"), _huey()
OURS_FULL, HUEY_NORMAL = _ours("full"), _huey("normal")


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return {
        "SQLite": sqlite3.sqlite_version,
        **report.installed("huey", "SQLAlchemy", "pydantic"),
    }


def rows(plan: Plan) -> list[Row]:
    """Measure everything, the peers in turn."""
    found: list[Row] = []
    for measure in (_throughput, _bulk, _latency, _lateness, _backlog, _at_rest):
        began = time.monotonic()
        found += measure(plan)
        print(f"{measure.__name__[1:]}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def _throughput(plan: Plan) -> list[Row]:
    """Dispatch one by one, then drain."""
    sent: dict[str, list[float]] = defaultdict(list)
    drained: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    bare: list[float] = []
    for side in alternated((OURS, HUEY, OURS_FULL, HUEY_NORMAL), plan.rounds):
        with Place(side) as place:
            sent[side.name].append(place.produce("many", plan.jobs))
            cost = place.drain(plan.jobs, *(_EAGER if side.worker is _HUEY else ()))
        drained[side.name].append(cost.rate)
        cpu[side.name].append(cost.cpu)
        if side is OURS:
            with Place(OURS) as place:
                place.produce("bulk", plan.jobs)
                bare.append(place.run(BARE, "drain", plan.jobs))
    found = []
    for what, rates in (("dispatch", sent), ("drain", drained)):
        ours, huey = rates[OURS.name], rates[HUEY.name]
        ours_full, huey_normal = rates[OURS_FULL.name], rates[HUEY_NORMAL.name]
        found += [
            compared(f"{what}, each as it comes", ours, huey, per_second, at_least=1.2),
            noted(f"{what}, both synchronous=normal", ours, per_second, peer=huey_normal),
            noted(f"{what}, both synchronous=full", ours_full, per_second, peer=huey),
        ]
    return [
        *found,
        noted(
            "drain, processor time per job, both synchronous=normal",
            cpu[OURS.name],
            microseconds,
            peer=cpu[HUEY_NORMAL.name],
        ),
        noted("drain, against bare sqlite3", drained[OURS.name], per_second, peer=bare),
    ]


def _bulk(plan: Plan) -> list[Row]:
    """Queue many at once; the bare side is given its rows ready made."""
    ours, bare = [], []
    with Place(OURS) as place:
        for _ in range(plan.rounds):
            ours.append(place.produce("bulk", plan.bulk))
            bare.append(place.run(BARE, "bulk", plan.bulk))
    return [noted("bulk, against bare executemany", ours, per_second, peer=bare)]


def _latency(plan: Plan) -> list[Row]:
    """From dispatch to start, on a worker that was idle."""
    ours, huey = _since("spaced", plan)
    return [
        compared("dispatch to start, idle worker, median", ours, huey, milliseconds, below=0.2),
        _tail("dispatch to start, idle worker, p95", ours, huey, 0.95),
    ]


def _lateness(plan: Plan) -> list[Row]:
    """From the due time of a delayed job to its start, on a worker that was idle."""
    ours, huey = _since("delayed", plan, rounds=min(2, plan.rounds))
    limit = 0.05
    return [
        limited("delayed job late by, median", ours, milliseconds, limit, peer=huey),
        _tail("delayed job late by, p95", ours, huey, 0.95, limit),
        _tail("delayed job late by, most", ours, huey, 1, limit),
    ]


def _since(command: str, plan: Plan, rounds: int = 0) -> tuple[list[float], list[float]]:
    """Let jobs note the time since their moment, some per round; a worker is new in each."""
    found: dict[str, list[float]] = defaultdict(list)
    for turn, side in enumerate(alternated((OURS, HUEY), rounds or plan.rounds)):
        with Place(side) as place:
            place.produce("many", 1)
            with place.working() as worker:
                place.wait_for(2, worker)
                place.produce(command, plan.samples, turn // 2)
                place.wait_for(3 + plan.samples, worker)
            found[side.name] += place.times()
    return found[OURS.name], found[HUEY.name]


def _tail(
    measure: str, ours: list[float], peer: list[float], share: float, limit: float | None = None
) -> Row:
    mine, theirs = percentile(ours, share), percentile(peer, share)
    return Row(
        measure,
        milliseconds(mine),
        milliseconds(theirs),
        mine / theirs,
        "" if limit is None else f"under {milliseconds(limit)}",
        None if limit is None else mine < limit,
    )


def _backlog(plan: Plan) -> list[Row]:
    """Drain as many jobs of a short queue and of a long one with delayed jobs before them."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    with contextlib.ExitStack() as stack:
        places = {long: stack.enter_context(Place(OURS)) for long in (False, True)}
        places[True].produce("fill", plan.delayed, plan.waiting - plan.few)
        for long in alternated((False, True), plan.backlog_rounds):
            place = places[long]
            place.produce("fill", 0, plan.few)
            rates[long].append(place.drain(plan.few, "--max-jobs", str(plan.few)).rate)
    return [
        compared(
            f"drain at {plan.waiting:,} waiting and {plan.delayed:,} delayed, at {plan.few:,}",
            rates[True],
            rates[False],
            per_second,
            at_least=0.8,
        )
    ]


def _at_rest(plan: Plan) -> list[Row]:
    """What an idle worker costs after it has run jobs."""
    cpu: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[dict[str, float]]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        workers = {}
        for side in (OURS, HUEY):
            place = stack.enter_context(Place(side))
            place.produce("many", plan.few)
            workers[side.name] = worker = stack.enter_context(place.working())
            place.wait_for(plan.few + 1, worker)
        time.sleep(min(2, plan.idle_seconds))
        for _ in range(min(3, plan.rounds)):
            before = {name: worker.cpu_seconds() for name, worker in workers.items()}
            began = time.monotonic()
            time.sleep(plan.idle_seconds)
            seconds = time.monotonic() - began
            for name, worker in workers.items():
                cpu[name].append((worker.cpu_seconds() - before[name]) / seconds)
                memory[name].append(worker.memory())
    mine, theirs = (
        {kind: [sample[kind] for sample in memory[side.name]] for kind in ("pss", "rss", "own")}
        for side in (OURS, HUEY)
    )
    return [
        limited("idle worker, of one core", cpu[OURS.name], percent, 0.01, peer=cpu[HUEY.name]),
        limited("worker's memory, PSS", mine["pss"], megabytes, 60, peer=theirs["pss"]),
        noted("worker's memory, RSS", mine["rss"], megabytes, peer=theirs["rss"]),
        noted("worker's memory, its own alone", mine["own"], megabytes, peer=theirs["own"]),
    ]
