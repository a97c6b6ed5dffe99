"""Private MariaDB servers on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pymysql

from tests.support.server_process import binary, socket_path
from tests.support.sql_server import USER, SqlServer, folder_of, is_root, run

_ADMINISTRATOR = "administrator"
_FAST = (
    "innodb_flush_log_at_trx_commit=2",
    "innodb_flush_method=nosync",
    "innodb_doublewrite=0",
    "innodb_log_file_size=4M",
    "innodb_buffer_pool_size=32M",
    "aria_pagecache_buffer_size=1M",
    "key_buffer_size=1M",
    "performance_schema=OFF",
    "max_connections=60",
)
_START = f"""create user if not exists {USER}@127.0.0.1;
grant all on `{USER}%`.* to {USER}@127.0.0.1;
grant process, replication client on *.* to {USER}@127.0.0.1;
create user if not exists {_ADMINISTRATOR}@127.0.0.1;
grant all on *.* to {_ADMINISTRATOR}@127.0.0.1 with grant option;
create database if not exists {USER};
"""
_SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"


def _owner() -> list[str]:
    return ["--user=root"] if is_root() else []  # else it is whoever runs the tests


@cache
def _template() -> Path:
    """Make the data of an empty server once: installing takes seconds."""
    data = folder_of(None, "mariadb") / "data"
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    settings = [f"--{each}" for each in _FAST if each.startswith("innodb")]
    install = binary("mariadb-install-db")
    # A server that starts removes the temporary tables of others from a folder they share.
    folders = [f"--datadir={data}", f"--tmpdir={data.parent}"]
    run([install, "--no-defaults", *folders, *_owner(), *options, *settings])
    return data


class MariadbServer(SqlServer):
    """A MariaDB of its own."""

    name = "MariaDB"

    def __init__(self, folder: Path, *, config: Sequence[str] = (), disk: bool = False) -> None:
        super().__init__(folder, config=config, disk=disk)
        self._program = binary("mariadbd", Path("/usr/sbin"))
        self._socket = socket_path(folder, "mariadb.sock")
        self.data = folder_of(None, "mariadb", disk=disk) / "data"
        run([binary("cp"), "-a", _template(), self.data])
        (folder / "start.sql").write_text(_START)

    def url_at(self, port: int = 0, database: str = USER) -> str:
        return f"mariadb+pymysql://{USER}@127.0.0.1:{port or self.port}/{database}"

    def create(self, database: str) -> None:
        self.sql(f"create database {database}")

    # -- its life -------------------------------------------------------------------------------

    def command(self) -> list[str]:
        words = [self._program, "--no-defaults", f"--datadir={self.data}", *_owner()]
        words += [f"--tmpdir={self.data.parent}"]
        words += ["--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self._socket}"]
        words += ["--skip-name-resolve", "--skip-log-bin", f"--init-file={self.folder}/start.sql"]
        return [*words, *(f"--{each}" for each in (*_FAST, *self.config))]

    def close(self) -> None:
        """End it for good, and what it has written with it."""
        super().close()
        shutil.rmtree(self.data.parent, ignore_errors=True)
        if self._socket.parent != self.folder:
            shutil.rmtree(self._socket.parent, ignore_errors=True)

    # -- talking to it --------------------------------------------------------------------------

    def answers(self) -> bool:
        with suppress(pymysql.Error, OSError):
            return self.sql("select 1", database="") == [(1,)]
        return False

    def sql(self, statement: str, *values: Any, database: str = USER) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=_ADMINISTRATOR,
            database=database or None,
            connect_timeout=5,
            autocommit=True,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def empty(self, database: str = USER) -> None:
        found = self.sql(
            "select concat('`', table_schema, '`.`', table_name, '`')"
            " from information_schema.tables"
            f" where table_type = 'BASE TABLE' and table_schema not in {_SYSTEM}"
            " and table_schema = %s",
            database,
            database="",
        )
        for (table,) in found:
            self.sql(f"delete from {table}")
