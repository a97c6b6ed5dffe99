"""The database part of `qframe check`: version, and settings that could lose or delay jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from qframe.contracts.backend import Health
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.engine import shown
from qframe.drivers.database.settings import DatabaseSettings
from qframe.payload.text import one_line

_LONG = 300
"""Seconds after which an open transaction is reported."""
_DEAD = 50_000
"""Dead rows from which a table is reported, if it has more dead rows than live ones."""
_UNPURGED = 1_000_000
"""Undo records of MariaDB from which they are reported."""
_PACKET = 4 * 1024 * 1024
_FULL = 0.9
"""The used share of a server's connections from which it is reported."""
_LOCAL = {None, "", "localhost", "127.0.0.1", "::1"}


def health(database: Database, session: Session, settings: DatabaseSettings) -> Health:
    """Return the kind and version of the database, and its unsafe settings."""
    ask = _Asker(database, session)
    name = shown(database.url)
    if database.is_sqlite:
        version = database.engine.dialect.loaded_dbapi.sqlite_version
        return Health(f"SQLite {version}, {name}", tuple(_about_sqlite(database, settings)))
    if database.is_postgresql:
        version = ask.one("SELECT split_part(current_setting('server_version'), ' ', 1)")
        found = [*_about_postgresql(ask, settings), *_about_tables(ask)]
        title = "PostgreSQL"
    else:
        version = ask.one("SELECT SUBSTRING_INDEX(VERSION(), '-', 1)")
        found = _about_mariadb(ask)
        title = "MariaDB"
    if not database.url.password and database.url.host not in _LOCAL:
        found.append(f"{name} is used without a password")
    return Health(f"{title} {version}, {name}", tuple(found))


class _Asker:
    """Queries a database; missing permissions or tables count as no answer."""

    def __init__(self, database: Database, session: Session) -> None:
        self.session = session
        self.schema = database.schema
        self._errors = database.errors

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        with suppress(*self._errors):
            self.session.cursor.execute(sql, values)
            return [tuple(row) for row in self.session.cursor.fetchall()]
        return []

    def one(self, sql: str) -> Any:  # noqa: ANN401 (whatever is in the column)
        """Return the first column of the first row."""
        found = self.rows(sql)
        return found[0][0] if found else None

    def settings(self, *names: str) -> dict[str, str]:
        asked = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%(names)s)"
        return {name: str(value) for name, value in self.rows(asked, names=list(names))}

    def variables(self, *names: str) -> dict[str, str]:
        found = self.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {names!r}")
        return {name: str(value) for name, value in found}


def _about_sqlite(database: Database, settings: DatabaseSettings) -> Iterator[str]:
    path = Path(str(database.url.database))
    if path.exists() and path.stat().st_mode & 0o002:
        yield f"{path.name} can be written by every user: chmod o-w it"
    if settings.synchronous == "normal":
        yield (
            'synchronous = "normal" survives the death of any process, but the last '
            'jobs before a power loss can be gone; "full" keeps them, slower'
        )


# -- PostgreSQL ---------------------------------------------------------------------------------

_SETTINGS = {
    "transaction_read_only": ("off", "a standby, or read only: pushes are refused"),
    "fsync": ("on", "a power loss can damage the whole database, set it on"),
    "full_page_writes": ("on", "a power loss can damage the whole database, set it on"),
    "synchronous_commit": (
        "on local remote_write remote_apply",
        "a crash of the server loses the last jobs pushed, set it on for this role",
    ),
    "autovacuum": ("on", "every job done leaves a dead row that claims read past, set it on"),
    "track_counts": ("on", "autovacuum does nothing without it, set it on"),
    "default_transaction_isolation": (
        "read committed",
        "claims of several workers conflict and are tried again, set it to read committed",
    ),
    "server_encoding": (
        "UTF8",
        "texts beyond ASCII are kept in base64, and names it lacks are refused, use one in UTF8",
    ),
}
"""Settings of PostgreSQL: the safe value, and the effect of any other."""
_FORGOTTEN = "idle_in_transaction_session_timeout"
_OLDEST = """
SELECT pid, coalesce(state, ''), usename, extract(epoch FROM now() - xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start < now() - make_interval(secs => %(long)s)
ORDER BY xact_start LIMIT 1
"""
_PREPARED = """
SELECT gid FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < now() - make_interval(secs => %(long)s)
ORDER BY prepared LIMIT 1
"""
_SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE NOT active ORDER BY slot_name"
_CONNECTIONS = """
SELECT count(*), current_setting('max_connections')::int
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""


def _about_postgresql(ask: _Asker, settings: DatabaseSettings) -> list[str]:
    found = _unsafe(ask.settings(*_SETTINGS), _SETTINGS)
    if ask.settings(_FORGOTTEN).get(_FORGOTTEN) == "0":
        found.append(
            f"{_FORGOTTEN} is 0: a program that leaves a transaction open keeps the dead rows of "
            "all jobs done since, set it to some minutes"
        )
    if settings.listen is not False and not ask.session.is_whole:
        found.append(
            "a pooler in transaction mode is between: workers look for jobs instead of being told, "
            "and wait for each answer; connect them directly, or set listen = true where the "
            "pooler keeps sessions, listen = false where this is meant"
        )
    for pid, state, user, seconds in ask.rows(_OLDEST, long=_LONG):
        found.append(
            f"a transaction has been open for {_minutes(seconds)} (process {pid} of {user}, "
            f"{state}): the rows of all jobs done since stay, pg_terminate_backend({pid}) ends it"
        )
    for (gid,) in ask.rows(_PREPARED, long=_LONG):
        found.append(
            f"the transaction {one_line(gid, 80)} was prepared and never ended: the rows of all "
            "jobs done since stay, COMMIT or ROLLBACK PREPARED it"
        )
    for (slot,) in ask.rows(_SLOTS):
        found.append(
            f"nobody reads the replication slot {slot}: it keeps the log until the disk is full, "
            "pg_drop_replication_slot() removes it"
        )
    return found + _about_connections(*ask.rows(_CONNECTIONS))


_TABLES = """
SELECT c.oid::regclass::text, c.relpersistence, c.reloptions::text, s.n_live_tup, s.n_dead_tup
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.oid = ANY(ARRAY(SELECT to_regclass(name) FROM unnest(%(names)s::text[]) AS name))
ORDER BY 1
"""


def _about_tables(ask: _Asker) -> list[str]:
    found = []
    names = [f'"{t.schema}"."{t.name}"' if t.schema else f'"{t.name}"' for t in ask.schema.tables]
    for table, kept, options, live, dead in ask.rows(_TABLES, names=names):
        if kept == "u":
            found.append(
                f"{table} is unlogged: a crash of the server empties it, "
                f"ALTER TABLE {table} SET LOGGED"
            )
        if re.search(r"autovacuum_enabled=(false|off|0|no)", options or ""):
            found.append(f"autovacuum is off for {table}: ALTER TABLE {table} RESET it")
        if dead is not None and dead > max(_DEAD, live):
            found.append(
                f"{table} has {dead:,} dead rows beside {live:,}: VACUUM it; where they stay, "
                "an open transaction keeps them"
            )
    return found


# -- MariaDB ------------------------------------------------------------------------------------

_VARIABLES = {
    "read_only": ("OFF 0", "a replica, or read only: pushes are refused"),
    "innodb_flush_log_at_trx_commit": (
        "1 3",
        "a power loss loses the last second of jobs pushed, set it to 1",
    ),
    "innodb_doublewrite": ("ON 1", "a power loss can damage the whole database, set it on"),
}
"""Variables of MariaDB: the safe values, and the effect of any other."""
_BINARY_LOG = {
    "sync_binlog": ("1", "after a power loss replicas may have jobs that the server lacks"),
    "binlog_format": (
        "MIXED ROW",
        "the server refuses what is written at READ COMMITTED, as all jobs are, set it to MIXED",
    ),
}
"""Variables that matter if `log_bin` is on."""
_OLDEST_TRX = """
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW())
FROM information_schema.innodb_trx
WHERE trx_started < NOW() - INTERVAL %(long)s SECOND ORDER BY trx_started LIMIT 1
"""
_UNDO = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
_ENGINES = """
SELECT table_name, engine, table_collation FROM information_schema.tables
WHERE table_schema = COALESCE(%(schema)s, DATABASE()) AND table_name IN %(names)s
ORDER BY table_name
"""


def _about_mariadb(ask: _Asker) -> list[str]:
    has = ask.variables(*_VARIABLES, *_BINARY_LOG, "log_bin", "max_allowed_packet")
    found = _unsafe(has, _VARIABLES)
    if has.get("log_bin") == "ON":
        found += _unsafe(has, _BINARY_LOG)
    packet = int(has.get("max_allowed_packet", _PACKET))
    if packet < _PACKET:
        found.append(f"max_allowed_packet is {packet:,} bytes: larger jobs are refused")
    for thread, seconds in ask.rows(_OLDEST_TRX, long=_LONG):
        found.append(
            f"a transaction has been open for {_minutes(seconds)} (thread {thread}): the rows of "
            f"all jobs done since stay, KILL {thread} ends it"
        )
    undo = ask.one(_UNDO)
    if undo is not None and undo > _UNPURGED:
        found.append(f"{undo:,} changes are not purged yet: claims read past the rows of done jobs")
    names = [table.name for table in ask.schema.tables]
    schema = ask.schema.tables[0].schema
    for table, engine, collation in ask.rows(_ENGINES, schema=schema, names=names):
        if engine != "InnoDB":
            found.append(f"{table} is {engine}, which has no transactions: use InnoDB")
        if not str(collation).startswith("utf8mb4"):
            found.append(f"{table} is {collation}: texts it lacks are refused, use utf8mb4")
    connected = ask.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    most = ask.one("SELECT @@max_connections")
    return found + _about_connections(*((int(used), int(most)) for _, used in connected))


# -- both ---------------------------------------------------------------------------------------


def _unsafe(has: dict[str, str], known: dict[str, tuple[str, str]]) -> list[str]:
    """Describe settings with an unsafe value; ignores unknown settings."""
    return [
        f"{name} is {has[name]}: {what}"
        for name, (safe, what) in known.items()
        if name in has and has[name] != safe and has[name] not in safe.split()
    ]


def _about_connections(*rows: tuple[int, ...]) -> list[str]:
    return [
        f"{used} of the server's {most} connections are in use: what finds none waits"
        for used, most in rows
        if used >= most * _FULL
    ]


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} minutes"
