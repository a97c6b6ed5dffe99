"""How soon an idle worker starts what was dispatched, and what was delayed."""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.groups.redis.bench import Bench
from benchmarks.peers.sides import Peer
from benchmarks.places import Side
from benchmarks.rows import Row, alternated, limited, milliseconds, noted, percentile

_OF_US = 5
"""So many times as many samples are taken of us: a tail needs more than a median."""
_CLOSE = 0.0001


def latency(bench: Bench) -> list[Row]:
    """From dispatch to start, on a worker that was idle; the peers as they come."""
    plan = bench.plan
    sides: dict[Peer | None, Side] = {None: bench.ours}
    sides.update({peer: side for peer, side in bench.sides.items() if peer.first})
    times: dict[Peer | None, list[float]] = defaultdict(list)
    for number, each in enumerate(alternated(list(sides), min(3, plan.rounds))):
        count = plan.samples * (_OF_US if each is None else 1)
        times[each] += _times(bench, sides[each], "spaced", count, number // len(sides))
    ours = times[None]
    peers = [
        _beside(peer.family, ours, times[peer])
        for peer in sorted(filter(None, sides), key=lambda peer: statistics.median(times[peer]))
    ]
    return [
        limited("dispatch to start, idle worker, median", ours, milliseconds, 0.001),
        _limited_tail("dispatch to start, idle worker, p99", ours, 0.005),
        *peers,
    ]


def _beside(name: str, ours: list[float], theirs: list[float]) -> Row:
    mine, median = statistics.median(ours), statistics.median(theirs)
    return Row(
        f"dispatch to start, {name}, median",
        milliseconds(mine),
        milliseconds(median),
        mine / median,
        f"{milliseconds(_CLOSE)} above at most",
        mine - median <= _CLOSE,
        {"ours": ours, "peer": theirs},
    )


def lateness(bench: Bench) -> list[Row]:
    """From the due time of a delayed job to its start, on a worker that was idle."""
    late: list[float] = []
    for number in range(min(2, bench.plan.rounds)):
        late += _times(bench, bench.ours, "delayed", 2 * bench.plan.samples, number)
    return [
        noted("delayed job late by, median", late, milliseconds),
        _limited_tail("delayed job late by, p99", late, 0.02),
    ]


def _times(bench: Bench, side: Side, command: str, count: int, seed: int) -> list[float]:
    with bench.place(side) as place:
        return place.times_of(command, count, seed)


def _limited_tail(measure: str, samples: list[float], limit: float) -> Row:
    found = percentile(samples, 0.99)
    return Row(
        measure,
        milliseconds(found),
        target=f"under {milliseconds(limit)}",
        met=found < limit,
        samples={"ours": samples},
    )
