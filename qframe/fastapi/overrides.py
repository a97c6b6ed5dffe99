"""The application whose `dependency_overrides` apply to jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

_app: Callable[[], Any] | None = None


def use(app: object) -> None:
    """Applies the `dependency_overrides` of an application to jobs that run in this process.

    `lifespan` does so by itself.
    """
    global _app  # noqa: PLW0603 (one application per process)
    _app = ref(app)


def overrides() -> Mapping[Any, Any]:
    """Returns the replacements of dependencies."""
    app = None if _app is None else _app()
    return getattr(app, "dependency_overrides", None) or {}
