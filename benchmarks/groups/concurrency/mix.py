"""A mix in which every hundredth job computes for 200 ms: what the others wait, who runs twice."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

from benchmarks.apps import TIMES
from benchmarks.groups.concurrency.bench import THREADS, UVLOOP, Bench
from benchmarks.peers.concurrent_sides import MIX, ConcurrentPeer
from benchmarks.places import Place, Side
from benchmarks.rows import Row, milliseconds, percentile

_COMPUTES = 0.2
_EACH_SECOND = 100
_LEASE = 1
"""Seconds of our `retry_after`, the shortest there is: what is lost is run again at once."""
_START = "mix, start delay p50, p99"
_LOST = " LOST "
"""What our worker says in the line of a job whose lease was lost."""


@dataclass(frozen=True, slots=True)
class _Mixed:
    """What was seen of a side: how late those started that do not compute, and who ran again."""

    late: list[float]
    ran: int
    again: int
    lost: int = 0

    def shown(self) -> str:
        """Show how late they were in the median, and the last hundredth."""
        half, most = (percentile(self.late, share) for share in (0.5, 0.99))
        return f"{milliseconds(half)}, {milliseconds(most)}"


def mix(bench: Bench) -> list[Row]:
    """Dispatch at a steady rate to a worker that is up; all at once, too, where it is ours."""
    ours = {kind: _steady(bench, _ours(bench, kind), 2 * _LEASE) for kind in (UVLOOP, THREADS)}
    rows = [_twice(bench, kind, found) for kind, found in ours.items()]
    rows.append(_twice(bench, f"{UVLOOP}, all dispatched before", _waiting(bench)))
    us, threads = (ours[kind].shown() for kind in (UVLOOP, THREADS))
    rows.append(Row(f"{_START} on {bench.name}, qframe in threads", us, threads))

    def row(peer: ConcurrentPeer) -> Row:
        return bench.row(_START, peer, lambda name: beside(name, peer))

    def beside(name: str, peer: ConcurrentPeer) -> Row:
        found = _steady(bench, bench.sides[peer], 0)
        if found.again:
            name = f"{name} ({found.again} ran twice)"
        return Row(name, us, found.shown(), samples={"peer": found.late})

    return [*rows, *(row(peer) for peer in bench.peers(MIX))]


def _ours(bench: Bench, kind: str) -> Side:
    """Give a side of ours, with tries: of one try what lost its lease would fail, not run again."""
    return bench.ours(kind, "--tries", "5", more=f"retry_after = {_LEASE}\n")


def _computing(side: Side) -> Side:
    return replace(side, environment={**side.environment, "BENCH_COMPUTES": str(_COMPUTES)})


def _steady(bench: Bench, side: Side, longer: float) -> _Mixed:
    """Run jobs that come at a steady rate, and watch for some time `longer`."""
    count = bench.plan.mixed
    with bench.place(_computing(side)) as place:
        place.produce("many", 1)
        with place.working() as worker:
            place.wait_for(2, worker)
            place.produce("paced", count, _EACH_SECOND)
            place.wait_for(3 + count, worker)
            time.sleep(longer)
        return _seen(place)


def _waiting(bench: Bench) -> _Mixed:
    """Run twice as many that all wait, so that several of those that compute are taken at once."""
    count = 2 * bench.plan.mixed
    with bench.place(_computing(_ours(bench, UVLOOP))) as place:
        place.produce("paced", count, 1_000_000)
        with place.working() as worker:
            place.wait_for(1 + count, worker)
            time.sleep(2 * _LEASE)
        return _seen(place)


def _seen(place: Place) -> _Mixed:
    lines = [line.split() for line in (place.folder / TIMES).read_text().splitlines()]
    runs = Counter(moment for _, moment in lines)
    said = (place.folder / "worker.log").read_text(errors="replace").splitlines()
    return _Mixed(
        late=[float(late) for late, _ in lines if late != "-"],
        ran=len(lines),
        again=len(lines) - len(runs),
        lost=sum(_LOST in line for line in said),
    )


def _twice(bench: Bench, what: str, found: _Mixed) -> Row:
    again, lost = found.again, found.lost
    return Row(
        f"mix, run twice, leases lost on {bench.name}, {what}",
        f"{again}, {lost} of {found.ran:,}",
        target="none",
        met=not (again or lost),
    )
