"""Plain jobs, chains, batches, unique tracked jobs, on each backend; also beside another checkout.

With `--against PATH` every measure is taken of the qframe of that checkout too, in turns, by the
same programs. Without it what is drained is compared with the backend's bare loop.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field, replace

from benchmarks.groups.workers.bench import Bench
from benchmarks.places import Side
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row, alternated, microseconds, milliseconds, noted, per_second
from benchmarks.said import versions

TITLE = "Workloads: plain jobs, chains, batches, unique tracked jobs, on each backend"

KINDS = ("plain", "chain", "batch", "unique tracked")
_BARE = {
    "redis": "benchmarks.apps.bare_redis",
    "database": "benchmarks.apps.bare",
    "beanstalkd": "benchmarks.apps.bare_beanstalkd",
}


@dataclass(slots=True)
class _Found:
    """What was measured of one side, each time."""

    sent: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


PARTS = ("redis", "database", "beanstalkd")
"""The connections, each of which can be measured alone."""


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis", "beanstalkd")


def rows(plan: Plan) -> list[Row]:
    """Measure each workload on each backend that is here."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for driver in bench.connections:
            if plan.parts and driver not in plan.parts:
                continue
            began = time.monotonic()
            for kind in KINDS:
                found += _measured(bench, driver, kind)
            found.append(_latency(bench, driver))
            spent = time.monotonic() - began
            print(f"workloads {driver}: {spent:.0f} s", file=sys.stderr)
    return found


def _measured(bench: Bench, driver: str, kind: str) -> list[Row]:
    """Dispatch and drain jobs of a kind, the sides in turns."""
    count = bench.plan.many
    side = bench.ours(driver, jobs="featured")
    sides = _sides(bench, replace(side, environment={**side.environment, "BENCH_JOB": kind}))
    results = {name: _Found() for name in sides}
    bare: list[float] = []
    for name in alternated([*sides, *([] if "peer" in sides else ["bare"])], bench.plan.rounds):
        if name == "bare":
            bare.append(_bare(bench, driver, sides["ours"], count))
        else:
            _measure(bench, sides[name], results[name], count)
    ours, peer = results["ours"], results.get("peer", _Found(drained=bare))
    what = f"{count:,} {kind} on {driver}"
    rows = [
        noted(f"{what}, dispatched at once", ours.bulk, per_second, peer=peer.bulk),
        noted(f"{what}, drained", ours.drained, per_second, peer=peer.drained),
        noted(f"{what}, processor time per job", ours.cpu, microseconds, peer=peer.cpu),
    ]
    if ours.sent:
        name = f"{what}, dispatched one by one"
        rows.insert(0, noted(name, ours.sent, per_second, peer=peer.sent))
    return rows


def _sides(bench: Bench, ours: Side) -> dict[str, Side]:
    """Give our side, and the same of the other checkout where there is one."""
    against = bench.plan.against
    if against is None:
        return {"ours": ours}
    return {"ours": ours, "peer": replace(ours, name=f"qframe of {against}", checkout=against)}


def _measure(bench: Bench, side: Side, found: _Found, count: int) -> None:
    if side.environment["BENCH_JOB"] in {"plain", "unique tracked"}:
        with bench.place(side) as place:
            found.sent.append(place.produce("many", count))
    with bench.place(side) as place:
        found.bulk.append(place.produce("bulk", count))
        cost = place.drain(count)
    found.drained.append(cost.rate)
    found.cpu.append(cost.cpu)


def _bare(bench: Bench, driver: str, ours: Side, count: int) -> float:
    """Drain as many plain jobs with a bare loop; gives the rate."""
    module = _BARE[driver]
    plain = {**ours.environment, "BENCH_JOB": "plain"}
    worker = ("python", "-m", module, "drain")
    side = replace(ours, name="bare loop", worker=worker, environment=plain, stopped=False)
    with bench.place(side) as place:
        place.produce("bulk", count)
        if driver == "database":
            return place.run(module, "drain", count)
        return place.drain(count).rate


def _latency(bench: Bench, driver: str) -> Row:
    """From dispatch to start, on a worker that was idle."""
    sides = _sides(bench, bench.ours(driver))
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for turn, name in enumerate(alternated([*sides], min(3, bench.plan.rounds))):
        with bench.place(sides[name]) as place:
            times[name] += place.times_of("spaced", bench.plan.samples, turn // len(sides))
    name = f"dispatch to start on {driver}, idle worker, median"
    return noted(name, times["ours"], milliseconds, peer=times["peer"])
