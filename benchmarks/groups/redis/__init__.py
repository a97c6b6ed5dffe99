"""One worker process on Redis against every peer, each in its own environment; and bare loops."""

from __future__ import annotations

import sys
import time

from benchmarks import environments, report
from benchmarks.groups.redis.bench import Bench
from benchmarks.groups.redis.rest import at_rest, backlog, replicated
from benchmarks.groups.redis.throughput import throughput
from benchmarks.groups.redis.waiting import latency, lateness
from benchmarks.peers.sides import PEERS
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row
from benchmarks.said import versions

TITLE = "Redis, one worker process, no-op jobs; all sides on one private server"


def facts() -> dict[str, str]:
    """Name the versions compared."""
    peers = dict.fromkeys(peer.environment for peer in PEERS)
    return {
        **versions("Redis"),
        **report.installed("redis", "hiredis", "pydantic"),
        "peers": ", ".join(f"{name} {environments.pinned(name)[name]}" for name in peers),
        **versions("Laravel", "PHP", "Sidekiq", "Ruby"),
    }


def rows(plan: Plan) -> list[Row]:
    """Measure everything, the sides in turn."""
    found: list[Row] = []
    with RedisServer() as server:
        bench = Bench.of(plan, server)
        for measure in (throughput, latency, lateness, at_rest, backlog, replicated):
            began = time.monotonic()
            found += measure(bench)
            server.empty()
            spent = time.monotonic() - began
            print(f"redis {measure.__name__}: {spent:.0f} s", file=sys.stderr)
    return found
