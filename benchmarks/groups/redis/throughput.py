"""How many jobs a second are dispatched and drained, by us and by everybody else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.groups.redis.bench import Bench
from benchmarks.peers.sides import LARAVEL, LARAVEL_JIT, NEVER, PEERS, SIDEKIQ, Peer
from benchmarks.rows import Row, compared, microseconds, noted, per_second

_BARE = "benchmarks.apps.bare_redis"
_BARELY, _GUARDED = _LOOPS = ("drain", "guarded")


@dataclass(slots=True)
class _Us:
    """What was measured of us, and of bare pushes, each time."""

    sent: list[float] = field(default_factory=list)
    pushed: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Pairs:
    """What was measured of a side in each round, and of us next to it."""

    sent: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    our_sent: list[float] = field(default_factory=list)
    our_drained: list[float] = field(default_factory=list)
    our_cpu: list[float] = field(default_factory=list)

    def beside(self, us: _Us) -> None:
        """Note what was last measured of us."""
        self.our_sent.append(us.sent[-1])
        self.our_drained.append(us.drained[-1])
        self.our_cpu.append(us.cpu[-1])


_Found = dict[Peer | str, _Pairs]
"""What was measured of each peer, and of each of the bare loops."""


def throughput(bench: Bench) -> list[Row]:
    """Dispatch one by one, in bulk, and drain; we take a turn beside every two of the others."""
    us = _Us()
    found: _Found = defaultdict(_Pairs)
    for number in range(bench.plan.rounds):
        order: list[Peer | str] = [*_LOOPS, *bench.sides]
        if number % 2:
            order.reverse()
        for index, each in enumerate(order):
            if index % 2 == 0:
                _measure_us(bench, us)
            if isinstance(each, str):
                _measure_bare(bench, each, found[each])
            else:
                _measure(bench, each, found[each])
            found[each].beside(us)
    return [*_drain_rows(bench, found), *_dispatch_rows(bench, found, us)]


def _measure_us(bench: Bench, us: _Us) -> None:
    plan = bench.plan
    with bench.place(bench.ours) as place:
        us.sent.append(place.produce("many", plan.jobs))
        us.pushed.append(place.run(_BARE, "push", plan.jobs))
        us.bulk.append(place.produce("bulk", plan.bulk))
        cost = place.drain(plan.jobs + plan.bulk)
    us.drained.append(cost.rate)
    us.cpu.append(cost.cpu)


def _measure_bare(bench: Bench, loop: str, pairs: _Pairs) -> None:
    """Drain our own jobs with a bare loop."""
    jobs = bench.plan.jobs + bench.plan.bulk
    side = replace(bench.ours, name=loop, worker=("python", "-m", _BARE, loop), stopped=False)
    with bench.place(side) as place:
        place.produce("bulk", jobs)
        cost = place.drain(jobs)
    pairs.drained.append(cost.rate)
    pairs.cpu.append(cost.cpu)


def _measure(bench: Bench, peer: Peer, pairs: _Pairs) -> None:
    jobs = max(20, int(peer.jobs * bench.plan.seconds))
    with bench.place(peer.at_its_best(bench.sides[peer])) as place:
        pairs.sent.append(place.produce("many", jobs))
        pairs.drained.append(place.drain(jobs).rate)


def _drain_rows(bench: Bench, found: _Found) -> list[Row]:
    def row(measure: str, peer: Peer, at_least: float | None = None) -> Row:
        if peer in bench.missing:
            return bench.absent(measure, peer)
        return drain(measure, peer, at_least)

    def drain(measure: str, key: Peer | str, at_least: float | None = None) -> Row:
        pairs = found[key]
        return compared(measure, pairs.our_drained, pairs.drained, per_second, at_least=at_least)

    def cpu(measure: str, key: str) -> Row:
        pairs = found[key]
        return noted(measure, pairs.our_cpu, microseconds, peer=pairs.cpu)

    def fastest(measure: str, peers: Sequence[Peer], at_least: float) -> Row:
        return _hardest(bench, measure, peers, lambda name, peer: row(name, peer, at_least))

    acking = [peer for peer in PEERS if peer.acks != NEVER]
    return [
        *(row(f"drain, {peer.name} ({peer.acks})", peer) for peer in PEERS),
        fastest("drain, the fastest Python peer that acks", acking, 4),
        fastest("drain, the fastest Python peer", PEERS, 3),
        row(f"drain, {LARAVEL.name} ({LARAVEL.acks})", LARAVEL, 3),
        row(f"drain, {LARAVEL_JIT.name}", LARAVEL_JIT),
        row(f"drain, {SIDEKIQ.name} ({SIDEKIQ.acks})", SIDEKIQ, 1.5),
        drain("drain, bare loop", _BARELY, 0.6),
        drain("drain, bare loop with pydantic and a timer", _GUARDED),
        cpu("drain, bare loop, processor time per job", _BARELY),
        cpu("drain, bare loop with both, processor time per job", _GUARDED),
    ]


def _dispatch_rows(bench: Bench, found: _Found, us: _Us) -> list[Row]:
    def row(measure: str, peer: Peer, at_least: float | None = None) -> Row:
        if peer in bench.missing:
            return bench.absent(measure, peer)
        pairs = found[peer]
        return compared(measure, pairs.our_sent, pairs.sent, per_second, at_least=at_least)

    def hardest(name: str, peer: Peer) -> Row:
        return row(name, peer, 1.2)

    python = [peer for peer in PEERS if peer.first]
    bulk = f"bulk of {bench.plan.bulk:,}, bare loop of rpush"
    return [
        *(row(f"dispatch, {peer.family}", peer) for peer in (*python, LARAVEL, SIDEKIQ)),
        _hardest(bench, "dispatch, the fastest Python peer", python, hardest),
        compared("dispatch, bare loop of rpush", us.sent, us.pushed, per_second, at_least=0.7),
        compared(bulk, us.bulk, us.pushed, per_second, at_least=2.5),
    ]


def _hardest(
    bench: Bench, measure: str, peers: Sequence[Peer], row: Callable[[str, Peer], Row]
) -> Row:
    """Give the row of whoever does best against us."""
    here = [peer for peer in peers if peer in bench.sides]
    if not here:
        return bench.absent(measure, *peers)
    return min((row(f"{measure}: {peer.name}", peer) for peer in here), key=_ratio)


def _ratio(row: Row) -> float:
    return row.ratio or 0
