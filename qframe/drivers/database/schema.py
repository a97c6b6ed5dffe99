"""The tables: Laravel's columns, and nullable ones of our own; facts and latches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
    make_url,
    text,
)
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.types import TypeEngine

from qframe.config import DatabaseSettings

_ID = BigInteger().with_variant(Integer(), "sqlite")

NEVER = 2**62
"""`due` of a buried message at least."""
LATEST = 2**31 - 1
"""The latest `available_at` that fits Laravel's column everywhere."""
_MYSQL = {"mysql", "mariadb"}
_PARTIAL = {"sqlite", "postgresql"}
"""The backends that index a part of a table."""
_BY_CODE_POINT = {"postgresql": "C", "mysql": "utf8mb4_bin", "mariadb": "utf8mb4_bin"}
"""Collations in which no two keys are equal, and keys sort as in memory."""


class Schema:
    """The tables of one connection. Times of our own columns are microseconds.

    - `due`: when a waiting message may be taken, and its place among those that may. PHP does not
      write it: it is made of `available_at` when the row is first seen.
    - `lease`: the fence, new at each reservation. It stays when the lease has run out, so that the
      reservation can be settled until somebody else has the message.
    - `lease_end`, and `leased_at`, the `reserved_at` that was written with it: a row whose
      `reserved_at` differs has been reserved by PHP since. `reserved_at` is written so that
      Laravel's own rule (`reserved_at + retry_after`) ends the lease no earlier.
    - `started`: 1 once the reservation was started.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self._backend = make_url(settings.url).get_backend_name()
        self.metadata = MetaData(info={"backend": self._backend})
        self._long = _long(self._backend)
        self._key = String(255, collation=_BY_CODE_POINT.get(self._backend))
        self.jobs = self._jobs(settings.table)
        self.failed = self._failed(settings.failed_table)
        self.facts = self._facts(settings.fact_table)
        self.latches = self._latches(settings.latch_table)
        self.arrived = self._arrived(settings.latch_member_table)

    def _jobs(self, name: str) -> Table:
        table = Table(
            name,
            self.metadata,
            Column("id", _ID, primary_key=True, autoincrement=True),
            Column("queue", String(255), nullable=False),
            Column("payload", self._long, nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("reserved_at", Integer),
            Column("available_at", Integer, nullable=False),
            Column("created_at", Integer, nullable=False),
            Column("due", BigInteger),
            Column("lease", String(32)),
            Column("lease_end", BigInteger),
            Column("leased_at", Integer),
            Column("started", Integer),
            Column("notes", self._long),
            # As Laravel's: the id names a message, so it is never used again.
            sqlite_autoincrement=True,
        )
        self._index("due", table, table.c.reserved_at.is_(None), "due", "id")
        self._index("leases", table, table.c.reserved_at.is_not(None), "reserved_at")
        return table

    def _index(self, name: str, table: Table, where: ColumnElement[bool], *columns: str) -> None:
        """Index rows by queue and columns: those of a kind alone, where the backend can."""
        # Naming a backend here loads its dialect, so only the one in use is named.
        kind: Any = {f"{self._backend}_where": where} if self._backend in _PARTIAL else {}
        by = [table.c[column] for column in ("queue", *columns)]
        Index(f"{table.name}_{name}", *by, **kind)

    def _failed(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("id", _ID, primary_key=True, autoincrement=True),
            Column("uuid", String(255), nullable=False, unique=True),
            Column("connection", Text, nullable=False),
            Column("queue", Text, nullable=False),
            Column("payload", self._long, nullable=False),
            Column("exception", self._long, nullable=False),
            self._failed_at(),
            Column("attempts", Integer),
            Column("history", self._long),
            Column("name", self._long),
        )

    def _failed_at(self) -> Column[Any]:
        """Give Laravel's column, with the fraction of the second where it has to be asked for."""
        if self._backend not in _MYSQL:
            now: Any = func.current_timestamp()
            return Column("failed_at", DateTime, nullable=False, server_default=now)
        from sqlalchemy.dialects.mysql import DATETIME  # noqa: PLC0415 (of one backend)

        now = text("CURRENT_TIMESTAMP(6)")
        return Column("failed_at", DATETIME(fsp=6), nullable=False, server_default=now)

    def _facts(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("key", self._key, primary_key=True),
            Column("value", self._long, nullable=False),
            Column("rank", BigInteger),
            # Without an index, in which each write would move a row: `Facts` sweeps.
            Column("expires_at", BigInteger),
            **self._by_key_alone(),
        )

    def _latches(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("key", self._key, primary_key=True),
            Column("size", BigInteger, nullable=False),
            Column("done", BigInteger, nullable=False),
            Column("failed", BigInteger, nullable=False),
            Column("closed", Integer, nullable=False),
            Column("first_failed", BigInteger),
            Column("failed_at", BigInteger),
            Column("completed_at", BigInteger),
            Column("then_queue", String(255), nullable=False),
            Column("then_raw", self._long, nullable=False),
            Column("then_delay", Double, nullable=False),
            Column("then_priority", BigInteger),
            Column("every", BigInteger, nullable=False),
            Column("ttl", Double, nullable=False),
            Column("expires_at", BigInteger, nullable=False),
        )

    def _arrived(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("latch", self._key, primary_key=True),
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            Column("failed", Integer, nullable=False),
            Column("label", self._long, nullable=False),
            **self._by_key_alone(),
        )

    def _by_key_alone(self) -> dict[str, Any]:
        """Leave out SQLite's own row number: one tree less to write."""
        return {"sqlite_with_rowid": False} if self._backend == "sqlite" else {}

    def changes(self, connection: Connection) -> list[str]:
        """Give the statements that create what is missing.

        A table that Laravel made gets our columns.
        """
        found = inspect(connection)
        dialect = connection.dialect
        changes: list[ExecutableDDLElement] = []
        columns: list[str] = []
        for table in self.metadata.sorted_tables:
            if not found.has_table(table.name):
                changes += [CreateTable(table), *map(CreateIndex, table.indexes)]
                continue
            present = {column["name"] for column in found.get_columns(table.name)}
            columns += [
                f"ALTER TABLE {table.name} ADD COLUMN "
                f"{CreateColumn(column).compile(dialect=dialect)}"
                for column in table.columns
                if column.name not in present
            ]
            if table.indexes:
                indexes = {index["name"] for index in found.get_indexes(table.name)}
                changes += [CreateIndex(i) for i in table.indexes if i.name not in indexes]
        return columns + [str(change.compile(dialect=dialect)) for change in changes]


def _long(backend: str) -> TypeEngine[str]:
    """Give the type of a text of any length."""
    if backend in _MYSQL:
        from sqlalchemy.dialects.mysql import LONGTEXT  # noqa: PLC0415 (of one backend)

        return LONGTEXT()
    return Text()
