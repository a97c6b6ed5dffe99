"""What PostgreSQL reads for a claim: its cost must not grow with what waits."""

from __future__ import annotations

from contextlib import closing

from qframe.contracts.step import Push, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from tests.support.postgres_server import PostgresServer

WAITING = 100_000
_COPIES = (
    "INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due) "
    "SELECT queue, payload, 0, available_at, created_at, due + number / 10 "
    "FROM (SELECT * FROM jobs LIMIT 1) AS one, generate_series(1, %s) AS number"
)
_READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'jobs'"


def test_a_claim_reads_no_more_rows_than_it_takes(postgres_running: PostgresServer) -> None:
    settings = DatabaseSettings(url=postgres_running.database())
    with closing(DatabaseBackend("here", settings)) as backend:
        backend.migrate()
        backend.apply(Step(None, Push("q", b"{}")))
        with backend.database.session() as session:
            session.cursor.execute(_COPIES, (WAITING,))
            session.cursor.execute("ANALYZE jobs")
        before = _rows_read(backend)
        for _ in range(10):  # prepared after some
            jobs, _ = backend.reserve(["q"], 100)
            assert len(jobs) == 100
        # Found, found again to be changed, and looked for among those whose lease ran out.
        assert _rows_read(backend) - before < 10 * 100 * 20


def _rows_read(backend: DatabaseBackend) -> int:
    with backend.database.session() as session:
        session.cursor.execute("SELECT pg_stat_force_next_flush()")
        session.cursor.execute(_READ)
        return int(session.cursor.fetchone()[0])
