"""Schema: Laravel's tables with additional nullable columns, and tables for facts and latches."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.urls import parsed

NEVER = 2**62
"""The smallest `due` of a buried message."""
LATEST = 2**31 - 1
"""The latest `available_at` that fits Laravel's column in every database."""
_BY_CODE_POINT = {
    "postgresql": "C",
    "mysql": "utf8mb4_nopad_bin",
    "mariadb": "utf8mb4_nopad_bin",
}
"""Collations in which all keys differ and sort as in memory."""
_MYSQL = ("mysql", "mariadb")
FORMER_INDEXES = ("due", "leases")
"""Suffixes of indexes on `jobs` that earlier versions created.

A migration drops them once nothing wants them. An index with a new definition gets a new name, and
its old name goes here.
"""
STORAGE = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "1000",
}
"""PostgreSQL's storage parameters: rows come and go, so the number of dead rows counts."""
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG = sa.Text().with_variant(sa.Text(2**32 - 1), *_MYSQL)


class Schema:
    """The tables of one connection. qframe's own times are whole microseconds.

    - `due`: when a waiting message may be taken, and its place among those that may; below zero it
      has a priority (`zones.py`). PHP does not write it; the generated column `due_at` then uses
      `available_at`.
    - `lease`: the fence, new for each reservation. It stays after the lease has run out, so that
      the reservation can be settled until another worker has the message.
    - `lease_end`, and `leased_at`, the `reserved_at` that was written with it: if a row's
      `reserved_at` differs, PHP has reserved it since. `reserved_at` is written so that Laravel's
      own rule (`reserved_at + retry_after`) does not end the lease earlier.
    - `started`: 1 once the reservation was started.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self._backend = parsed(settings.url).get_backend_name()
        self.name = settings.schema_name
        """The schema of the tables; None for the connection's default."""
        self._metadata = sa.MetaData(schema=self.name, info={"backend": self._backend})
        key = sa.String(255, collation=_BY_CODE_POINT.get(self._backend))
        # SQLite's own row number would be a second tree to write.
        by_key: Any = {"sqlite_with_rowid": False} if self._backend == "sqlite" else {}
        moment: Any = sa.DateTime()
        second: Any = sa.Integer()
        now = sa.text("CURRENT_TIMESTAMP")
        if self._backend in _MYSQL:  # MySQL needs the fraction of seconds to be requested
            from sqlalchemy.dialects.mysql import DATETIME, INTEGER  # noqa: PLC0415 (of one backend)

            moment, now = DATETIME(fsp=6), sa.text("CURRENT_TIMESTAMP(6)")
            second = INTEGER(unsigned=True)
        self.jobs = self._table(
            settings.table,
            sa.Column("id", _ID, primary_key=True, autoincrement=True),
            _given("queue", key),
            _given("payload", _LONG),
            _given("attempts", sa.Integer),
            sa.Column("reserved_at", second),
            _given("available_at", second),
            _given("created_at", second),
            sa.Column("due", sa.BigInteger),
            sa.Column("lease", sa.String(32)),
            sa.Column("lease_end", sa.BigInteger),
            sa.Column("leased_at", second),
            sa.Column("started", sa.Integer),
            sa.Column("notes", _LONG),
            # As in Laravel's schema: the id identifies a message, so it is never reused.
            sqlite_autoincrement=True,
        )
        reserved_at = self.jobs.c.reserved_at
        c = self.jobs.c
        due = sa.func.coalesce(c.due, sa.cast(c.available_at, sa.BigInteger) * 1_000_000)
        stored = self._backend == "postgresql"  # PostgreSQL has only stored generated columns
        self.jobs.append_column(
            sa.Column("due_at", sa.BigInteger, sa.Computed(due, persisted=stored))
        )
        if self._backend in _MYSQL:
            # Without partial indexes, one index has both the waiting and the reserved rows.
            self._index("due_at", c.queue, c.reserved_at, c.due_at, c.id)
        else:
            self._index("due_at", c.queue, c.due_at, c.id, where=reserved_at.is_(None))
            self._index("leases", c.queue, reserved_at, where=reserved_at.is_not(None))
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
        self.outbox = self._table(
            settings.outbox_table,
            sa.Column("id", _ID, primary_key=True, autoincrement=True),
            _given("connection", key),
            _given("mark", sa.String(32)),
            _given("step", _LONG),
            _given("size", sa.BigInteger),
            _given("created_at", sa.BigInteger),
            _given("tries", sa.Integer),
            _given("aside", sa.Integer),
            sa.Column("error", _LONG),
        )
        of_outbox = (self.outbox.c[name] for name in ("aside", "connection", "id"))
        sa.Index(f"{self.outbox.name}_waiting", *of_outbox)

        self.marks = self._table(
            settings.mark_table,
            sa.Column("key", key, primary_key=True),
            _given("number", sa.BigInteger),
            _given("expires_at", sa.BigInteger),
            **by_key,
        )

    @property
    def tables(self) -> list[sa.Table]:
        return self._metadata.sorted_tables

    def _table(self, name: str, *items: SchemaItem, **options: Any) -> sa.Table:  # noqa: ANN401 (a dialect's)
        if self._backend in _MYSQL:
            options |= {f"{self._backend}_engine": "InnoDB", f"{self._backend}_charset": "utf8mb4"}
        return sa.Table(name, self._metadata, *items, **options)

    def _index(
        self,
        name: str,
        *columns: sa.ColumnElement[Any],
        where: sa.ColumnElement[bool] | None = None,
    ) -> None:
        # Naming a backend loads its dialect, so only the current one is named.
        kind: Any = {} if where is None else {f"{self._backend}_where": where}
        sa.Index(f"{self.jobs.name}_{name}", *columns, **kind)


def _given(name: str, kind: Any, **options: Any) -> sa.Column[Any]:  # noqa: ANN401 (Core's)
    return sa.Column(name, kind, nullable=False, **options)
