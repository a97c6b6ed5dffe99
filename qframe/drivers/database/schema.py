"""The tables: Laravel's columns, and nullable ones of our own; facts and latches."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, SchemaItem

from qframe.config import DatabaseSettings

NEVER = 2**62
"""`due` of a buried message at least."""
LATEST = 2**31 - 1
"""The latest `available_at` that fits Laravel's column everywhere."""
_BY_CODE_POINT = {
    "postgresql": "C",
    "mysql": "utf8mb4_0900_bin",
    "mariadb": "utf8mb4_nopad_bin",
}
"""Collations in which no two keys are equal, and keys sort as in memory."""
_MYSQL = ("mysql", "mariadb")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG = sa.Text().with_variant(sa.Text(2**32 - 1), *_MYSQL)


class Schema:
    """The tables of one connection. Times in whole numbers of ours are microseconds.

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
        self._backend = sa.make_url(settings.url).get_backend_name()
        self._metadata = sa.MetaData(info={"backend": self._backend})
        key = sa.String(255, collation=_BY_CODE_POINT.get(self._backend))
        # SQLite's own row number would be one tree more to write.
        by_key: Any = {"sqlite_with_rowid": False} if self._backend == "sqlite" else {}
        moment, now = sa.DateTime(), sa.text("CURRENT_TIMESTAMP")
        if self._backend in _MYSQL:  # where the fraction of the second has to be asked for
            from sqlalchemy.dialects.mysql import DATETIME  # noqa: PLC0415 (of one backend)

            moment, now = DATETIME(fsp=6), sa.text("CURRENT_TIMESTAMP(6)")
        self.jobs = self._table(
            settings.table,
            sa.Column("id", _ID, primary_key=True, autoincrement=True),
            _given("queue", sa.String(255)),
            _given("payload", _LONG),
            _given("attempts", sa.Integer),
            sa.Column("reserved_at", sa.Integer),
            _given("available_at", sa.Integer),
            _given("created_at", sa.Integer),
            sa.Column("due", sa.BigInteger),
            sa.Column("lease", sa.String(32)),
            sa.Column("lease_end", sa.BigInteger),
            sa.Column("leased_at", sa.Integer),
            sa.Column("started", sa.Integer),
            sa.Column("notes", _LONG),
            # As Laravel's: the id names a message, so it is never used again.
            sqlite_autoincrement=True,
        )
        reserved_at = self.jobs.c.reserved_at
        self._index("due", reserved_at.is_(None), "queue", "due", "id")
        self._index("leases", reserved_at.is_not(None), "queue", "reserved_at")
        self.failed = self._table(
            settings.failed_table,
            sa.Column("id", _ID, primary_key=True, autoincrement=True),
            _given("uuid", sa.String(255), unique=True),
            _given("connection", sa.Text),
            _given("queue", sa.Text),
            _given("payload", _LONG),
            _given("exception", _LONG),
            _given("failed_at", moment, server_default=now),
            sa.Column("attempts", sa.Integer),
            sa.Column("history", _LONG),
            sa.Column("name", _LONG),
        )
        self.facts = self._table(
            settings.fact_table,
            sa.Column("key", key, primary_key=True),
            _given("value", _LONG),
            sa.Column("rank", sa.BigInteger),
            sa.Column("expires_at", sa.BigInteger),
            **by_key,
        )
        self.latches = self._table(
            settings.latch_table,
            sa.Column("key", key, primary_key=True),
            *(_given(name, sa.BigInteger) for name in ("size", "done", "failed", "closed")),
            sa.Column("first_failed", sa.BigInteger),
            sa.Column("failed_at", sa.Double),
            sa.Column("completed_at", sa.Double),
            _given("then_queue", sa.String(255)),
            _given("then_raw", _LONG),
            _given("then_delay", sa.Double),
            sa.Column("then_priority", sa.BigInteger),
            _given("every", sa.BigInteger),
            _given("ttl", sa.Double),
            _given("expires_at", sa.BigInteger),
        )
        self.arrived = self._table(
            settings.latch_member_table,
            sa.Column("latch", key, primary_key=True),
            sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
            _given("failed", sa.Integer),
            _given("label", _LONG),
            **by_key,
        )

    def _table(self, name: str, *items: SchemaItem, **options: Any) -> sa.Table:  # noqa: ANN401 (a dialect's)
        return sa.Table(name, self._metadata, *items, **options)

    def _index(self, name: str, where: sa.ColumnElement[bool], *columns: str) -> None:
        """Index messages: those of a kind alone, where the backend can."""
        # Naming a backend here loads its dialect, so only the one in use is named.
        can = self._backend in {"sqlite", "postgresql"}
        kind: Any = {f"{self._backend}_where": where} if can else {}
        sa.Index(f"{self.jobs.name}_{name}", *(self.jobs.c[each] for each in columns), **kind)

    def changes(self, connection: sa.Connection) -> list[str]:
        """Give the statements that create what is missing.

        A table that Laravel made gets our columns.
        """
        found = sa.inspect(connection)
        dialect = connection.dialect
        changes: list[str] = []
        for table in self._metadata.sorted_tables:
            indexes = set()
            if found.has_table(table.name):
                present = {column["name"] for column in found.get_columns(table.name)}
                indexes = {index["name"] for index in found.get_indexes(table.name)}
                missing = [column for column in table.columns if column.name not in present]
                add = f"ALTER TABLE {table.name} ADD COLUMN "
                changes += [add + str(CreateColumn(c).compile(dialect=dialect)) for c in missing]
            else:
                changes.append(str(CreateTable(table).compile(dialect=dialect)))
            wanted = [CreateIndex(index) for index in table.indexes if index.name not in indexes]
            changes += [str(each.compile(dialect=dialect)) for each in wanted]
        return changes


def _given(name: str, kind: Any, **options: Any) -> sa.Column[Any]:  # noqa: ANN401 (Core's)
    """Make a column that is never NULL."""
    return sa.Column(name, kind, nullable=False, **options)
