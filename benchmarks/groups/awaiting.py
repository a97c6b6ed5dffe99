"""A thousand dispatches at once from one asyncio program, on Redis, beside those written for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks import environments, report
from benchmarks.groups.redis import bench as redis
from benchmarks.peers.sides import PEERS, Peer
from benchmarks.places import NotHereError, Place, Side, producing
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row, compared, milliseconds, noted, per_second
from benchmarks.said import versions

TITLE = "A thousand dispatches at once from one asyncio program, on Redis"

_PEERS = [peer for peer in PEERS if peer.environment in {"arq", "saq", "taskiq", "streaq"}]
_MANY = "streaq"
"""Who has a call for many, too."""
_IN_A_PROCESS = 5
"""So often each process dispatches a thousand."""


def facts() -> dict[str, str]:
    """Name the versions compared."""
    names = [peer.environment for peer in _PEERS]
    return {
        **versions("Redis"),
        **report.installed("redis", "hiredis", "uvloop", "pydantic"),
        "peers": ", ".join(f"{name} {environments.pinned(name)[name]}" for name in names),
    }


@dataclass(slots=True)
class _Measured:
    """What was measured of a side: of each round in each process."""

    rates: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def add(self, rounds: Sequence[Sequence[float]]) -> None:
        for rate, blocked, threads in rounds:
            self.rates.append(rate)
            self.blocked.append(blocked)
            self.threads.append(threads)


def rows(plan: Plan) -> list[Row]:
    """Measure each peer, and us next to it."""
    with RedisServer() as server:
        ours = redis.ours(server.url())
        ours = _at_its_best(replace(ours, producer=producing("benchmarks.apps.awaiting_producer")))
        found: list[Row] = []
        for peer in _PEERS:
            found += _peer_rows(plan, server, ours, peer)
        return found


def _peer_rows(plan: Plan, server: RedisServer, ours: Side, peer: Peer) -> list[Row]:
    ways = [(f"{plan.few:,} at once, {peer.name}", 0)]
    if peer.environment == _MANY:
        ways.append((f"{plan.few:,} by one call, {peer.name}", 1))
    side, why = _side(peer, server, alone=plan.alone)
    found = []
    for name, bulk in ways:
        us, them = _Measured(), _Measured()
        for number in range(plan.rounds):
            turns = [(ours, us), *([(side, them)] if side else [])]
            for each, measured in turns if number % 2 == 0 else reversed(turns):
                server.empty()
                with Place(each) as place:
                    measured.add(place.measures("together", plan.few, _IN_A_PROCESS, bulk))
        found += _rows(name, us, them, why)
    return found


def _rows(name: str, us: _Measured, them: _Measured, why: str) -> list[Row]:
    blocked, threads = f"{name}: longest blockage of the loop", f"{name}: threads"
    if why:
        return [
            Row(name, f"{per_second(sorted(us.rates)[len(us.rates) // 2])}", why),
            replace(noted(blocked, us.blocked, milliseconds), peer=why),
            replace(noted(threads, us.threads, _whole), peer=why),
        ]
    return [
        compared(name, us.rates, them.rates, per_second, at_least=1),
        noted(blocked, us.blocked, milliseconds, peer=them.blocked),
        noted(threads, us.threads, _whole, peer=them.threads),
    ]


def _side(peer: Peer, server: RedisServer, *, alone: bool) -> tuple[Side | None, str]:
    """Give a peer's side, or why there is none."""
    if alone:
        return None, "left out"
    try:
        side = _at_its_best(peer.side(server.url()))
        with Place(side) as place:
            place.check()
    except NotHereError as error:
        return None, f"not installed: {error}"
    return side, ""


def _at_its_best(side: Side) -> Side:
    """Give a side with the quicker loop."""
    return replace(side, environment={**side.environment, "BENCH_UVLOOP": "yes"})


def _whole(value: float) -> str:
    return f"{value:.0f}"
