"""Errors: the status code and the sentence of an answer that is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from qframe.exceptions import BackendUnavailable, QframeError
from qframe.payload.text import one_line

TITLES = {
    403: "You may not do that",
    404: "Not found",
    422: "That is not possible",
    503: "The backend does not answer",
}


class NotThere(QframeError):
    """The requested thing does not exist."""


class NotAllowed(QframeError):
    """The visitor may not do this."""


_CODES = {NotAllowed: 403, NotThere: 404, BackendUnavailable: 503}


def described(error: Exception) -> tuple[int, str]:
    """Returns the status code and the text of an error."""
    if isinstance(error, ValidationError):
        return 422, _first_of(error)
    codes = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return next(codes, 422), str(error)


def problem(
    code: int,
    detail: str,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Returns an answer to a program, as RFC 9457 says; `errors` are pydantic's."""
    said: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(code).phrase,
        "status": code,
        "detail": detail,
    }
    if errors:
        said["errors"] = list(errors)
    return JSONResponse(said, code, headers, "application/problem+json")


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return one_line(f"{where}: {first['msg']}" if where else first["msg"], 300)
