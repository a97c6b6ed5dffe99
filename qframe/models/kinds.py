"""Kinds: whose model a class is, Django's or SQLAlchemy's; asks neither to be imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from qframe import forks


class ModelKind(Protocol):
    """What an ORM says of its models: a module each, `of_django` and `of_sqlalchemy`."""

    def name(self, model: Any) -> str:  # noqa: ANN401 (a model)
        """Return the name to show: `app.User`."""

    def problem(self, model: Any) -> str:  # noqa: ANN401 (a model)
        """Return why no row of it can be loaded; "" if it can."""

    def pk(self, model: Any, given: Any) -> Any:  # noqa: ANN401 (a model; a JSON value; a key)
        """Return the primary key that JSON carried. Raises `ValueError`."""

    def key_names(self, model: Any) -> list[str]:  # noqa: ANN401 (a model)
        """Return the attributes of a row that are its primary key."""

    def key_of(self, model: Any, row: Any) -> tuple[Any, str]:  # noqa: ANN401 (a model and its row)
        """Return the primary key and the database of a row. Raises `ValueError` if not saved."""

    def rows(self, model: Any, pks: Sequence[Any], where: Any) -> dict[Any, Any]:  # noqa: ANN401 (a model)
        """Load rows, by key; `where` is the alias of the database, or the session."""


def has_any() -> bool:
    """Whether this process can have models at all: one of the ORMs is imported."""
    return "django.db.models" in sys.modules or "sqlalchemy.orm" in sys.modules


@lru_cache(4096)
def _module(model: type) -> str:
    """Return the module with the kind of a class; "" if it is no model."""
    django = sys.modules.get("django.db.models")
    if django is not None and issubclass(model, django.Model):
        return "of_django"
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(getattr(model, "__mapper__", None), orm.Mapper):
        return "of_sqlalchemy"
    return ""


def is_model(given: object) -> bool:
    """Whether it is a class of rows."""
    return isinstance(given, type) and has_any() and bool(_module(given))


def is_row(value: object) -> bool:
    """Whether it is a row of a model."""
    return is_model(type(value))


def of(model: type) -> ModelKind:
    """Return the kind of a model."""
    return _imported(_module(model))


@lru_cache(2)
def _imported(name: str) -> ModelKind:
    with forks.undisturbed():
        found: Any = import_module(f"qframe.models.{name}")
    return found  # type: ignore[no-any-return] # a module has the functions


def needs_session(model: type) -> bool:
    """Whether a session of the user's loads its rows."""
    return _module(model) == "of_sqlalchemy"
