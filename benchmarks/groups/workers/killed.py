"""kill -9 of a worker in a job: how long until the job is started again, by us and by the peers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.groups.workers.bench import Bench
from benchmarks.peers.sides import LARAVEL, PEERS, SIDEKIQ, Peer
from benchmarks.places import BenchmarkError, NotHereError, Place, Side, Worker
from benchmarks.rows import Row, limited

_LONG = "900"
"""Seconds that a job goes on, of which its worker sees none."""
_AT_ONCE = 1.0
_OFTEN = 0.002


def ours(bench: Bench) -> list[Row]:
    """Kill our workers: another one takes over, or the one their parent starts."""
    found = []
    for driver in bench.connections:
        alone = [_by_another(bench, driver) for _ in range(bench.plan.rounds)]
        pooled = [_by_its_parent(bench, driver) for _ in range(bench.plan.rounds)]
        found += [
            limited(
                f"started again on {driver}, by another", alone, _seconds, bench.plan.lease + 1
            ),
            limited(f"started again on {driver}, in a pool", pooled, _seconds, _AT_ONCE),
        ]
    return found


def _by_another(bench: Bench, driver: str) -> float:
    """Kill a worker whose job another one, which waits, has to find."""
    with bench.place(bench.leased(driver)) as place:
        place.produce("many", 0)
        with place.working(BENCH_SLEEPS=_LONG) as first:
            place.wait_for(1, first)
            with place.working() as second:
                time.sleep(2 * bench.plan.lease)  # it is up, and the first has renewed its lease
                killed = time.perf_counter()
                first.kill()
                seen, _ = place.wait_for(2, second)
                return seen - killed


def _by_its_parent(bench: Bench, driver: str) -> float:
    """Kill the worker of a pool that has a job."""
    with bench.place(bench.leased(driver, "--workers", "2")) as place:
        place.produce("many", 0)
        with place.working(BENCH_SLEEPS=_LONG) as parent:
            try:
                place.wait_for(1, parent)
                time.sleep(2 * bench.plan.lease)
                killed = time.perf_counter()
                os.kill(place.pids()[-1], signal.SIGKILL)
                seen, _ = place.wait_for(2, parent)
                return seen - killed
            finally:
                for pid in place.pids()[1:]:  # its job would go on
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                parent.kill()


@dataclass(slots=True)
class _Watched:
    """A side whose first worker was killed in a job, and whose second one waits."""

    peer: str
    place: Place
    worker: Worker
    killed: float
    again: float | None = None
    trouble: str = ""


def by_peers(bench: Bench) -> list[Row]:
    """Kill a worker of everybody, as they come; start another, and watch them all together."""
    watched: list[_Watched] = []
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        sides: list[tuple[str, Side]] = [("qframe", bench.ours("redis", "--tries", "3"))]
        bench.redis.empty()
        for number, peer in enumerate(_peers()):
            if bench.plan.alone:
                found.append(Row(_measure(peer.name), "", "left out"))
                continue
            try:
                sides.append((peer.name, peer.side(bench.redis.url(number + 1))))
            except NotHereError as error:
                found.append(Row(_measure(peer.name), "", f"not installed: {error}"))
        for name, side in sides:
            try:
                watched.append(stack.enter_context(_killed(name, side)))
            except (BenchmarkError, NotHereError) as error:
                found.append(Row(_measure(name), "", str(error).strip().splitlines()[-1][:60]))
        _watch(watched, bench.plan.watched)
        mine = next((each.again for each in watched if each.peer == "qframe"), None)
        found += [_row(each, mine, bench.plan.watched) for each in watched]
    return found


def _peers() -> list[Peer]:
    """Give one kind of each, in Redis databases of their own: 15 there are."""
    return [*(peer for peer in PEERS if peer.first), LARAVEL, SIDEKIQ]


@contextlib.contextmanager
def _killed(name: str, side: Side) -> Iterator[_Watched]:
    with Place(side) as place:
        place.produce("many", 0)
        with place.working(BENCH_SLEEPS=_LONG) as first:
            place.wait_for(1, first)
            time.sleep(1)
            killed = time.perf_counter()
            first.kill()
        with place.working() as second:
            yield _Watched(name, place, second, killed)


def _watch(watched: Sequence[_Watched], seconds: float) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < seconds and any(each.again is None for each in watched):
        for each in watched:
            if each.again is None and each.place.written() > 1:
                each.again = time.perf_counter() - each.killed
        time.sleep(_OFTEN)
    for each in watched:
        try:
            each.worker.check()
        except BenchmarkError:
            each.trouble = "its new worker ended"


def _measure(name: str) -> str:
    return f"kill -9 in a job, then a new worker: {name}"


def _row(each: _Watched, mine: float | None, watched: float) -> Row:
    own, said = _said(mine, watched), each.trouble or _said(each.again, watched)
    samples = {"peer": [each.again]} if each.again is not None else {}
    return Row(_measure(each.peer), own, "" if each.peer == "qframe" else said, samples=samples)


def _said(again: float | None, watched: float) -> str:
    return f"not in {watched:g} s" if again is None else f"after {_seconds(again)}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
