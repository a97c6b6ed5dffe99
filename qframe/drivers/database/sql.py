"""Statements: built by SQLAlchemy Core, run on the DBAPI's own cursor."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Engine, bindparam
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
        self._constants = {
            name: value
            for name, value in (compiled.params or {}).items()
            if not name.startswith(_PREFIX)
        }
        order: list[str] | None = getattr(compiled, "positiontup", None)
        if order is not None and not self._constants:
            order = [name.removeprefix(_PREFIX) for name in order]
        self._order = order

    def arguments(self, values: dict[str, Any]) -> Any:  # noqa: ANN401 (what the DBAPI takes)
        """Put named values into the form the DBAPI wants."""
        if self._order is None or self._constants:  # a constant may be called like a parameter
            values = {_PREFIX + name: value for name, value in values.items()} | self._constants
        if self._order is None:
            return values
        return [values[name] for name in self._order]


_PREFIX = "p_"


def param(name: str) -> BindParameter[Any]:
    """Give the parameter `name` of a statement."""
    return bindparam(_PREFIX + name)
