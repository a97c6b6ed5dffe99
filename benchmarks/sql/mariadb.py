"""A private MariaDB: durable as it comes, with memory and log enough for what is measured."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.places import REPOSITORY, BenchmarkError, NotHereError
from benchmarks.sql.server import SqlServer, Work

_OPTIONS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "1",
    "skip-log-bin": "1",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "1G",
    "innodb-log-file-size": "1G",
    "innodb-monitor-enable": "trx_rw_commits",
    "max-connections": "200",
}
_USER = "bench"
_START = f"""CREATE USER IF NOT EXISTS {_USER}@127.0.0.1 IDENTIFIED BY '{_USER}';
GRANT ALL ON *.* TO {_USER}@127.0.0.1;
"""
_LIKE = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    SELECT queue, {payload}, 0, available_at, created_at, due {sign} seq
    FROM (SELECT * FROM jobs WHERE reserved_at IS NULL ORDER BY id LIMIT 1) AS one, seq_1_to_{count}
"""
_NAMED = "replace(payload, json_value(payload, '$.uuid'), uuid())"
_DONE = """
    SELECT (SELECT variable_value FROM information_schema.global_status
            WHERE variable_name = 'QUESTIONS'),
        (SELECT sum(count) FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'),
        (SELECT variable_value FROM information_schema.global_status
            WHERE variable_name = 'INNODB_DATA_FSYNCS')"""


class MariadbServer(SqlServer):
    """A MariaDB with the databases of the benchmark."""

    name = "MariaDB"
    bare = "a bare loop of PyMySQL"
    prompt = 0.010
    user = "mysql"
    _end = signal.SIGTERM

    def _command(self) -> Sequence[str]:
        options = {
            **_OPTIONS,
            "datadir": str(self.folder / "data"),
            "port": str(self.port),
            "socket": str(self.folder / "server.sock"),
            "init-file": str(self.folder / "start.sql"),
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [_program("mariadbd"), "--no-defaults", *words]

    def _make(self) -> None:
        (self.folder / "start.sql").write_text(_START)
        self._run(
            *(_program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        )

    def connect(self, database: str = "bench") -> Any:  # noqa: ANN401 (a DBAPI connection)
        """Connect, each statement its own transaction."""
        import pymysql  # noqa: PLC0415 (of an extra)

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=_USER, password=_USER, database=database,
            autocommit=True,
        )  # fmt: skip

    def url(self, database: str = "bench") -> str:
        """Give the address of a database."""
        return f"mysql://{_USER}:{_USER}@127.0.0.1:{self.port}/{database}"

    def our_url(self, database: str = "bench") -> str:
        """Give the address as our settings name it."""
        return self.url(database).replace("mysql://", "mariadb+pymysql://", 1)

    def create(self, database: str) -> None:
        """Make an empty database, in place of what has that name."""
        self.drop(database)
        self.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4", database="mysql")

    def drop(self, database: str) -> None:
        """Remove a database, where it is there."""
        self.execute(f"DROP DATABASE IF EXISTS {database}", database="mysql")

    def work(self) -> Work:
        """Give what it has done so far."""
        (row,) = self.ask(_DONE, database="mysql")
        return Work(*map(float, row))

    def version(self) -> str:
        """Give its version."""
        ((version,),) = self.ask("SELECT version()", database="mysql")
        return str(version).partition("-")[0]

    def fill(self, count: int, database: str = "bench") -> None:
        """Copy the job that waits in our table so many times."""
        like = _LIKE.format(payload=_NAMED, sign="+", count=count)
        self.execute(like, "ANALYZE TABLE jobs", database=database)

    def leave_dead(self, count: int) -> None:
        """Add so many rows to our table that are due first, and delete them."""
        ((most,),) = self.ask("SELECT max(id) FROM jobs")
        like = _LIKE.format(payload="payload", sign="-", count=count)
        self.execute(like, f"DELETE FROM jobs WHERE id > {most}")  # noqa: S608

    def _look(self, connection: Any) -> None:  # noqa: ANN401
        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def bare_inserts(self, clients: int, count: int) -> float:
        """Insert so many rows like the one that waits in our table, one by one; give the rate."""
        return self._bare("inserts", clients, count)

    def bare_claims(self, clients: int, count: int) -> float:
        """Claim so many rows one by one, and delete each; give the rate."""
        return self._bare("claims", clients, count)

    def _bare(self, what: str, clients: int, count: int) -> float:
        command = [sys.executable, "-m", "benchmarks.apps.bare_mariadb"]
        done = subprocess.run(
            [*command, what, str(self.port), str(clients), str(count)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"{self.bare}: {done.stderr}")
        return float(json.loads(done.stdout))


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise NotHereError("there is no MariaDB here (make services installs it)")
    return str(Path(found))
