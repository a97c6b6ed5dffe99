"""lifespan: what the application opens when it starts, and closes when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, overload

from starlette.applications import Starlette

from qframe import manager
from qframe.dispatch import pusher, sender
from qframe.dispatch.calls import Call
from qframe.exceptions import BackendUnavailable
from qframe.fastapi.overrides import use
from qframe.manager import QueueManager

log = logging.getLogger("qframe")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


@overload
def lifespan(given: Starlette) -> AbstractAsyncContextManager[None]: ...


@overload
def lifespan(given: Lifespan) -> Lifespan: ...


def lifespan(given: Any) -> Any:
    """Open connections when the application starts, and close them when it ends.

    `FastAPI(lifespan=lifespan)`; with a lifespan of your own, `FastAPI(lifespan=lifespan(yours))`:
    that begins after, ends before, and gives its state. A worker has none of it.

    A wrong configuration keeps the application from starting. A backend that does not answer is
    logged: it may be back before it is needed. What was dispatched and not sent is sent at the end.
    """
    if isinstance(given, Starlette):
        return _opened(given, None)
    return lambda app: _opened(app, given)


@asynccontextmanager
async def _opened(app: Starlette, own: Lifespan | None) -> AsyncIterator[Mapping[str, Any] | None]:
    use(app)
    queues = manager.default()
    await sender.awaited(_opening(queues))
    try:
        if own is None:
            yield None
        else:
            async with own(app) as state:
                yield state
    finally:
        await asyncio.to_thread(pusher.wait, everything=True)
        await sender.awaited(_closing(queues))


def _opening(queues: QueueManager) -> Call[None]:
    """Open the default connection in the thread that pushes for coroutines."""
    connection = queues.connection()
    try:
        connection.backend.check()
    except BackendUnavailable as error:
        log.warning("the connection %r does not answer yet: %s", connection.name, error)
    yield from ()


def _closing(queues: QueueManager) -> Call[None]:
    """Close what that thread has opened."""
    queues.close()
    yield from ()
