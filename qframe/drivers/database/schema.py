"""The tables: Laravel's columns, and nullable ones of our own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
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
    make_url,
)
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.types import TypeEngine

from qframe.config import DatabaseSettings

_ID = BigInteger().with_variant(Integer(), "sqlite")

NEVER = 2**53
"""`due_at` of a buried job."""
LATEST = 2**31 - 1
"""The latest `available_at` that fits Laravel's column everywhere."""
_PARTIAL = {"sqlite", "postgresql"}
"""The backends that index a part of a table."""


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
        self._backend = make_url(settings.url).get_backend_name()
        self._long = _long(self._backend)
        self.jobs = self._jobs(settings.table)
        self.failed = self._failed(settings.failed_table)
        self.store = self._store(settings.store_table)
        self.status = self._status(settings.status_table)
        self.batches = self._batches(settings.batch_table)
        self.members = self._members(settings.batch_member_table)

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
            Column("due_at", BigInteger),
            Column("lease", String(32)),
            Column("lease_until", BigInteger),
            Column("leased_at", Integer),
            Column("history", self._long),
            # As Laravel's: the id names a job whose payload has no uuid, so it is never reused.
            sqlite_autoincrement=True,
        )
        self._index("waiting", table, table.c.reserved_at.is_(None), "due_at", "id")
        self._index("reserved", table, table.c.reserved_at.is_not(None), "reserved_at")
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
            Column("failed_at", DateTime, nullable=False, server_default=func.current_timestamp()),
            Column("attempts", Integer),
            Column("history", self._long),
        )

    def _store(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("key", String(255), primary_key=True),
            Column("value", self._long, nullable=False),
            Column("expires_at", BigInteger),
        )

    def _status(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("id", _ID, primary_key=True, autoincrement=True),
            Column("uuid", String(255), nullable=False, unique=True),
            Column("queued", self._long, nullable=False),
            Column("started", self._long),
            Column("ended", self._long),
            Column("progress", self._long),
            # Behind the texts: they are set by what it was, and MySQL sets in this order.
            Column("life", Integer, nullable=False),
            Column("attempt", Integer, nullable=False),
            Column("state", String(16), nullable=False),
            Column("final", Integer, nullable=False),
            # Without an index, which each write would move a row in: `statuses` sweeps.
            Column("expires_at", BigInteger, nullable=False),
        )

    def _batches(self, name: str) -> Table:
        """Give Laravel's batches; in a row of its own our columns are null.

        `pending_jobs` counts, as there, whatever is not done; the uuids of `failed_job_ids` are in
        the table of members.
        """
        return Table(
            name,
            self.metadata,
            Column("id", String(255), primary_key=True),
            Column("name", String(255), nullable=False),
            Column("total_jobs", Integer, nullable=False),
            Column("pending_jobs", Integer, nullable=False),
            Column("failed_jobs", Integer, nullable=False),
            Column("failed_job_ids", self._long, nullable=False),
            Column("options", self._long),
            Column("cancelled_at", Integer),
            Column("created_at", Integer, nullable=False),
            Column("finished_at", Integer),
            Column("sealed", Integer),
            Column("allows_failures", Integer),
            Column("first_failed", Integer),
            Column("progress_step", Integer),
            Column("told", String(255)),
            Column("told_progress", Integer),
            Column("connection", String(255)),
            Column("teller", self._long),
            Column("teller_uuid", String(255)),
            Column("teller_queue", String(255)),
            Column("created_ms", BigInteger),
            Column("cancelled_ms", BigInteger),
            Column("finished_ms", BigInteger),
        )

    def _members(self, name: str) -> Table:
        # By its key alone: one tree less to write for each member.
        kind: Any = {"sqlite_with_rowid": False} if self._backend == "sqlite" else {}
        return Table(
            name,
            self.metadata,
            Column("batch_id", String(255), primary_key=True),
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("state", Integer, nullable=False),
            Column("uuid", String(255)),
            **kind,
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
            if table.indexes:
                indexes = {index["name"] for index in found.get_indexes(table.name)}
                changes += [CreateIndex(i) for i in table.indexes if i.name not in indexes]
        return columns + [str(change.compile(dialect=dialect)) for change in changes]


def _long(backend: str) -> TypeEngine[str]:
    """Give the type of a text of any length."""
    if backend in {"mysql", "mariadb"}:
        from sqlalchemy.dialects.mysql import LONGTEXT  # noqa: PLC0415 (of one backend)

        return LONGTEXT()
    return Text()
