"""Mapped classes of SQLAlchemy: their keys, and loading their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import and_, inspect, or_, select

_AT_ONCE = 200
"""The most keys in a query: SQLite nests no more than 1,000 conditions."""


def name(model: Any) -> str:  # noqa: ANN401 (a model)
    """Return the name to show: module and class."""
    return f"{model.__module__}.{model.__qualname__}"


def problem(model: Any) -> str:  # noqa: ANN401, ARG001 (a model; each can be)
    """Return why no row of it can be loaded; "" if it can."""
    return ""


def pk(model: Any, given: Any) -> Any:  # noqa: ANN401 (a model; a JSON value; a key)
    """Return the primary key that JSON carried. Raises `ValueError`."""
    parts = _parts(model)
    if len(parts) == 1:
        return parts[0](given)
    if not isinstance(given, list | tuple) or len(given) != len(parts):
        raise ValueError(f"its key has {len(parts)} parts")
    return tuple(read(each) for read, each in zip(parts, given, strict=True))


@lru_cache(1024)
def _parts(model: Any) -> list[Callable[[Any], Any]]:  # noqa: ANN401 (a model)
    """Return what reads each column of the key from JSON."""
    return [_reader(column.type) for column in model.__mapper__.primary_key]


def _reader(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 (a type of SQLAlchemy's)
    try:
        adapter: TypeAdapter[Any] | None = TypeAdapter(kind.python_type)
    except Exception:  # noqa: BLE001 (a type of the user's may say nothing)
        adapter = None

    def read(given: Any) -> Any:  # noqa: ANN401 (a JSON value)
        if given is None or isinstance(given, bool | float | dict | list):
            raise ValueError
        try:
            return given if adapter is None else adapter.validate_python(given)
        except ValidationError:
            raise ValueError from None

    return read


def key_names(model: Any) -> list[str]:  # noqa: ANN401 (a model)
    """Return the attributes of a row that are its primary key."""
    mapper = model.__mapper__
    return [mapper.get_property_by_column(column).key for column in mapper.primary_key]


def key_of(model: Any, row: Any) -> tuple[Any, str]:  # noqa: ANN401 (a model and its row)
    """Return the primary key and the database of a row. Raises `ValueError` if not saved."""
    state = inspect(row)
    if state.key is None or state.deleted or state.was_deleted:
        raise ValueError(f"the {name(model)} is not saved: add and flush it before the dispatch")
    found = tuple(state.identity)
    return (found[0] if len(found) == 1 else found), ""


def rows(model: Any, pks: Sequence[Any], where: Any) -> dict[Any, Any]:  # noqa: ANN401 (a model; a session)
    """Load rows, by key, with the session `where`."""
    if len(pks) == 1:
        row = where.get(model, pks[0])
        return {} if row is None else {pks[0]: row}
    found = {}
    for start in range(0, len(pks), _AT_ONCE):
        wanted = select(model).where(_among(model, pks[start : start + _AT_ONCE]))
        for row in where.scalars(wanted).unique():
            found[key_of(model, row)[0]] = row
    return found


def _among(model: Any, pks: Sequence[Any]) -> Any:  # noqa: ANN401 (a model; a condition)
    columns = model.__mapper__.primary_key
    if len(columns) == 1:
        return columns[0].in_(pks)
    return or_(
        *(
            and_(*(column == part for column, part in zip(columns, each, strict=True)))
            for each in pks
        )
    )
