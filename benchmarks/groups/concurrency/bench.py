"""What the measures of many jobs at once share: a server, our sides, the peers that are here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from benchmarks.groups.workers.bench import Bench as Workers
from benchmarks.peers.concurrent_sides import MANY, PEERS, POSTGRES, REDIS, ConcurrentPeer
from benchmarks.places import BenchmarkError, NotHereError, Place, Side
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row
from benchmarks.sql.postgres import PostgresServer

ONE, ASYNC, UVLOOP, THREADS = "one at a time", "asyncio", "uvloop", "threads"
_MANY = ("--concurrency", str(MANY))
_NO_UVLOOP = {"path/uvloop.py": "raise ImportError\n"}
_SHOWN = 80


@dataclass(slots=True)
class Bench:
    """A server, the peers on it that are here, and why the others are not."""

    plan: Plan
    name: str
    redis: RedisServer
    postgres: PostgresServer | None
    sides: dict[ConcurrentPeer, Side] = field(default_factory=dict)
    missing: dict[ConcurrentPeer, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, redis: RedisServer, postgres: PostgresServer | None = None) -> Bench:
        """Look for everybody, on PostgreSQL where there is one."""
        bench = cls(plan, POSTGRES if postgres else REDIS, redis, postgres)
        url = postgres.url() if postgres else redis.url()
        for peer in PEERS:
            if peer.server != bench.name:
                continue
            if plan.alone:
                bench.missing[peer] = "left out"
                continue
            try:
                side = peer.side(url)
                with bench.place(side) as place:
                    place.check()
                bench.sides[peer] = side
            except (NotHereError, BenchmarkError) as error:
                said = str(error).strip().splitlines()[-1]
                bench.missing[peer] = f"not installed: {said[:_SHOWN]}"
        return bench

    def ours(self, kind: str, *options: str, more: str = "") -> Side:
        """Give a side of ours, with further options and lines for its connection."""
        workers = Workers(self.plan, self.redis)
        if self.postgres is None:
            lines = f'driver = "redis"\nurl = "{self.redis.url()}"\n'
        else:
            lines = f'driver = "database"\nurl = "{self.postgres.our_url()}"\n'
        workers.connections["here"] = lines + more
        jobs = "qframe" if kind in {ONE, THREADS} else "async"
        side = workers.ours("here", *(() if kind == ONE else _MANY), *options, jobs=jobs)
        files = {**side.files, **(_NO_UVLOOP if kind == ASYNC else {})}
        prepare = ("qframe", "migrate") if self.postgres else ()
        return replace(side, name=f"qframe, {kind}", files=files, prepare=prepare)

    def peers(self, kind: str) -> list[ConcurrentPeer]:
        """Give the peers that a measure is taken of, also those that are not here."""
        return [peer for peer in (*self.sides, *self.missing) if kind in peer.of]

    @contextlib.contextmanager
    def place(self, side: Side) -> Iterator[Place]:
        """Give a place for a side, with nothing else on the server."""
        self.redis.empty()
        with Place(side) as place:
            if self.postgres is not None and not self.postgres.restore(side.name):
                self.postgres.create("bench")
                place.prepare()
                self.postgres.keep(side.name)
            yield place

    def row(self, measure: str, peer: ConcurrentPeer, make: Callable[[str], Row]) -> Row:
        """Give the row of a peer, or say why there is none."""
        measure = f"{measure} on {self.name}, {peer.name}"
        if peer in self.missing:
            return Row(measure, "", self.missing[peer])
        return make(measure)
