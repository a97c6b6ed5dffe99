"""The parts of a group of a SQL server, one after the other."""

from __future__ import annotations

from benchmarks import environments, report
from benchmarks.parts import measured_parts
from benchmarks.peers.sql_sides import PACKAGES, PEERS
from benchmarks.plan import Plan
from benchmarks.rows import Row
from benchmarks.said import versions
from benchmarks.sql.backlog import backlog, dead_rows
from benchmarks.sql.bench import Bench
from benchmarks.sql.rest import at_rest, latency
from benchmarks.sql.server import SqlServer, disk
from benchmarks.sql.throughput import bulk, processes, throughput, work_per_job

PARTS = {
    part.__name__: part
    for part in (throughput, processes, bulk, work_per_job, latency, at_rest, backlog, dead_rows)
}


def versions_on(server: str, client: str) -> dict[str, str]:
    """Name the versions compared on a server, and what its disk costs."""
    names = dict.fromkeys(p.environment for p in PEERS if server in p.servers and p.environment)
    peers = (f"{PACKAGES[n]} {environments.pinned(n)[PACKAGES[n]]}" for n in names)
    return {
        **versions(server),
        **disk(),
        **report.installed(client, "SQLAlchemy", "pydantic"),
        "peers": ", ".join(peers),
        **versions("Laravel", "PHP"),
    }


def measured(plan: Plan, server: SqlServer) -> list[Row]:
    """Measure the parts that the plan names, or all."""
    with server:
        return measured_parts(plan, Bench.of(plan, server), PARTS, server.name)
