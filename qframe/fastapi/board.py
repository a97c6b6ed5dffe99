"""page: the dashboard to mount, behind an `authorize` with the parameters of a route."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from qframe.web import app as web_app

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from qframe.manager import QueueManager

_ANSWER = "qframe.fastapi"
"""The key of the request's scope with the answer of `authorize`."""
_OPEN = "/healthz"


def page(
    authorize: Callable[..., Any], manager: QueueManager | None = None, *, live: bool = True
) -> ASGIApp:
    """Returns the dashboard as an ASGI application: mounted at `/queues` by `app.mount`.

    `authorize` may have the parameters of a route: the `Request`, cookies, `Depends`, `Security`;
    it may be `async`, and raise `HTTPException`. It returns `"none"`, `"read"`, `"act"`, the names
    of actions (`{"retry", "pause"}`), or a `qframe.web.Visitor`. The `dependency_overrides` of the
    application apply.
    """
    return _BoardEndpoint(authorize, web_app(manager, _answer, live=live))


def _answer(request: Request) -> Any:  # noqa: ANN401 (an answer)
    return request.scope[_ANSWER]


class _BoardEndpoint:
    """Calls `authorize` as a route of its own, to its end, before the page answers.

    So an open page does not keep a session open that `authorize` depends on.
    """

    def __init__(self, authorize: Callable[..., Any], board: ASGIApp) -> None:
        self._board = board
        self._door = FastAPI(openapi_url=None)
        may = Depends(authorize)

        async def let_in(request: Request, answer: Any = may) -> Response:  # noqa: ANN401 (an answer)
            request.scope["qframe.answers"].append(answer)
            return Response(status_code=204)

        self._door.add_api_route("/{path:path}", let_in, methods=["GET", "HEAD", "POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path == _OPEN:
            await self._board({**scope, _ANSWER: "none"}, receive, send)
            return
        answers: list[Any] = []
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        parent = scope.get("app")
        self._door.dependency_overrides = getattr(parent, "dependency_overrides", {})
        await self._door({**scope, "qframe.answers": answers}, _nothing, keep)
        if answers and messages and messages[0].get("status") == 204:  # noqa: PLR2004 (let in)
            await self._board({**scope, _ANSWER: answers[0]}, receive, send)
            return
        for message in messages:
            await send(message)


async def _nothing() -> Message:
    """Returns an empty body: the request's own body is the page's."""
    return {"type": "http.request", "body": b"", "more_body": False}
