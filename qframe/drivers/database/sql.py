"""Statement: built by SQLAlchemy Core, run on the DBAPI's own cursor."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from sqlalchemy import ARRAY, BigInteger, BindParameter, ColumnElement, Dialect, Table, bindparam
from sqlalchemy.sql import ClauseElement

from qframe.forks import cached_property

MARK = "base64:"
"""Prefix of a text that encodes other bytes."""


class Statement:
    """A statement of SQLAlchemy Core, compiled once, on first use.

    Core's execution costs more than SQLite needs for the whole statement. Core still writes the
    SQL, so the dialects differ only in its text.
    """

    def __init__(self, element: ClauseElement, dialect: Dialect) -> None:
        self.element = element
        self._dialect = dialect

    @cached_property
    def _compiled(self) -> Any:  # noqa: ANN401 (Core's, which says less than it has)
        return self.element.compile(dialect=self._dialect)

    @cached_property
    def sql(self) -> str:
        """The SQL for the DBAPI, with named parameters.

        Constants that Core made parameters are written out.
        """
        compiled = self._compiled
        return _NAMED.sub(partial(_written, compiled), str(compiled))


class Block(Statement):
    """Several statements that MariaDB runs as one, in their own transaction."""

    def __init__(self, dialect: Dialect, *elements: ClauseElement) -> None:
        super().__init__(elements[0], dialect)
        self._parts = [Statement(element, dialect) for element in elements]

    @cached_property
    def sql(self) -> str:
        parts = "; ".join(part.sql for part in self._parts)
        return f"BEGIN NOT ATOMIC START TRANSACTION; {parts}; COMMIT; END"


_NAMED = re.compile(r"(?:%\((\w+)\)s|:(\w+)\b)(?:::\w+)?")
"""A parameter in the style of a dialect, with the type given to PostgreSQL."""


def _written(compiled: Any, found: re.Match[str]) -> str:  # noqa: ANN401 (Core's)
    bind = compiled.binds.get(found[1] or found[2])
    if bind is None:
        return found[0]
    if isinstance(bind.type, ARRAY):  # in binary: as text, psycopg takes 50 us for each element
        return found[0].replace(")s", ")b")
    if bind.required:
        return found[0]
    value = bind.value
    return str(value) if isinstance(value, int) else f"'{value}'"


def param(name: str, kind: Any = None) -> BindParameter[Any]:  # noqa: ANN401 (a type of Core's)
    """Return a named parameter, with a type if the database cannot infer it."""
    return bindparam(name, type_=kind)


def number(name: str) -> BindParameter[Any]:
    """Return a whole-number parameter."""
    return bindparam(name, type_=BigInteger)


def params(*names: str) -> dict[str, BindParameter[Any]]:
    """Return values for columns: parameters with the columns' names."""
    return {name: param(name) for name in names}


def upsert(
    table: Table, values: Mapping[str, Any], changes: Mapping[str, ColumnElement[Any]] | None = None
) -> ClauseElement:
    """Insert a row; if its key exists, make `changes` to it, or nothing.

    MySQL makes the changes one after the other, and later ones see earlier ones: their order
    matters.
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


def as_text(raw: bytes, *, nul: bool, ascii_only: bool = False) -> str:
    """Encode bytes for a text column: unchanged, or in base64 behind `MARK`.

    Base64 is for bytes that are not UTF-8, that have a NUL which the server does not accept
    (`nul`), that are not ASCII where only ASCII is safe, and that begin with `MARK` themselves.
    """
    if ascii_only and not raw.isascii():
        return _marked(raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _marked(raw)
    if text.startswith(MARK) or (not nul and "\0" in text):
        return _marked(raw)
    return text


def as_bytes(text: str | bytes | None) -> bytes:
    """Decode the text of a column to the bytes that were stored."""
    if not isinstance(text, str):
        return text or b""
    if text.startswith(MARK):
        # A text of others may begin with the mark, too; it stays as it is.
        with suppress(ValueError):
            return b64decode(text[len(MARK) :], validate=True)
    return text.encode()


def _marked(raw: bytes) -> str:
    return MARK + b64encode(raw).decode()
