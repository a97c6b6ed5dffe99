"""Middleware that runs deferred jobs after the response, for ASGI and WSGI applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from qframe.dispatch.deferred import DeferredJobs

__all__ = ["DeferredAsgiMiddleware", "DeferredJobs", "DeferredWsgiMiddleware"]

_Scope = MutableMapping[str, Any]
_Message = MutableMapping[str, Any]
_AsgiApp = Callable[
    [_Scope, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]
_WsgiApp = Callable[..., Iterable[bytes]]


class DeferredAsgiMiddleware:
    """Runs the jobs that a request defers when its response has been sent.

    `app.add_middleware(DeferredAsgiMiddleware)`, or `app = DeferredAsgiMiddleware(app)`. They run
    in a thread; the event loop goes on.
    """

    def __init__(self, app: _AsgiApp) -> None:
        self._app = app

    async def __call__(
        self,
        scope: _Scope,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Handle a request, then run its jobs."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        async with DeferredJobs():
            await self._app(scope, receive, send)


class DeferredWsgiMiddleware:
    """Runs the jobs that a request defers when the server has sent its response.

    `app.wsgi_app = DeferredWsgiMiddleware(app.wsgi_app)` in Flask, or around any WSGI application.
    They run in the thread of the request.
    """

    def __init__(self, app: _WsgiApp) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> _WsgiBody:
        """Handle a request; its jobs run when the server closes the body."""
        jobs = DeferredJobs().__enter__()
        try:
            return _WsgiBody(self._app(environ, start_response), jobs)
        except BaseException:
            jobs.__exit__(None, None, None)
            raise


class _WsgiBody:
    """The body of a response, after which the jobs run: a server calls `close` in the end."""

    def __init__(self, body: Iterable[bytes], jobs: DeferredJobs) -> None:
        self._body = body
        self._jobs = jobs

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """End the body, then run the jobs."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._jobs.__exit__(None, None, None)
