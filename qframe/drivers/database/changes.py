"""Changes: compares a database with the schema, and creates what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.sql.ddl import BaseDDLElement

from qframe.contracts.tables import Change
from qframe.drivers.database.schema import FORMER_INDEXES, STORAGE, Schema
from qframe.exceptions import BackendUnusable


@dataclass
class _Present:
    columns: set[str] = field(default_factory=set)
    indexes: set[str] = field(default_factory=set)
    narrow: set[str] = field(default_factory=set)
    storage: set[str] = field(default_factory=set)


class Changes:
    """The changes that bring a database up to the schema.

    Laravel's tables get qframe's columns and indexes, and an attempts column beyond 255. Nothing
    else is changed, except that unused indexes of earlier versions are dropped.
    """

    def __init__(self, schema: Schema, dialect: sa.Dialect) -> None:
        self._schema = schema
        self._dialect = dialect
        self._is_mariadb = dialect.name in {"mysql", "mariadb"}
        self._is_postgresql = dialect.name == "postgresql"
        self._is_sqlite = dialect.name == "sqlite"  # SQLite has no IF NOT EXISTS for columns

    def all(self) -> list[Change]:
        """Return all changes that create the tables from nothing.

        On PostgreSQL and MariaDB they also upgrade existing tables, and may run again.
        """
        changes = self._place()
        for table in self._schema.tables:
            changes.append(self._create(table))
            if not self._is_sqlite:
                ours = [each for each in table.columns if each.nullable]
                changes += self._columns(table, ours, {"attempts"})
            changes += self._storage(table, set())
            former = self._former(table) if not self._is_sqlite else []
            changes += self._indexes(table, set(former))
        return changes

    def missing(self, connection: sa.Connection) -> list[Change]:
        name = self._schema.name
        nothing = name is not None and name not in sa.inspect(connection).get_schema_names()
        changes = self._place() if nothing else []
        for table in self._schema.tables:
            present = None if nothing else self._present(connection, table)
            if present is None:
                changes.append(self._create(table))
                present = _Present({each.name for each in table.columns})
            lacking = [each for each in table.columns if each.name not in present.columns]
            changes += self._columns(table, lacking, present.narrow)
            changes += self._storage(table, present.storage)
            changes += self._indexes(table, present.indexes)
        return changes

    def _present(self, connection: sa.Connection, table: sa.Table) -> _Present | None:
        """Return what a table has; None if the table does not exist."""
        found, schema = sa.inspect(connection), table.schema
        if not found.has_table(table.name, schema):
            return None
        columns = found.get_columns(table.name, schema)
        present = _Present(
            {str(each["name"]) for each in columns},
            {str(each["name"]) for each in found.get_indexes(table.name, schema)},
            {str(each["name"]) for each in columns if _is_narrow(each["type"])},
        )
        if self._is_postgresql:
            options = sa.text("SELECT reloptions FROM pg_class WHERE oid = to_regclass(:name)")
            row = connection.execute(options, {"name": self._named(table)}).scalar()
            present.storage = {option.split("=")[0] for option in row or ()}
        return present

    # -- the statements ---------------------------------------------------------------------------

    def _place(self) -> list[Change]:
        """Return the change that creates the schema, if one is configured."""
        name = self._schema.name
        if name is None:
            return []
        quoted = self._dialect.identifier_preparer.quote_schema(name)
        if self._is_mariadb:
            made = f"CREATE DATABASE IF NOT EXISTS {quoted} DEFAULT CHARACTER SET utf8mb4"
            return [Change(f"created the database {name}", made)]
        return [Change(f"created the schema {name}", f"CREATE SCHEMA IF NOT EXISTS {quoted}")]

    def _create(self, table: sa.Table) -> Change:
        made = self._text(CreateTable(table, if_not_exists=True))
        return Change(f"created the table {table.fullname}", made)

    def _columns(
        self, table: sa.Table, columns: Sequence[sa.Column[Any]], narrow: set[str]
    ) -> Iterator[Change]:
        """Add columns and widen narrow ones, in one statement where the database can.

        A large table is then rewritten at most once.
        """
        for column in columns:
            if not column.nullable:
                raise BackendUnusable(
                    f'the table "{table.fullname}" has no column "{column.name}", which Laravel 10 '
                    "and later make: run Laravel's own migrations first, or name another table"
                )
        guard = "" if self._is_sqlite else "IF NOT EXISTS "
        added = [f"ADD COLUMN {guard}{self._text(CreateColumn(each))}" for each in columns]
        names = [f"{table.fullname}.{each.name}" for each in columns]
        begin = f"ALTER TABLE {self._named(table)} "
        # SQLite adds one column in a statement, and its columns hold any number
        if self._is_sqlite:
            yield from (
                Change(f"added {name}", begin + clause)
                for name, clause in zip(names, added, strict=True)
            )
            return
        done = [f"added {', '.join(names)}"] if names else []
        if table is self._schema.jobs and "attempts" in narrow:
            # A row whose count cannot grow could never be started again.
            modify = "MODIFY attempts INTEGER NOT NULL"
            widen = "ALTER COLUMN attempts TYPE INTEGER"
            added.append(modify if self._is_mariadb else widen)
            done.append(f"widened {table.fullname}.attempts")
        if added:
            yield Change(", ".join(done), begin + ", ".join(added))

    def _storage(self, table: sa.Table, present: set[str]) -> Iterator[Change]:
        """Set the autovacuum parameters of a table that nobody has set already."""
        often = self._is_postgresql and table is not self._schema.failed
        options = STORAGE if often else {}
        lacking = ", ".join(f"{name} = {value}" for name, value in options.items()
                            if name not in present)  # fmt: skip
        if lacking:
            sql = f"ALTER TABLE {self._named(table)} SET ({lacking})"
            yield Change(f"set how {table.fullname} is vacuumed", sql)

    def _indexes(self, table: sa.Table, present: set[str]) -> Iterator[Change]:
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in present:
                create = CreateIndex(index, if_not_exists=True)
                yield Change(f"created the index {index.name}", self._text(create))
        for name in self._former(table):
            if name in present:
                yield Change(f"dropped the index {name}", self._drop(table, name))

    def _former(self, table: sa.Table) -> list[str]:
        names = FORMER_INDEXES if table is self._schema.jobs else ()
        wanted = {index.name for index in table.indexes}
        return [each for name in names if (each := f"{table.name}_{name}") not in wanted]

    def _drop(self, table: sa.Table, name: str) -> str:
        preparer = self._dialect.identifier_preparer
        if self._is_mariadb:
            return f"DROP INDEX IF EXISTS {preparer.quote(name)} ON {self._named(table)}"
        schema = f"{preparer.quote_schema(table.schema)}." if table.schema else ""
        return f"DROP INDEX IF EXISTS {schema}{preparer.quote(name)}"

    def _named(self, table: sa.Table) -> str:
        return self._dialect.identifier_preparer.format_table(table)

    def _text(self, element: BaseDDLElement) -> str:
        return str(element.compile(dialect=self._dialect)).strip()


def _is_narrow(kind: sa.types.TypeEngine[Any]) -> bool:
    """Whether a column of this type holds at most 255 or 32,767."""
    return type(kind).__visit_name__.upper() in {"TINYINT", "SMALLINT"}
