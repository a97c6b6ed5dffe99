"""Statements: built by SQLAlchemy Core, run on the DBAPI's own cursor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Dialect, Table, bindparam
from sqlalchemy.sql import ClauseElement


class Statement:
    """A statement built by SQLAlchemy Core, compiled once, when it is first used.

    Core's execution costs more than SQLite needs for the whole statement; the SQL is still
    Core's, so the dialects differ only in what it writes.
    """

    def __init__(self, element: ClauseElement, dialect: Dialect) -> None:
        self._element = element
        self._dialect = dialect

    @cached_property
    def _compiled(self) -> Any:  # noqa: ANN401 (Core's, which says less than it has)
        return self._element.compile(dialect=self._dialect)

    @cached_property
    def sql(self) -> str:
        """What the DBAPI takes, its parameters named."""
        return str(self._compiled)

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Values that Core made parameters of."""
        binds = self._compiled.binds
        return {k: v for k, v in self._compiled.params.items() if not binds[k].required}


def param(name: str) -> BindParameter[Any]:
    """Give the parameter `name` of a statement."""
    return bindparam(name)


def params(*names: str) -> dict[str, BindParameter[Any]]:
    """Give values for columns: parameters of the same names."""
    return {name: param(name) for name in names}


def upsert(
    table: Table, values: Mapping[str, Any], changes: Mapping[str, ColumnElement[Any]] | None = None
) -> ClauseElement:
    """Insert a row, or where its key is there make these changes, or none.

    MySQL makes them one after the other, and a later one sees the earlier: their order counts.
    """
    backend = table.metadata.info["backend"]
    name = {"mariadb": "mysql"}.get(backend, backend)
    insert: Any = import_module(f"sqlalchemy.dialects.{name}").insert(table).values(values)
    made: ClauseElement
    if name == "mysql":
        made = (
            insert.on_duplicate_key_update(list(changes.items()))
            if changes
            else insert.prefix_with("IGNORE")
        )
    elif changes:
        keys = list(table.primary_key)
        made = insert.on_conflict_do_update(index_elements=keys, set_=dict(changes))
    else:
        made = insert.on_conflict_do_nothing()
    return made


def as_bytes(text: str | bytes | None) -> bytes:
    """Give what was read from a column of text as the bytes that were stored."""
    return text.encode() if isinstance(text, str) else text or b""
