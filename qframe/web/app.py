"""App: the ASGI application: its routes, and how pages and the API are answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from qframe import forks
from qframe import manager as managers
from qframe.exceptions import ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.operations import archive, doctor
from qframe.operations.actions.table import ACTIONS, perform
from qframe.operations.actions.wanted import Wanted
from qframe.operations.board import Board
from qframe.payload.text import one_line
from qframe.web import api, confirm, dispatch_document, pages, prometheus, rendering, told
from qframe.web.access import DISPATCH, DOCTOR, Authorize, Grant
from qframe.web.dispatching import JobPort, Refused
from qframe.web.errors import TITLES, NotAllowed, NotThere, described, problem
from qframe.web.guard import Guard, grant_of
from qframe.web.pages import route_of
from qframe.web.rendering import PageView, Query, own_path

_THREADS = 4
"""How many requests read from backends at once: each thread has its own connections."""
EVERY = 2.0
"""Seconds between two checks whether an open page has changed."""
_STILL = 5
_LONGEST_STREAM = 600.0
"""Seconds after which an open page reconnects, and so is authorized anew."""
_LONGEST_BODY = 200_000
_BODY_WITHIN = 20.0
"""Seconds within which a body must arrive."""
_THEME = "qframe_theme"
_STATIC = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}

T = TypeVar("T")


def app(
    manager: QueueManager | None = None,
    authorize: Authorize | None = None,
    *,
    live: bool = True,
    challenge: bool = False,
    local: bool = False,
) -> ASGIApp:
    """Returns the dashboard as an ASGI application, to run or to mount.

    `manager` holds the connections; by default it is the process's own. `authorize(request)`
    returns what the sender of a request may do: `"none"`, `"read"`, `"act"`, `"dispatch"` (by
    `POST /api/v1/jobs`, nothing else), or the names of actions (`{"retry", "pause"}`); or a
    `Visitor(name, access)`, whose name the log has. It may be `async`. Without `authorize` every
    request is refused.

    With `live=False` open pages do not renew themselves. `challenge` answers 401, so that a browser
    asks for a password; `local` refuses a `Host` that is no loopback name.
    """
    return _Web(manager, live=live).guarded(authorize or (lambda _: "none"), challenge, local)


def wsgi(manager: QueueManager | None = None, authorize: Authorize | None = None) -> Any:  # noqa: ANN401 (a WSGI application has no type of its own)
    """Returns the same as a WSGI application, for Flask and Django; pages do not renew themselves.

    WSGI's `environ` is `request.scope["wsgi_environ"]` of the request that `authorize` gets.
    """
    from a2wsgi import ASGIMiddleware  # noqa: PLC0415 (only here)

    return ASGIMiddleware(app(manager, authorize, live=False))  # type: ignore[arg-type] # the same protocol, named twice


def metrics_app(manager: QueueManager, authorize: Authorize | None = None) -> ASGIApp:
    """Returns an application with Prometheus' page alone; without `authorize`, for loopback."""
    return _Web(manager, live=False).measured(authorize)


class _Web:
    """The handlers, and what they share."""

    def __init__(self, manager: QueueManager | None, *, live: bool) -> None:
        self._manager = manager
        self._live = live
        self._board: Board | None = None
        self._jobs: JobPort | None = None
        self._making = forks.lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-web")
        self._dispatching = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-dispatch")
        folder = files("qframe.web") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}
        self._version = hashlib.sha256(b"".join(self._static.values())).hexdigest()[:12]

    def guarded(self, authorize: Authorize, challenge: bool, local: bool) -> ASGIApp:
        """Returns all routes, behind the guard."""
        routes = [
            Route("/healthz", self._health),
            Route("/static/{name}", self._file),
            Route("/live", self._live_page),
            Route("/theme", self._theme, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/confirm/{action}", self._confirm),
            Route("/actions/{action}", self._act, methods=["POST"]),
            Route("/api/v1/actions/{action}", self._act_api, methods=["POST"]),
            Route("/api/v1/openapi.json", self._openapi),
            Route("/api/v1/doctor", self._doctor, methods=["POST"]),
            Route("/api/v1/jobs", self._dispatch, methods=["POST"]),
            *(
                Route(f"/api{route_of(path)}", partial(self._answer, endpoint))
                for path, endpoint in api.ENDPOINTS.items()
            ),
            *(
                Route(route_of(path), partial(self._page, page))
                for path, page in pages.PAGES.items()
            ),
        ]
        rendering.prepare()
        return Guard(self._routed(routes), authorize, challenge=challenge, local=local)

    def measured(self, authorize: Authorize | None) -> ASGIApp:
        """Returns the page of metrics alone, behind the guard."""
        routes = [Route("/healthz", self._health), Route("/metrics", self._metrics)]
        local = authorize is None
        return Guard(
            self._routed(routes), authorize or (lambda _: "read"), challenge=not local, local=local
        )

    def _routed(self, routes: list[Route]) -> Starlette:
        handlers: dict[Any, Any] = {
            404: self._answer_not_found,
            QframeError: self._answer_error,
            ValidationError: self._answer_error,
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _answer_not_found(self, request: Request, error: Exception) -> Response:
        """Answers that there is no such page: to a browser as a page."""
        is_for_people = "text/html" in request.headers.get("accept", "")
        if not is_for_people or _path(request).startswith(("/api/", "/static/")):
            return await _not_found(request, error)
        view = self._view(request, Query(()), "/")
        view.live = False
        return HTMLResponse(view.message(TITLES[404], "there is no page at this address"), 404)

    async def _answer_error(self, request: Request, error: Exception) -> Response:
        """Answers with an error: to programs as JSON, to people as a page."""
        code, text = described(error)
        path = _path(request)
        if path.startswith("/api/"):
            return JSONResponse({"error": text}, code)
        view = self._view(request, Query(()), path)
        return HTMLResponse(view.message(TITLES[code], text), code)

    # -- reading ----------------------------------------------------------------------------------

    def _see(self) -> Board:
        if self._board is None:
            self._board = Board(self._manager or managers.default())
            _ = self._board.version  # now: the code that runs is that which lies there at the start
        return self._board

    async def _run(self, act: Callable[[], T]) -> T:
        """Runs what waits for a backend, in a thread."""
        return await self._in_thread(self._pool, act)

    async def _in_thread(self, pool: ThreadPoolExecutor, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, act)

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return await _not_found(request, None)
        kept = {"Cache-Control": "private, max-age=3600"}
        return Response(self._static[name], headers=kept, media_type=_STATIC[name])

    def _view(self, request: Request, query: Query, path: str) -> PageView:
        return PageView(
            self._see(),
            grant_of(request),
            query,
            root=request.scope.get("root_path", ""),
            path=path,
            nonce=request.state.nonce,
            version=self._version,
            live=self._live,
            theme=request.cookies.get(_THEME, ""),
        )

    async def _theme(self, request: Request) -> Response:
        """Keeps the theme that somebody chose, in their browser."""
        form = Query(parse_qsl((await _body(request)).decode("utf-8", "replace")))
        root = request.scope.get("root_path", "")
        answer = RedirectResponse(f"{root}{own_path(form.get('back', '/'))}", 303)
        theme = form.get("theme")
        if theme in rendering.THEMES:
            answer.set_cookie(_THEME, theme, 400 * 86400, path=f"{root}/", samesite="lax")
        else:
            answer.delete_cookie(_THEME, path=f"{root}/")
        return answer

    async def _page(self, page: pages.WebPage, request: Request) -> Response:
        query = Query(request.query_params.multi_items())
        # Quoted, as in a link: a name may contain a slash.
        path = _path(request)
        name = next(iter(request.path_params.values()), "")
        path = quote(path.removesuffix(name)) + quote(name, safe="")
        view = self._view(request, query, path)
        return HTMLResponse(await self._run(lambda: page.render(view, request.path_params)))

    async def _confirm(self, request: Request) -> Response:
        """Asks for confirmation, with how many things the action affects; changes nothing."""
        name = request.path_params["action"]
        query = Query(request.query_params.multi_items())
        view = self._view(request, query, f"/confirm/{name}")
        _check_allowed(view.grant, name)
        wanted = _wanted(query.items)
        return HTMLResponse(await self._run(lambda: confirm.question(view, name, wanted)))

    # -- acting -----------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        """Performs the action of a form, and shows the page it came from, with what came of it."""
        body = await _body(request)
        items = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        name, grant = request.path_params["action"], grant_of(request)
        _check_allowed(grant, name)
        back = urlsplit(own_path(Query(items).get("back")))
        try:
            wanted = _wanted(items)
            done = await self._run(lambda: perform(self._see(), name, wanted, grant.shown))
        except (QframeError, ValidationError) as error:
            return await self._refused(request, back, items, error)
        query = [each for each in parse_qsl(back.query) if each[0] not in told.KEYS]
        query += told.parameters(name, wanted, done)
        root = request.scope.get("root_path", "")
        part = f"#{back.fragment}" if back.fragment else ""
        return RedirectResponse(f"{root}{back.path}?{urlencode(query)}{part}", 303)

    async def _refused(
        self, request: Request, back: SplitResult, items: list[tuple[str, str]], error: Exception
    ) -> Response:
        """Shows the page that an impossible action came from, with why, and what was typed."""
        found = pages.find(back.path)
        if found is None or "\0" in unquote(back.path):
            raise error
        page, params = found
        code, text = described(error)
        view = self._view(request, Query(parse_qsl(back.query)), back.path)
        view.trouble, view.form, view.live = text, dict(items), False
        with suppress(QframeError):
            return HTMLResponse(await self._run(lambda: page.render(view, params)), code)
        raise error

    async def _act_api(self, request: Request) -> Response:
        name, grant = request.path_params["action"], grant_of(request)
        _check_allowed(grant, name)
        wanted = Wanted.model_validate_json(await _body(request) or b"{}").by_api()
        done = await self._run(lambda: perform(self._see(), name, wanted, grant.shown))
        return JSONResponse(done.model_dump())

    # -- for programs -----------------------------------------------------------------------------

    async def _answer(self, endpoint: api.Endpoint[Any], request: Request) -> Response:
        given = {**dict(request.query_params), **request.path_params}
        if any("\0" in value for value in given.values()):
            raise ConfigurationError("no backend stores text with NUL in it")
        asked = endpoint.query.model_validate(given)
        answer = await self._run(lambda: endpoint.answer(self._see(), asked))
        return JSONResponse(answer.model_dump(mode="json"))

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(await self._run(lambda: dispatch_document.whole(self._port())))

    async def _dispatch(self, request: Request) -> Response:
        """Dispatches a job for another program, and answers problems as such."""
        grant = grant_of(request)
        try:
            if not grant.allows(DISPATCH):
                raise Refused(403, "you may not dispatch")
            if not request.headers.get("authorization", "").lower().startswith("bearer "):
                raise Refused(403, "jobs are dispatched with a token: Authorization: Bearer ...")
            port = await self._run(self._port)
            port.check_rate(grant.shown)
            body = await _body(request, port.settings.max_bytes)
            key = request.headers.get("idempotency-key")
            done = await self._in_thread(
                self._dispatching, lambda: port.dispatch(body, key, grant.who)
            )
        except Refused as refused:
            return refused.answer
        except HTTPException as error:
            return problem(error.status_code, error.detail)
        root = request.scope.get("root_path", "")
        headers = {"Location": f"{root}/api/v1/jobs/{quote(done.id, safe='')}"}
        if done.duplicate:
            headers["Idempotent-Replayed"] = "true"
        return JSONResponse(done.model_dump(), 201, headers)

    def _port(self) -> JobPort:
        with self._making:
            if self._jobs is None:
                self._jobs = JobPort(self._manager or managers.default())
            return self._jobs

    async def _metrics(self, _request: Request) -> Response:
        text = await self._run(lambda: prometheus.exposition(self._see()))
        return Response(text, media_type=prometheus.CONTENT_TYPE)

    async def _doctor(self, request: Request) -> Response:
        """Gives an archive for a bug report: without secrets, and never with payloads."""
        if not grant_of(request).allows(DOCTOR):
            raise NotAllowed("you may not get the report of the doctor")
        queues = self._see().manager
        report = await run_in_threadpool(doctor.report, queues)  # it may take a minute
        name = archive.file_name(time.time())
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(archive.packed(report), 200, headers, "application/zip")

    # -- live -------------------------------------------------------------------------------------

    async def _live_page(self, request: Request) -> Response:
        """Sends the live part of a page, again whenever it has changed."""
        parts = urlsplit(own_path(request.query_params.get("page", "/")))
        found = pages.find(parts.path)
        if found is None or not self._live or "\0" in unquote(parts.path):
            return await _not_found(request, None)
        page, params = found
        view = self._view(request, Query(parse_qsl(parts.query)), parts.path)

        async def parts_of_it() -> AsyncIterator[str]:
            before, until = "", time.monotonic() + _LONGEST_STREAM
            same = 0
            while time.monotonic() < until and not await request.is_disconnected():
                text = await self._run(lambda: page.live(view, params))
                same = same + 1 if text == before else 0
                if not same:
                    before = text
                    yield f"data: {json.dumps(text)}\n\n"
                else:
                    yield "event: same\ndata:\n\n"  # or nobody would know that it still comes
                await asyncio.sleep(pause(same))

        unbuffered = {"X-Accel-Buffering": "no"}
        return StreamingResponse(parts_of_it(), 200, unbuffered, "text/event-stream")


def pause(same: int) -> float:
    """Returns how long an open page waits that looked the same so many times.

    That is twice as long if nothing happens; a change is then shown within 4 seconds.
    """
    return EVERY if same < _STILL else 2 * EVERY


_MANY = {"uuids"}
_OWN = {"back", *told.KEYS}


def _wanted(items: list[tuple[str, str]]) -> Wanted:
    """Reads what an action acts on from a form or a link. Raises `ValidationError`."""
    given: dict[str, Any] = {}
    for key, value in items:
        if key in _MANY:
            given.setdefault(key, []).append(value)
        elif key not in _OWN and (value or key == "filter"):
            given[key] = value
    return Wanted.model_validate(given)


async def _body(request: Request, longest: int = _LONGEST_BODY) -> bytes:
    """Reads a body of limited size within limited time."""
    body = b""
    try:
        async with asyncio.timeout(_BODY_WITHIN):
            async for part in request.stream():
                body += part
                if len(body) > longest:
                    raise HTTPException(413)
    except TimeoutError:
        raise HTTPException(408) from None
    return body


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _check_allowed(grant: Grant, name: str) -> None:
    if name not in ACTIONS:
        raise NotThere(f"there is no action {one_line(name, 60)!r}")
    if not grant.allows(name):
        raise NotAllowed(f"you may not {name}")


async def _not_found(request: Request, _error: object) -> Response:
    if _path(request).startswith("/api/"):
        return JSONResponse({"error": "not found"}, 404)
    return PlainTextResponse("not found\n", 404)
