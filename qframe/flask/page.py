"""The dashboard as a blueprint: `app.register_blueprint(page(may), url_prefix="/queues")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flask import Blueprint, current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from qframe import manager
from qframe.manager import QueueManager

if TYPE_CHECKING:
    from starlette.requests import Request

    from qframe.web import Access, Visitor

_ANSWER = "qframe.flask"
"""The key of the request's environment with the answer of `authorize`."""
_PAGE = "qframe.page"
"""The key of an application's extensions with the view, and the manager it shows."""


def page(
    authorize: Callable[[], Access | Visitor | ResponseReturnValue | None],
    name: str = "qframe",
) -> Blueprint:
    """Returns the dashboard as a blueprint to be registered under any prefix.

    `authorize()` returns what the sender of the request may do: `"none"`, `"read"`, `"act"`, the
    names of actions (`{"retry", "pause"}`), or a `Visitor(name, access)`. It runs within Flask's
    request: `session`, `current_user` of flask-login and `abort` are there. If it returns a
    response, such as `redirect(...)`, that is sent.
    """
    board = Blueprint(name, __name__)

    @board.route("/", defaults={"path": ""}, methods=["GET", "POST"])
    @board.route("/<path:path>", methods=["GET", "POST"])
    def show(path: str) -> ResponseReturnValue:
        answer: Any = authorize()
        if isinstance(answer, Response):
            return answer
        return Response.from_app(_application(), _below(path, answer), buffered=True)

    return board


def _application() -> Any:  # noqa: ANN401 (a WSGI application)
    """Returns that of the manager here, made with the first request: a server may fork before."""
    queues = manager.default()
    made_of, made = current_app.extensions.get(_PAGE, (None, None))
    if made_of is not queues:
        made = _made(queues)
        current_app.extensions[_PAGE] = queues, made
    return made


def _made(queues: QueueManager) -> Any:  # noqa: ANN401 (as above)
    from qframe.web import wsgi  # noqa: PLC0415 (an extra)

    def authorize(asked: Request) -> Any:  # noqa: ANN401 (an answer)
        return asked.scope["wsgi_environ"][_ANSWER]

    return wsgi(queues, authorize)


def _below(path: str, answer: object) -> dict[str, Any]:
    """Returns the environment of the request for an application mounted here."""
    raw = request.environ.get("PATH_INFO", "")
    rest = path.encode().decode("latin-1")
    prefix = raw[: len(raw) - len(rest)].rstrip("/")
    return {
        **request.environ,
        "SCRIPT_NAME": request.environ.get("SCRIPT_NAME", "").rstrip("/") + prefix,
        "PATH_INFO": f"/{rest}",
        _ANSWER: answer,
    }
