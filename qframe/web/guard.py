"""Guard: checks before every page: the visitor, the origin, and what a browser may do."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qframe.exceptions import ConfigurationError
from qframe.web.access import DISPATCH, NOBODY, Authorize, Grant, LockedOut, asked
from qframe.web.errors import problem

log = logging.getLogger("qframe")

_ASK = {"WWW-Authenticate": 'Basic realm="qframe", charset="UTF-8"'}
_SAFE = {"GET", "HEAD", "OPTIONS"}
_OPEN = {"/healthz"}
"""Answered to everybody: that the page runs, and nothing else."""
_DISPATCHING = ("POST", "/api/v1/jobs")
_FOR_DISPATCHERS = {_DISPATCHING, ("GET", "/api/v1/openapi.json")}
"""All that is open to who may dispatch and nothing else."""


class Guard:
    """Lets a request through to the page, or answers it.

    - `authorize` returns the visitor and what they may do; without access to read, the answer is
      401 or 403, except that who may dispatch does so.
    - A request that changes something must come from the page itself: `Sec-Fetch-Site:
      same-origin`, or, from a browser that does not send it, an `Origin` that is this host. A
      request with a token in `Authorization: Bearer` comes from no misled browser, and needs
      neither.
    - `local` requires a loopback name as `Host` unless a password is required: otherwise a foreign
      page could make its own name resolve to this host.
    - Each answer has a policy with its own nonce, and must not be framed, kept, or sniffed.
    """

    def __init__(self, app: ASGIApp, authorize: Authorize, *, challenge: bool, local: bool) -> None:
        self._app = app
        self._authorize = authorize
        self._challenge = challenge
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        request = Request(scope, receive)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _headers(nonce).items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._refusal(request, scope, nonce)
        if refusal is not None and _asks(request, scope) == _DISPATCHING:
            text = bytes(refusal.body).decode().strip()
            kept = ("www-authenticate", "retry-after")
            headers = {key: value for key, value in refusal.headers.items() if key in kept}
            refusal = problem(refusal.status_code, text, headers=headers)
        await (refusal or self._app)(scope, receive, with_headers)

    async def _refusal(self, request: Request, scope: Scope, nonce: str) -> Response | None:
        """Returns why a request is refused; None lets it through, with its grant."""
        if self._local and not is_loopback(_name(request.headers.get("host", ""))):
            return _answer("this page is for localhost; set a password to open it to others", 421)
        if _path(scope) in _OPEN and request.method in _SAFE:
            return None
        try:
            grant = await asked(self._authorize, request)
        except LockedOut as error:
            return _answer(str(error), 429, {"Retry-After": f"{error.seconds:.0f}"})
        except ConfigurationError as error:
            log.error("%s", error)  # noqa: TRY400 (the message names the mistake)
            grant = NOBODY
        may_dispatch = grant.allows(DISPATCH) and _asks(request, scope) in _FOR_DISPATCHERS
        if not (grant.reads or may_dispatch):
            return (
                _answer("a password or token is required", 401, _ASK)
                if self._challenge and grant is NOBODY
                else _answer("forbidden", 403)
            )
        if "\0" in scope["path"]:
            return _answer("there is no such page", 404)
        return self._admitted(request, scope, grant, nonce)

    def _admitted(
        self, request: Request, scope: Scope, grant: Grant, nonce: str
    ) -> Response | None:
        """Refuses what another site makes a browser send; else notes the visitor in the scope."""
        if request.method not in _SAFE and not _is_from_here(request):
            return _answer("this request did not come from the dashboard", 403)
        scope["state"] = {**scope.get("state", {}), "grant": grant, "nonce": nonce}
        return None


def grant_of(request: Request) -> Grant:
    """Returns what the sender of a request may do."""
    grant: Grant = request.state.grant
    return grant


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone, by its name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_from_here(request: Request) -> bool:
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return True
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and _netloc(origin) == request.headers.get("host", "").lower() != ""


def _netloc(origin: str) -> str:
    """Returns host and port of an origin as a browser names them in `Host`."""
    try:
        parts = urlsplit(origin.lower())
        default = {"http": 80, "https": 443}.get(parts.scheme)
        if default is None:
            return ""
        host = parts.netloc
        return host.removesuffix(f":{default}") if parts.port == default else host
    except ValueError:
        return ""


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _asks(request: Request, scope: Scope) -> tuple[str, str]:
    return request.method, _path(scope)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _headers(nonce: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # None to other sites. With `no-referrer`, a form would send `Origin: null`.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }


def _answer(text: str, code: int, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", code, headers)
