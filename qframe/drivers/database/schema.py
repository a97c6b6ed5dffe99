"""The tables: Laravel's columns, and nullable ones of our own."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement

from qframe.config import DatabaseSettings

_ID = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
_LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

NEVER = 2**53
"""`due_at` of a buried job."""
LATEST = 2**31 - 1
"""The latest `available_at` that fits Laravel's column everywhere."""


class Schema:
    """The tables of one connection.

    `due_at`, milliseconds, is when a ready or delayed row may be taken, exactly; rows written by
    PHP lack it and get it from `available_at` when they are first seen. `lease` is the fence: a
    value new at each reservation. `lease_until`, milliseconds, is when it runs out, and
    `leased_at` the `reserved_at` that was written with it: a row whose `reserved_at` differs has
    been reserved by PHP since. `reserved_at` is written so that Laravel's own rule
    (`reserved_at + retry_after`) lets the lease run out no earlier.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self.metadata = MetaData()
        self.jobs = self._jobs(settings.table)
        self.failed = self._failed(settings.failed_table)
        self.store = self._store(settings.store_table)

    def _jobs(self, name: str) -> Table:
        table = Table(
            name,
            self.metadata,
            Column("id", _ID, primary_key=True, autoincrement=True),
            Column("queue", String(255), nullable=False),
            Column("payload", _LONG, nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("reserved_at", Integer),
            Column("available_at", Integer, nullable=False),
            Column("created_at", Integer, nullable=False),
            Column("due_at", BigInteger),
            Column("lease", String(32)),
            Column("lease_until", BigInteger),
            Column("leased_at", Integer),
            Column("history", _LONG),
            # As Laravel's: the id names a job whose payload has no uuid, so it is never reused.
            sqlite_autoincrement=True,
        )
        waiting = table.c.reserved_at.is_(None)
        reserved = table.c.reserved_at.is_not(None)
        Index(
            f"{name}_waiting",
            table.c.queue,
            table.c.due_at,
            table.c.id,
            sqlite_where=waiting,
            postgresql_where=waiting,
        )
        Index(
            f"{name}_reserved",
            table.c.queue,
            table.c.reserved_at,
            sqlite_where=reserved,
            postgresql_where=reserved,
        )
        return table

    def _failed(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("id", _ID, primary_key=True, autoincrement=True),
            Column("uuid", String(255), nullable=False, unique=True),
            Column("connection", Text, nullable=False),
            Column("queue", Text, nullable=False),
            Column("payload", _LONG, nullable=False),
            Column("exception", _LONG, nullable=False),
            Column("failed_at", DateTime, nullable=False, server_default=func.current_timestamp()),
            Column("attempts", Integer),
            Column("history", _LONG),
        )

    def _store(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("key", String(255), primary_key=True),
            Column("value", _LONG, nullable=False),
            Column("expires_at", BigInteger),
        )

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
            indexes = {index["name"] for index in found.get_indexes(table.name)}
            changes += [CreateIndex(i) for i in table.indexes if i.name not in indexes]
        return columns + [str(change.compile(dialect=dialect)) for change in changes]
