"""Fifty jobs at once in one process, on Redis and PostgreSQL, every side at its best."""

from __future__ import annotations

import contextlib

from benchmarks import environments, report
from benchmarks.groups.concurrency.bench import Bench
from benchmarks.groups.concurrency.mix import mix
from benchmarks.groups.concurrency.rates import awaits, no_op, sleeps
from benchmarks.groups.concurrency.rest import memory, one
from benchmarks.parts import measured_parts
from benchmarks.peers.concurrent_sides import PEERS
from benchmarks.peers.sql_sides import PACKAGES
from benchmarks.places import NotHereError
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row
from benchmarks.said import versions
from benchmarks.sql.postgres import PostgresServer

TITLE = "Fifty jobs at once in one process, on Redis and on PostgreSQL"

PARTS = {part.__name__: part for part in (no_op, awaits, sleeps, mix, memory, one)}


def facts() -> dict[str, str]:
    """Name the versions compared."""
    names = dict.fromkeys(peer.environment for peer in PEERS if peer.environment)
    packages = {name: PACKAGES.get(name, name) for name in names}
    return {
        **versions("Redis", "PostgreSQL"),
        **report.installed("redis", "hiredis", "psycopg", "uvloop", "pydantic"),
        "peers": ", ".join(
            f"{package} {environments.pinned(name)[package]}" for name, package in packages.items()
        ),
        **versions("Sidekiq", "Ruby"),
    }


def rows(plan: Plan) -> list[Row]:
    """Measure the parts that the plan names, or all, the sides in turn."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        found += _parts(Bench.of(plan, redis))
        try:
            postgres = stack.enter_context(PostgresServer())
        except NotHereError as error:
            return [*found, Row("PostgreSQL", "", str(error))]
        found += _parts(Bench.of(plan, redis, postgres))
    return found


def _parts(bench: Bench) -> list[Row]:
    return measured_parts(bench.plan, bench, PARTS, f"concurrency on {bench.name}")
