"""Jobs a second with fifty at once: jobs that do nothing, that await, that sleep in threads."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.groups.concurrency.bench import ASYNC, THREADS, UVLOOP, Bench
from benchmarks.peers.concurrent_sides import AWAITS, MANY, NO_OP, REDIS, SLEEPS, ConcurrentPeer
from benchmarks.places import Drained, Place, Side
from benchmarks.rows import Row, alternated, compared, microseconds, noted, per_second

_WAITS = 0.01
_POSSIBLE = MANY / _WAITS
_BARE = "a bare asyncio loop"
_TURNS = 3
"""How many of the others have their turn before we have ours again."""
_BEGUN = 5
"""Of so many jobs the first are not counted: each side's code is cold."""


@dataclass(slots=True)
class _Rates:
    """What was measured of a side, each time, and of each of ours next to it."""

    drained: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    ours: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


_Found = dict[str, _Rates]


def no_op(bench: Bench) -> list[Row]:
    """Drain coroutines that do nothing; the peers' too, or functions of those that have threads."""
    found = _measured(bench, NO_OP, (UVLOOP, ASYNC))

    def row(peer: ConcurrentPeer) -> Row:
        return bench.row("no-op", peer, lambda name: beside(name, peer.name, _at_least(peer)))

    def beside(name: str, key: str, at_least: float | None = None) -> Row:
        rates = found[key]
        return compared(name, _best(rates), rates.drained, per_second, at_least=at_least)

    where = f"on {bench.name}"
    us = found[UVLOOP]
    rows = [row(peer) for peer in bench.peers(NO_OP)]
    if _BARE in found:
        rows.append(beside(f"no-op {where}, {_BARE} with our scripts", _BARE))
    return [
        *rows,
        noted(f"no-op {where}, uvloop, and asyncio's loop", us.drained, per_second,
              peer=found[ASYNC].drained),
        noted(f"no-op {where}, processor time per job, the same", us.cpu, microseconds,
              peer=found[ASYNC].cpu),
    ]  # fmt: skip


def _at_least(peer: ConcurrentPeer) -> float | None:
    if not peer.held:
        return None
    if peer.python:
        return 4
    return 1.2 if peer.name.startswith("BullMQ") else None


def awaits(bench: Bench) -> list[Row]:
    """Drain coroutines that await 10 ms."""
    return _waiting(bench, AWAITS, "await 10 ms", (UVLOOP, ASYNC), 0.9)


def sleeps(bench: Bench) -> list[Row]:
    """Drain functions that sleep for 10 ms, in threads."""
    return _waiting(bench, SLEEPS, "sleep 10 ms in threads", (THREADS,), 0.8)


def _waiting(bench: Bench, kind: str, what: str, ours: Sequence[str], at_least: float) -> list[Row]:
    found = _measured(bench, kind, ours)

    def row(peer: ConcurrentPeer) -> Row:
        return bench.row(what, peer, lambda name: beside(name, peer.name))

    def beside(name: str, key: str) -> Row:
        return compared(name, _best(found[key]), found[key].drained, per_second)

    rows = []
    for kind_of_ours in ours:
        rates = found[kind_of_ours].drained
        name = f"{what} on {bench.name}, of the possible: {kind_of_ours}"
        rows.append(compared(name, rates, [_POSSIBLE] * len(rates), per_second, at_least=at_least))
    rows += [row(peer) for peer in bench.peers(kind)]
    if _BARE in found:
        rows.append(beside(f"{what} on {bench.name}, {_BARE} with our scripts", _BARE))
    if bench.name == REDIS:
        slots = "threads" if kind == SLEEPS else "tasks"
        rows.append(Row(f"{what}, fifty {slots} without a queue", "", per_second(_alone(slots))))
    return rows


def _alone(slots: str) -> float:
    """Let tasks or threads wait with no queue at all; gives how often they do in a second."""
    worker = ("python", "-m", "benchmarks.apps.bare_slots", slots)
    side = Side("no queue", (), worker, environment={"BENCH_WAITS": str(_WAITS)}, stopped=False)
    with Place(side) as place:
        return place.drain(int(_POSSIBLE), after=int(_POSSIBLE) // _BEGUN).rate


def _best(rates: _Rates) -> list[float]:
    """Give what was measured of that of ours which is the quickest."""
    return max(rates.ours.values(), key=statistics.median)


def _measured(bench: Bench, kind: str, ours: Sequence[str]) -> _Found:
    """Drain, each side once a round; we take a turn beside every three of the others."""
    found: _Found = defaultdict(_Rates)
    others: list[ConcurrentPeer | str] = [peer for peer in bench.sides if kind in peer.of]
    if bench.name == REDIS and kind != SLEEPS:
        others.insert(0, _BARE)
    rounds = min(3 if (kind, bench.name) == (NO_OP, REDIS) else 2, bench.plan.rounds)
    for turn, each in enumerate(alternated(others or [""], rounds)):
        if turn % max(1, len(others)) % _TURNS == 0:
            for name in alternated(ours, 1):
                _note(found[name], _drain_ours(bench, kind, name))
        if each == _BARE:
            _note(found[_BARE], _drain_bare(bench, kind))
            key = _BARE
        elif isinstance(each, str):
            continue
        else:
            _note(found[each.name], _drain(bench, kind, each))
            key = each.name
        for name in ours:
            found[key].ours[name].append(found[name].drained[-1])
    return found


def _note(rates: _Rates, cost: Drained) -> None:
    rates.drained.append(cost.rate)
    rates.cpu.append(cost.cpu)


def _jobs(bench: Bench, kind: str, each_second: float) -> int:
    """Give how many jobs a side is measured with."""
    if kind != NO_OP:
        each_second = min(each_second, _POSSIBLE)
    return max(_BEGUN * MANY, int(each_second * bench.plan.concurrent_seconds))


def _doing(kind: str, side: Side) -> Side:
    """Give a side whose jobs do what is measured."""
    if kind == NO_OP:
        return side
    return replace(side, environment={**side.environment, "BENCH_WAITS": str(_WAITS)})


def _drain_ours(bench: Bench, kind: str, name: str) -> Drained:
    jobs = _jobs(bench, kind, bench.plan.concurrent_jobs)
    with bench.place(_doing(kind, bench.ours(name))) as place:
        place.produce("bulk", jobs)
        return place.drain(jobs, after=jobs // _BEGUN)


def _drain_bare(bench: Bench, kind: str) -> Drained:
    """Drain our own jobs with tasks of an event loop, and nothing around our scripts."""
    jobs = _jobs(bench, kind, bench.plan.concurrent_jobs)
    worker = ("python", "-m", "benchmarks.apps.bare_redis", "at_once")
    side = replace(bench.ours(ASYNC), name=_BARE, worker=worker, stopped=False)
    with bench.place(_doing(kind, side)) as place:
        place.produce("bulk", jobs)
        return place.drain(jobs, after=jobs // _BEGUN)


def _drain(bench: Bench, kind: str, peer: ConcurrentPeer) -> Drained:
    jobs = _jobs(bench, kind, peer.jobs)
    with bench.place(_doing(kind, bench.sides[peer])) as place:
        place.produce("many", jobs)
        return place.drain(jobs, after=jobs // _BEGUN)
