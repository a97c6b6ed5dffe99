"""Sessions: which session of SQLAlchemy loads the rows of a job, and is open while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

from qframe.exceptions import ConfigurationError
from qframe.hooks import Hooks, of_process

F = TypeVar("F", bound=Callable[[], Any])


def sessions(factory: F, for_async: Callable[[], Any] | None = None) -> F:
    """Set what opens the session that loads the rows of SQLAlchemy in jobs; returns the factory.

    ```python
    Session = qframe.models.sessions(sessionmaker(engine))
    ```

    `factory` is called without arguments for each attempt that has rows to load, and returns a
    `Session`, an `AsyncSession`, or a context manager that gives one: a `sessionmaker`,
    `Session.begin` (which commits when the job has returned), an `async_sessionmaker`, a
    `scoped_session`, a function of your own. `for_async` is for jobs whose `handle` is `async`;
    default: the same.

    The session stays open while the job runs, and is closed behind it; qframe commits nothing. An
    `async` job with a `Session`, and another job with an `AsyncSession`, get rows that are
    detached from it. A `scoped_session` that its thread has already is used, and left open.
    """
    of_process.sessions = (factory, for_async or factory)
    return factory


class Opening(NamedTuple):
    """What opens the session of one attempt: `open` is called once, where it is used."""

    is_async: bool
    open: Callable[[], Any]


def opening(hooks: Hooks, *, for_async: bool) -> Opening:
    """Return what opens the session of a job. Raises `ConfigurationError` if nobody set any."""
    found = hooks.sessions or of_process.sessions
    if found is None:
        raise ConfigurationError(
            "no session is known that loads the rows of SQLAlchemy in jobs: call "
            "qframe.models.sessions(Session) where your sessionmaker is made"
        )
    factory: Any = found[1] if for_async else found[0]
    if hasattr(getattr(factory, "registry", None), "has") and hasattr(factory, "remove"):
        if type(factory).__module__.startswith("sqlalchemy.ext.asyncio"):
            return Opening(True, lambda: _of_task(factory))
        return Opening(False, lambda: _of_thread(factory))
    made = factory()
    is_async = hasattr(made, "__aenter__") and not hasattr(made, "__enter__")
    return Opening(is_async, lambda: made)


@contextmanager
def _of_thread(factory: Any) -> Iterator[Any]:  # noqa: ANN401 (a `scoped_session`)
    is_there = factory.registry.has()
    try:
        yield factory()
    finally:
        if not is_there:
            factory.remove()


@asynccontextmanager
async def _of_task(factory: Any) -> AsyncIterator[Any]:  # noqa: ANN401 (an `async_scoped_session`)
    is_there = factory.registry.has()
    try:
        yield factory()
    finally:
        if not is_there:
            await factory.remove()
