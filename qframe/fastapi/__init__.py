"""qframe in a FastAPI application: `lifespan`, `BackgroundJobs`, `Depends` in jobs, the page.

Needs `pip install 'qframe[fastapi]'`. `lifespan` and `JobsOfRequest` need only Starlette.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qframe.fastapi.background import JobsOfRequest
    from qframe.fastapi.board import page
    from qframe.fastapi.dependency import BackgroundJobs
    from qframe.fastapi.injection import inject
    from qframe.fastapi.life import lifespan
    from qframe.fastapi.overrides import use

__all__ = ["BackgroundJobs", "JobsOfRequest", "inject", "lifespan", "page", "use"]

_WHERE = {
    "BackgroundJobs": "dependency",
    "JobsOfRequest": "background",
    "inject": "injection",
    "lifespan": "life",
    "page": "board",
    "use": "overrides",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (what is there)
    """Imports lazily: jobs need no dashboard, Starlette has no FastAPI."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
