"""A private PostgreSQL: durable as it comes, with memory and log enough for what is measured."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.places import BenchmarkError, NotHereError
from benchmarks.sql.server import SqlServer, Work

_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "on",
}
_USER = "bench"
_COPY = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    SELECT queue, replace(payload, payload::json->>'uuid', gen_random_uuid()::text), 0,
        available_at, created_at, due + number
    FROM (SELECT * FROM jobs WHERE reserved_at IS NULL ORDER BY id LIMIT 1) AS one,
        generate_series(1, {count}) AS number"""
_DEAD = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    SELECT queue, payload, 0, available_at, created_at, due - number
    FROM (SELECT * FROM jobs WHERE reserved_at IS NULL ORDER BY id LIMIT 1) AS one,
        generate_series(1, {count}) AS number"""


_INSERT = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    VALUES ('default', '{payload}', 0, {available_at}, {available_at}, {due})"""
_CLAIM = r"""
    UPDATE jobs SET reserved_at = 1 WHERE id = (
        SELECT id FROM jobs WHERE queue = 'default' AND reserved_at IS NULL
        ORDER BY due, id LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING id \gset
    DELETE FROM jobs WHERE id = :id;"""


class PostgresServer(SqlServer):
    """A PostgreSQL with the databases of the benchmark."""

    name = "PostgreSQL"
    bare = "pgbench"
    prompt = 0.003
    user = "postgres"
    _end = signal.SIGINT

    def _command(self) -> Sequence[str]:
        options = {**_OPTIONS, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [str(programs() / "postgres"), "-D", str(self.folder / "data"), *words]

    def _make(self) -> None:
        self._run(
            *(str(programs() / "initdb"), "-D", str(self.folder / "data"), "-U", _USER),
            *("--auth=trust", "--encoding=UTF8", "--locale=C"),
        )

    def connect(self, database: str = "bench") -> Any:  # noqa: ANN401 (a DBAPI connection)
        """Connect, each statement its own transaction."""
        import psycopg  # noqa: PLC0415 (of an extra)

        return psycopg.connect(self.url(database), autocommit=True)

    def url(self, database: str = "bench") -> str:
        """Give the address of a database."""
        return f"postgresql://{_USER}:{_USER}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Make an empty database, in place of what has that name."""
        self._copy("template1", database)

    def drop(self, database: str) -> None:
        """Remove a database, where it is there."""
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)', database="postgres")

    def keep(self, name: str) -> None:
        """Keep the database as it is now, under a name."""
        self._copy("bench", f"kept {name}")

    def restore(self, name: str) -> bool:
        """Make the database what was kept under a name; False where nothing was."""
        kept = f"kept {name}"
        names = self.ask("SELECT datname FROM pg_database", database="postgres")
        if (kept,) in names:
            self._copy(kept, "bench")
            return True
        return False

    def _copy(self, source: str, database: str) -> None:
        self.drop(database)
        self.execute(
            "CREATE EXTENSION IF NOT EXISTS pg_stat_statements",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "  # noqa: S608
            f"WHERE datname = '{source}' AND datname <> 'postgres'",
            f'CREATE DATABASE "{database}" TEMPLATE "{source}"',
            "CHECKPOINT",
            database="postgres",
        )

    def work(self) -> Work:
        """Give what it has done so far in the database that is measured."""
        own = "(SELECT oid FROM pg_database WHERE datname = 'bench')"
        (row,) = self.ask(
            f"SELECT (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid = {own}),"  # noqa: S608
            " (SELECT xact_commit FROM pg_stat_database WHERE datname = 'bench'),"
            " (SELECT wal_sync FROM pg_stat_wal)",
            database="postgres",
        )
        return Work(*map(float, row))

    def version(self) -> str:
        """Give its version."""
        ((version,),) = self.ask("SHOW server_version", database="postgres")
        return str(version).split()[0]

    def fill(self, count: int, database: str = "bench") -> None:
        """Copy the job that waits in our table so many times."""
        self.execute(_COPY.format(count=count), "ANALYZE jobs", "CHECKPOINT", database=database)

    def leave_dead(self, count: int) -> None:
        """Add so many rows to our table that are due first, and delete them."""
        ((most,),) = self.ask("SELECT max(id) FROM jobs")
        self.execute(_DEAD.format(count=count), f"DELETE FROM jobs WHERE id > {most}")  # noqa: S608

    def _look(self, connection: Any) -> None:  # noqa: ANN401
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")

    # -- pgbench ----------------------------------------------------------------------------------

    def bare_inserts(self, clients: int, count: int) -> float:
        """Insert so many rows like the one that waits in our table, one by one; give the rate."""
        ((payload, available_at, due),) = self.ask(
            "SELECT payload, available_at, due FROM jobs ORDER BY id LIMIT 1"
        )
        payload = payload.replace(":", ": ")  # ":null" would be a variable
        script = _INSERT.format(payload=payload, available_at=available_at, due=due)
        return self._pgbench(script.replace("\n", " ") + ";", clients, count)

    def bare_claims(self, clients: int, count: int) -> float:
        """Claim so many rows one by one, and delete each; give the rate."""
        return self._pgbench(_CLAIM, clients, count)

    def _pgbench(self, script: str, clients: int, times: int) -> float:
        """Run a script so many times in all with pgbench, statements prepared; give the rate."""
        program = programs() / "pgbench"
        if not program.exists():
            raise NotHereError("there is no pgbench here")
        path = self.folder / "script.sql"
        path.write_text(script)
        path.chmod(0o644)
        done = subprocess.run(
            [
                *(str(program), "-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, "-n"),
                *("-M", "prepared", "-c", str(clients), "-j", str(min(2, clients))),
                *("-t", str(max(1, times // clients)), "-f", str(path), "bench"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or "tps = " not in done.stdout:
            raise BenchmarkError(f"pgbench: {done.stdout}{done.stderr}")
        return float(done.stdout.partition("tps = ")[2].split()[0])


def programs() -> Path:
    """Give the folder of PostgreSQL's programs, Debian's newest."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not versions:
        raise NotHereError("there is no PostgreSQL here (make services installs it)")
    return max(versions, key=lambda path: int(path.parts[-3])).parent
