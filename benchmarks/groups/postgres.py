"""PostgreSQL: one worker process and four, against every peer, and against pgbench."""

from __future__ import annotations

from benchmarks.plan import Plan
from benchmarks.rows import Row
from benchmarks.sql.measured import measured, versions_on
from benchmarks.sql.postgres import PostgresServer

TITLE = "PostgreSQL, no-op jobs; all sides on one private server, every commit on the disk"


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions_on(PostgresServer.name, "psycopg")


def rows(plan: Plan) -> list[Row]:
    """Measure everything, the sides in turn."""
    return measured(plan, PostgresServer())
