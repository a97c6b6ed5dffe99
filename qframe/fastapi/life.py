"""lifespan: opens connections when the application starts, and closes them when it ends."""

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
    """Opens connections when the application starts, and closes them when it ends.

    `FastAPI(lifespan=lifespan)`; with a lifespan of your own, `FastAPI(lifespan=lifespan(yours))`:
    yours begins after, ends before, and its state is passed on. A worker runs none of it.

    A wrong configuration keeps the application from starting. A backend that does not answer is
    logged: it may be back before it is needed. Pending dispatches are sent at the end.
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
    """Opens the default connection in the thread that pushes for coroutines."""
    connection = queues.connection()
    try:
        connection.backend.check()
    except BackendUnavailable as error:
        log.warning("the connection %r does not answer yet: %s", connection.name, error)
    yield from ()


def _closing(queues: QueueManager) -> Call[None]:
    queues.close()
    yield from ()
