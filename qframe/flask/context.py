"""An application context around each job: `current_app`, a `g` of its own, teardown functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flask import Flask

from qframe.hooks import Awaits, Hooks

_is_there: ContextVar[bool] = ContextVar("qframe_flask_job", default=False)
"""Whether a job has one already: awaited parts of it run in the same."""


def hooks_of(app: Flask) -> Hooks:
    """Returns hooks that run jobs in a context of this application."""

    @contextmanager
    def context() -> Iterator[None]:
        token = _is_there.set(True)
        try:
            with app.app_context():
                yield
        finally:
            _is_there.reset(token)

    def around(run: Callable[[], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        with context():
            return run()

    async def around_on_loop(run: Awaits) -> Any:  # noqa: ANN401 (as above)
        if _is_there.get():
            return await run()
        with context():
            return await run()

    return Hooks(around=around, around_on_loop=around_on_loop)
