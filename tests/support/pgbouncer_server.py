"""A private PgBouncer on loopback, in front of a private PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.support.postgres_server import ADMINISTRATOR, PostgresServer
from tests.support.server_process import binary
from tests.support.sql_server import USER, SqlServer, folder_of, is_root


class PgbouncerServer(SqlServer):
    """A pooler; `mode` is "session" or "transaction", `config` are lines of pgbouncer.ini."""

    name = "PgBouncer"

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        *,
        mode: str = "transaction",
        config: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, config=config)
        self.server = server
        self.mode = mode
        self.user = ADMINISTRATOR if is_root() else None
        self._program = binary("pgbouncer", Path("/usr/sbin"))
        self._home = folder_of(self.user, "pgbouncer")

    def url_at(self, port: int = 0, database: str = USER) -> str:
        return self.server.url_at(port or self.port, database)

    def create(self, database: str) -> None:
        self.server.create(database)

    def command(self) -> list[str]:
        users = self._home / "users.txt"
        users.write_text(f'"{USER}" ""\n"{ADMINISTRATOR}" ""\n')
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self.server.port}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {users}",
            f"admin_users = {ADMINISTRATOR}",
            f"pool_mode = {self.mode}",
            *self.config,
        ]
        ini = self._home / "pgbouncer.ini"
        ini.write_text("".join(f"{line}\n" for line in lines))
        return [self._program, "-q", str(ini)]

    def stop(self) -> None:
        """End it at once: asked by TERM it would, too, asked by INT it waits for its clients."""
        self.resume()
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
            self._ended()

    def answers(self) -> bool:
        with suppress(psycopg.Error):
            return bool(self.sql("show version", database="pgbouncer"))
        return False

    def sql(self, statement: str, *values: Any, database: str = USER) -> list[tuple[Any, ...]]:
        """Run a statement through it; `database="pgbouncer"` is its own console."""
        where = f"host=127.0.0.1 port={self.port} user={ADMINISTRATOR} dbname={database}"
        with (
            psycopg.connect(where, connect_timeout=5, autocommit=True) as connection,
            psycopg.ClientCursor(connection) as cursor,  # its console knows no prepared statements
        ):
            cursor.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def empty(self, database: str = USER) -> None:
        self.server.empty(database)
