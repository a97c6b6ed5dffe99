"""One worker process on beanstalkd against Laravel's, and against greenstalk alone."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import report
from benchmarks.beanstalkd_server import BeanstalkdServer
from benchmarks.places import NotHereError, Place, Side, our_side
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
from benchmarks.said import versions

TITLE = "beanstalkd, one worker process, no-op jobs; all sides on one private server"

_BARE = "benchmarks.apps.bare_beanstalkd"
_LARAVEL = Path(__file__).parents[1] / "peers" / "laravel"


@dataclass(slots=True)
class _Rates:
    """What was measured of a side, each time."""

    sent: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Bench:
    """The server of a run, our side, and Laravel's where it is here."""

    def __init__(self, plan: Plan, server: BeanstalkdServer) -> None:
        self.plan = plan
        self.server = server
        self.ours = ours(server)
        self.bare = replace(
            self.ours, name="greenstalk", worker=("python", "-m", _BARE, "drain"), stopped=False
        )
        self.laravel = _laravel(server)
        self.missing = "left out" if plan.alone else ""
        if not plan.alone:
            try:
                with self.place(self.laravel) as place:
                    place.check()
            except NotHereError as error:
                self.missing = f"not installed: {error}"

    @contextlib.contextmanager
    def place(self, side: Side) -> Iterator[Place]:
        """Give a place for a side, with nothing else on the server."""
        self.server.empty()
        with Place(side) as place:
            yield place


def ours(server: BeanstalkdServer, more: str = "") -> Side:
    """Give our side, with further lines for the connection."""
    settings = f"port = {server.port}\n{more}"
    return our_side("beanstalkd", settings, environment={"BENCH_BEANSTALKD": server.address})


def _laravel(server: BeanstalkdServer) -> Side:
    return Side(
        "Laravel 8, PHP",
        ("php", str(_LARAVEL / "produce.php")),
        ("php", str(_LARAVEL / "work.php")),
        environment={"BENCH_BEANSTALKD": server.address},
        stopped=False,
    )


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return {
        **versions("beanstalkd"),
        **report.installed("greenstalk", "pydantic"),
        **versions("Laravel", "Pheanstalk", "PHP"),
    }


def rows(plan: Plan) -> list[Row]:
    """Measure everything, the sides in turn."""
    found: list[Row] = []
    with BeanstalkdServer() as server:
        bench = Bench(plan, server)
        for measure in (_throughput, _latency, _lateness, _at_rest):
            began = time.monotonic()
            found += measure(bench)
            spent = time.monotonic() - began
            print(f"beanstalkd {measure.__name__[1:]}: {spent:.0f} s", file=sys.stderr)
    return found


def _throughput(bench: Bench) -> list[Row]:
    """Dispatch one by one, in bulk, and drain; each side once a round, we first or last."""
    us, bare, laravel = _Rates(), _Rates(), _Rates()
    turns = [(_measure_us, us), (_measure_bare, bare)]
    if not bench.missing:
        turns.append((_measure_laravel, laravel))
    for measure, rates in alternated(turns, bench.plan.rounds):
        measure(bench, rates)
    bulk = f"bulk of {bench.plan.bulk:,}, sent one by one"
    return [
        compared("drain, bare loop", us.drained, bare.drained, per_second, at_least=0.7),
        noted("drain, bare loop, processor time per job", us.cpu, microseconds, peer=bare.cpu),
        _beside(bench, "drain, Laravel 8, PHP", us.drained, laravel.drained, 1),
        compared("dispatch, bare loop of put", us.sent, bare.sent, per_second, at_least=0.6),
        _beside(bench, "dispatch, Laravel 8, PHP", us.sent, laravel.sent, None),
        compared(bulk, us.bulk, us.sent, per_second, at_least=3),
    ]


def _beside(
    bench: Bench, measure: str, us: list[float], laravel: list[float], at_least: float | None
) -> Row:
    if bench.missing:
        return Row(measure, "", bench.missing)
    return compared(measure, us, laravel, per_second, at_least=at_least)


def _measure_us(bench: Bench, us: _Rates) -> None:
    plan = bench.plan
    with bench.place(bench.ours) as place:
        us.sent.append(place.produce("many", plan.jobs))
        us.bulk.append(place.produce("bulk", plan.bulk))
        cost = place.drain(plan.jobs + plan.bulk)
    us.drained.append(cost.rate)
    us.cpu.append(cost.cpu)


def _measure_bare(bench: Bench, bare: _Rates) -> None:
    """Drain our own jobs with greenstalk."""
    jobs = bench.plan.jobs + bench.plan.bulk
    with bench.place(bench.bare) as place:
        bare.sent.append(place.run(_BARE, "push", bench.plan.jobs))
        place.produce("bulk", jobs)
        cost = place.drain(jobs)
    bare.drained.append(cost.rate)
    bare.cpu.append(cost.cpu)


def _measure_laravel(bench: Bench, laravel: _Rates) -> None:
    with bench.place(bench.laravel) as place:
        laravel.sent.append(place.produce("many", bench.plan.jobs))
        laravel.drained.append(place.drain(bench.plan.jobs).rate)


def _latency(bench: Bench) -> list[Row]:
    """From dispatch to start, on a worker that was idle."""
    plan, times, laravel = bench.plan, [], []
    for number in range(min(3, plan.rounds)):
        times += _times(bench, bench.ours, "spaced", 5 * plan.samples, number)
        if not bench.missing:
            laravel += _times(bench, bench.laravel, "spaced", plan.samples, number)
    return [
        limited("dispatch to start, idle worker, median", times, milliseconds, 0.001, peer=laravel),
        _tail("dispatch to start, idle worker, p99", times),
    ]


def _lateness(bench: Bench) -> list[Row]:
    """From the due time of a delayed job to its start: a beanstalkd counts in whole seconds."""
    late: list[float] = []
    for number in range(min(2, bench.plan.rounds)):
        late += _times(bench, bench.ours, "delayed", 2 * bench.plan.samples, number)
    return [
        noted("delayed job late by, median", late, milliseconds),
        _tail("delayed job late by, p99", late),
    ]


def _times(bench: Bench, side: Side, command: str, count: int, seed: int) -> list[float]:
    with bench.place(side) as place:
        return place.times_of(command, count, seed)


def _tail(measure: str, samples: list[float]) -> Row:
    found = percentile(samples, 0.99)
    return Row(measure, milliseconds(found), samples={"ours": samples})


def _at_rest(bench: Bench) -> list[Row]:
    """Watch a worker that has run jobs and waits."""
    plan, cpu, memory = bench.plan, [], []
    with bench.place(bench.ours) as place:
        place.produce("many", plan.few)
        with place.working() as worker:
            place.wait_for(plan.few + 1, worker)
            time.sleep(min(2, plan.idle_seconds))
            for _ in range(min(3, plan.rounds)):
                used, began = worker.cpu_seconds(), time.monotonic()
                time.sleep(plan.idle_seconds)
                cpu.append((worker.cpu_seconds() - used) / (time.monotonic() - began))
                memory.append(worker.memory()["pss"])
    return [
        noted("idle worker, of one core", cpu, percent),
        noted("worker's memory, PSS", memory, megabytes),
    ]
