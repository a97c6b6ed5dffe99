"""The dashboard behind Django's own sign-in: for staff, who may do what their permissions allow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from typing import Any
from urllib.parse import quote

import django
from asgiref.sync import sync_to_async
from django.contrib.auth.views import redirect_to_login
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, StreamingHttpResponse

from qframe.exceptions import ConfigurationError

_STREAM = "text/event-stream"
_SHORT = 15.0
"""Seconds after which an open page reconnects on Django 4.2, which does not report who has left."""
_FAILED = {
    "qframe.change_failedjob": ("retry",),
    "qframe.delete_failedjob": ("forget", "silence", "unsilence"),
}
"""The further actions that permissions on failed jobs allow."""


async def board(request: HttpRequest, path: str = "") -> HttpResponse:
    """Answers for the dashboard, which itself checks where a change comes from."""
    who = await sync_to_async(_grant)(request)
    if who is None:
        return redirect_to_login(request.get_full_path(), _login_url())
    if who[1] == "none":
        return HttpResponseForbidden("forbidden: this needs the permission qframe.view_queue\n")
    try:
        application = _application(live=isinstance(request, ASGIRequest))
    except ConfigurationError as error:  # the extra is not installed
        return HttpResponse(f"{error}\n", status=501, content_type="text/plain")
    return await _Answer(application, _scope(request, path, who), request.body).given()


board.csrf_exempt = True  # type: ignore[attr-defined] # Django's decorator is for async views from 5.0 on


def _grant(request: Any) -> tuple[str, Any] | None:  # noqa: ANN401 (a request with a user)
    """Returns who it is, and what they may do; None if they have to sign in first."""
    user = request.user
    if not (user.is_active and user.is_staff):
        return None
    name = user.get_username()
    if user.has_perm("qframe.change_queue"):
        return name, "act"
    if not user.has_perm("qframe.view_queue"):
        return name, "none"
    acts = {act for needs, acts in _FAILED.items() if user.has_perm(needs) for act in acts}
    return name, acts or "read"


def _login_url() -> str:
    from django.urls import NoReverseMatch, reverse  # noqa: PLC0415 (addresses are loaded last)

    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        from django.conf import settings  # noqa: PLC0415 (as above)

        return str(settings.LOGIN_URL)


@cache
def _application(*, live: bool) -> Any:  # noqa: ANN401 (an ASGI application)
    from qframe.web import Visitor, app  # noqa: PLC0415 (an extra)

    def authorize(request: Any) -> Visitor:  # noqa: ANN401 (Starlette's)
        return Visitor(*request.scope["qframe.django"])

    return app(authorize=authorize, live=live)


def _scope(request: HttpRequest, path: str, who: tuple[str, Any]) -> dict[str, Any]:
    """Returns the request as ASGI has it, mounted at its address."""
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    headers = [
        (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in request.headers.items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR") or "unknown", 0),
        "server": None,
        "qframe.django": who,
    }


class _Answer:
    """The answer of an ASGI application, as a response of Django's."""

    def __init__(self, application: Any, scope: dict[str, Any], body: bytes) -> None:  # noqa: ANN401 (ASGI)
        self._application = application
        self._scope = scope
        self._body: bytes | None = body
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()

    async def given(self) -> HttpResponse:
        task = asyncio.ensure_future(self._run())
        first = await self._said.get()
        if first is None:
            await task  # raises what was wrong
            return HttpResponse(status=500)
        headers = [(name.decode(), value.decode("latin-1")) for name, value in first["headers"]]
        streams = any(n.lower() == "content-type" and v.startswith(_STREAM) for n, v in headers)
        if streams:
            parts = self._parts(task)
            if django.VERSION < (5, 0):
                parts = _short(parts)
            response = StreamingHttpResponse(parts, status=first["status"])
        else:
            body = [part async for part in self._parts(task)]
            response = HttpResponse(b"".join(body), status=first["status"])
        for name, value in headers:
            if name.lower() != "content-length":
                response[name] = value
        return response

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._said.put)
        finally:
            await self._said.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _parts(self, task: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        try:
            while (message := await self._said.get()) is not None:
                yield message.get("body", b"")
                if not message.get("more_body", False):
                    break
        finally:
            self._gone.set()
            if not task.done():
                task.cancel()


async def _short(parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yields the parts of a stream for a short time; a browser then reconnects at once."""
    yield b"retry: 100\n\n"
    until = time.monotonic() + _SHORT
    async with aclosing(parts):
        async for part in parts:
            yield part
            if time.monotonic() > until:
                break
