"""What the measures on Redis share: the server of a run, our side, and the peers that are here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.peers.sides import LARAVEL, LARAVEL_JIT, PEERS, SIDEKIQ, Peer
from benchmarks.places import NotHereError, Place, Side, our_side
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row

_EVERYONE = (*PEERS, LARAVEL, LARAVEL_JIT, SIDEKIQ)


def ours(url: str, more: str = "") -> Side:
    """Give our side, with further lines for the connection."""
    return our_side("redis", f'url = "{url}"\n{more}', environment={"BENCH_REDIS": url})


@dataclass(slots=True)
class Bench:
    """The server of a run, the sides that are here, and why the others are not."""

    plan: Plan
    server: RedisServer
    ours: Side
    sides: dict[Peer, Side] = field(default_factory=dict)
    missing: dict[Peer, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, server: RedisServer) -> Bench:
        """Look for everybody."""
        bench = cls(plan, server, ours(server.url()))
        for peer in _EVERYONE:
            if plan.alone:
                bench.missing[peer] = "left out"
                continue
            try:
                side = peer.side(server.url())
                with Place(side) as place:
                    place.check()
                bench.sides[peer] = side
            except NotHereError as error:
                bench.missing[peer] = f"not installed: {error}"
        return bench

    @contextlib.contextmanager
    def place(self, side: Side) -> Iterator[Place]:
        """Give a place for a side, with nothing else in Redis."""
        self.server.empty()
        with Place(side) as place:
            yield place

    def absent(self, measure: str, *peers: Peer) -> Row:
        """Give the row of a peer that is not here, or of several none of which is."""
        why = self.missing[peers[0]] if len(peers) == 1 else "none of them is here"
        return Row(measure, "", why)
