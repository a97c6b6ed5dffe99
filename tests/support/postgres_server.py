"""Private PostgreSQL servers on loopback, and standbys that follow them.

PostgreSQL refuses to run as root: tests that do start it as `postgres`, in a folder of that user's.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support.server_process import PATIENCE, binary
from tests.support.sql_server import USER, SqlServer, folder_of, is_root, run, wait_until

ADMINISTRATOR = "postgres"
_FAST = (
    "fsync=off",
    "dynamic_shared_memory_type=mmap",  # what is left of a killed one goes with its folder
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=60",
    "log_min_messages=warning",
    "max_wal_size=256MB",
)
_EMPTY = """do $$ declare found regclass; filled boolean; begin
set local lock_timeout = '10s';
for found in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind = 'r' and n.nspname !~ '^(pg_|information_schema)'
loop
  execute format('select exists (select from %s)', found) into filled;
  if filled then execute format('truncate %s', found); end if;
end loop; end $$"""


def program(name: str) -> str:
    """Give the path of a program of the newest PostgreSQL that is installed."""
    installed = Path("/usr/lib/postgresql").glob("*/bin")  # where Debian has them
    folders = sorted(installed, key=lambda each: int(each.parent.name), reverse=True)
    return binary(name, *folders)


def _owner() -> str | None:
    return ADMINISTRATOR if is_root() else None


@cache
def _template() -> Path:
    """Make the data of an empty server once: `initdb` takes seconds, to copy it a tenth of one."""
    data = folder_of(_owner(), "postgres") / "data"
    options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"]
    run([program("initdb"), "-D", data, "-U", ADMINISTRATOR, *options], _owner())
    made = f"create role {USER} login;\ncreate database {USER} owner {USER};\n"
    run([program("postgres"), "--single", "-F", "-D", data, "postgres"], _owner(), made)
    return data


class PostgresServer(SqlServer):
    """A PostgreSQL of its own; `standby` gives one that follows it."""

    name = "PostgreSQL"

    def __init__(
        self,
        folder: Path,
        *,
        config: Sequence[str] = (),
        disk: bool = False,
        data: Path | None = None,
    ) -> None:
        super().__init__(folder, config=config, disk=disk)
        self.user = _owner()
        self._program = program("postgres")
        self.data = data or self._copied(_template())

    def _copied(self, template: Path) -> Path:
        data = folder_of(self.user, "postgres", disk=self.disk) / "data"
        run([binary("cp"), "-a", template, data], self.user)
        return data

    def url_at(self, port: int = 0, database: str = USER) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{port or self.port}/{database}"

    def create(self, database: str) -> None:
        self.sql(f"create database {database} owner {USER}")

    # -- its life -------------------------------------------------------------------------------

    def command(self) -> list[str]:
        lines = ["unix_socket_directories=''", *_FAST, *self.config]
        (self.data / "postgresql.conf").write_text("".join(f"{line}\n" for line in lines))
        return [self._program, "-D", str(self.data), "-h", "127.0.0.1", "-p", str(self.port)]

    def stop(self) -> None:
        """End it as `pg_ctl stop` does: its clients are cut off, nothing is lost."""
        self.resume()
        if self.alive():
            os.kill(self.pid, signal.SIGINT)
            self._ended()

    def kill(self) -> None:
        """Kill it and the processes of its connections: a new one waits for the last of them."""
        tree = self._tree()
        super().kill()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, PATIENCE)

    def pause(self) -> None:
        """Let it and its connections stand still."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        self._stopped = True

    def resume(self) -> None:
        if self._stopped:
            for process in self._tree():
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        self._stopped = False

    def close(self) -> None:
        """End it for good, and what it has written with it."""
        super().close()
        shutil.rmtree(self.data.parent, ignore_errors=True)

    # -- talking to it --------------------------------------------------------------------------

    def answers(self) -> bool:
        with suppress(psycopg.Error):
            return self.sql("select 1", database="postgres") == [(1,)]
        return False

    def sql(self, statement: str, *values: Any, database: str = USER) -> list[tuple[Any, ...]]:
        where = f"host=127.0.0.1 port={self.port} user={ADMINISTRATOR} dbname={database}"
        with psycopg.connect(where, connect_timeout=5, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def empty(self, database: str = USER) -> None:
        self.sql(_EMPTY, database=database)

    # -- its standbys ---------------------------------------------------------------------------

    def standby(self, folder: Path, *, synchronous: bool = False) -> PostgresServer:
        """Give a standby of it, following, that has all there is now.

        With `synchronous` a commit waits from now on until the standby has written it.
        """
        data = folder_of(self.user, "postgres", disk=self.disk) / "data"
        where = f"host=127.0.0.1 port={self.port} user={ADMINISTRATOR} application_name=standby"
        options = ["--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--wal-method=stream"]
        run([program("pg_basebackup"), "-d", where, "-D", data, *options], self.user)
        made = PostgresServer(folder, config=self.config, disk=self.disk, data=data).start()
        if synchronous:
            self.sql("alter system set synchronous_standby_names = 'standby'")
            self.sql("select pg_reload_conf()")
            wait_until(self._is_synchronous, "the standby to be synchronous")
        return made

    def _is_synchronous(self) -> bool:
        return self.sql("select sync_state from pg_stat_replication") == [("sync",)]

    def promote(self) -> None:
        """Make a standby the primary."""
        self.sql("select pg_promote()")
