"""Models of Django: their keys, and loading their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import router
from django.utils.connection import ConnectionDoesNotExist

from qframe.exceptions import ConfigurationError

_AT_ONCE = 500
"""The most keys in a query: SQLite takes 999 variables, of which a composite key needs several."""


def name(model: Any) -> str:  # noqa: ANN401 (a model)
    """Return the name to show: `app.User`."""
    return str(model._meta.label)  # noqa: SLF001 (Django's public name)


def problem(model: Any) -> str:  # noqa: ANN401 (a model)
    """Return why no row of it can be loaded; "" if it can."""
    return f"{name(model)} is abstract: no row is one" if model._meta.abstract else ""  # noqa: SLF001 (as above)


def pk(model: Any, given: Any) -> Any:  # noqa: ANN401 (a model; a JSON value; a key)
    """Return the primary key that JSON carried. Raises `ValueError`."""
    fields = getattr(model._meta, "pk_fields", None) or [model._meta.pk]  # noqa: SLF001 (as above)
    if len(fields) == 1:
        return _part(fields[0], given)
    if not isinstance(given, list | tuple) or len(given) != len(fields):
        raise ValueError(f"its key has {len(fields)} parts")
    return tuple(_part(field, each) for field, each in zip(fields, given, strict=True))


def _part(field: Any, given: Any) -> Any:  # noqa: ANN401 (a field of Django's; a JSON value)
    if given is None or isinstance(given, bool | float | dict | list):
        raise ValueError
    try:
        return field.to_python(given)
    except ValidationError:
        raise ValueError from None


def key_names(model: Any) -> list[str]:  # noqa: ANN401 (a model)
    """Return the attributes of a row that are its primary key."""
    fields = getattr(model._meta, "pk_fields", None) or [model._meta.pk]  # noqa: SLF001 (as above)
    return [field.attname for field in fields]


def key_of(model: Any, row: Any) -> tuple[Any, str]:  # noqa: ANN401 (a model and its row)
    """Return the primary key and the database of a row. Raises `ValueError` if not saved."""
    state, found = row._state, getattr(row, model._meta.pk.attname)  # noqa: SLF001 (as above)
    parts = found if isinstance(found, tuple) else (found,)
    if state.adding or None in parts:
        raise ValueError(f"the {name(model)} is not saved: save it before the dispatch")
    own = router.db_for_write(model)
    return found, "" if state.db in {None, own} else state.db


def rows(model: Any, pks: Sequence[Any], where: str) -> dict[Any, Any]:  # noqa: ANN401 (a model)
    """Load rows, by key, from the database with the alias `where`; "": where it is written.

    A manager of the model's own may hide rows, such as those deleted softly; a job finds them.
    Raises `ConfigurationError` for an unknown alias.
    """
    manager = model._base_manager.using(where or router.db_for_write(model))  # noqa: SLF001 (as above)
    try:
        return {
            each.pk: each
            for start in range(0, len(pks), _AT_ONCE)
            for each in manager.filter(pk__in=pks[start : start + _AT_ONCE])
        }
    except ConnectionDoesNotExist:
        raise ConfigurationError(
            f"{name(model)} is in the database {where!r}, which this worker's DATABASES has not"
        ) from None
