"""Statements: built by SQLAlchemy Core, run on the DBAPI's own cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Engine, Table, bindparam
from sqlalchemy.sql import ClauseElement


class Statement:
    """A statement built by SQLAlchemy Core, compiled once, run on the DBAPI's own cursor.

    Core's execution costs more than SQLite needs for the whole statement; the SQL is still
    Core's, so the dialects differ only in what it writes.
    """

    __slots__ = ("_constants", "_order", "sql")

    def __init__(self, element: ClauseElement, engine: Engine) -> None:
        compiled = element.compile(dialect=engine.dialect)
        self.sql = str(compiled)
        order: list[str] | None = getattr(compiled, "positiontup", None)
        constants = {
            name: value
            for name, value in (compiled.params or {}).items()
            if not name.startswith(_PREFIX)
        }
        if order is not None:  # a constant may be called like a parameter
            constants = {f"={name}": value for name, value in constants.items()}
            order = [
                name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else f"={name}"
                for name in order
            ]
        self._constants = constants
        self._order = order

    def arguments(self, values: dict[str, Any]) -> Any:  # noqa: ANN401 (what the DBAPI takes)
        """Put named values into the form the DBAPI wants."""
        if self._order is None:
            return {_PREFIX + name: value for name, value in values.items()} | self._constants
        if self._constants:
            values = values | self._constants
        return [values[name] for name in self._order]


_PREFIX = "p_"


def param(name: str) -> BindParameter[Any]:
    """Give the parameter `name` of a statement."""
    return bindparam(_PREFIX + name)


def params(*names: str) -> dict[str, BindParameter[Any]]:
    """Give values for columns: parameters of the same names."""
    return {name: param(name) for name in names}


def upsert(
    table: Table,
    values: Mapping[str, Any],
    changes: Mapping[str, ColumnElement[Any] | BindParameter[Any]] | None = None,
) -> ClauseElement:
    """Insert a row, or where its key is there make these changes, or none.

    MySQL makes them one after the other, and a later one sees the earlier: their order counts.
    """
    name = table.metadata.info["backend"]
    if name in {"mysql", "mariadb"}:
        from sqlalchemy.dialects import mysql  # noqa: PLC0415 (of one backend)

        insert = mysql.insert(table).values(values)
        if changes is None:
            return insert.prefix_with("IGNORE")
        return insert.on_duplicate_key_update(list(changes.items()))
    if name == "postgresql":
        from sqlalchemy.dialects import postgresql as dialect  # noqa: PLC0415 (of one backend)
    else:
        from sqlalchemy.dialects import sqlite as dialect  # type: ignore[no-redef] # noqa: PLC0415
    either: Any = dialect.insert(table).values(values)
    if changes is None:
        return either.on_conflict_do_nothing()  # type: ignore[no-any-return]
    keys = list(table.primary_key)
    return either.on_conflict_do_update(index_elements=keys, set_=dict(changes))  # type: ignore[no-any-return]
