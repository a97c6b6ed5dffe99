"""What the measures on a SQL server share: the server, our side, and the peers that are here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.peers.sql_sides import PEERS, SqlPeer
from benchmarks.places import BenchmarkError, NotHereError, Place, Side, our_side
from benchmarks.plan import Plan
from benchmarks.rows import Row
from benchmarks.sql.server import SqlServer

_SHOWN = 80


def ours(url: str) -> Side:
    """Give our side."""
    return our_side("database", f'url = "{url}"\n', prepare=("qframe", "migrate"))


@dataclass(slots=True)
class Bench:
    """The server of a run, our side, the peers that are here, and why the others are not."""

    plan: Plan
    server: SqlServer
    ours: Side
    sides: dict[SqlPeer, Side] = field(default_factory=dict)
    missing: dict[SqlPeer, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, server: SqlServer) -> Bench:
        """Look for everybody."""
        bench = cls(plan, server, ours(server.our_url()))
        for peer in bench.everybody():
            if plan.alone:
                bench.missing[peer] = "left out"
                continue
            try:
                side = peer.side(server.url())
                with bench.place(side) as place:
                    place.check()
                bench.sides[peer] = side
            except (NotHereError, BenchmarkError) as error:
                said = str(error).strip().splitlines()[-1]
                bench.missing[peer] = f"not installed: {said[:_SHOWN]}"
        return bench

    @property
    def rounds(self) -> int:
        """How often each side has its turn."""
        return min(3, self.plan.rounds)

    def everybody(self) -> list[SqlPeer]:
        """Give the peers of this server, also those that are not here."""
        return [peer for peer in PEERS if self.server.name in peer.servers]

    @contextlib.contextmanager
    def place(self, side: Side) -> Iterator[Place]:
        """Give a place for a side, with its own empty tables and nothing else on the server."""
        with Place(side) as place:
            if not self.server.restore(side.name):
                self.server.create("bench")
                place.prepare()
                self.server.keep(side.name)
            yield place

    def absent(self, measure: str, *peers: SqlPeer) -> Row:
        """Give the row of a peer that is not here, or of several none of which is."""
        why = self.missing[peers[0]] if len(peers) == 1 else "none of them is here"
        return Row(measure, "", why)
