"""Messages between the process of a job and its worker: lines of JSON.

They include errors and ends, which are made again on the other side.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from qframe import exceptions
from qframe.contracts.status import State
from qframe.exceptions import Interruption
from qframe.features import status
from qframe.features.base import End
from qframe.payload import tracebacks
from qframe.worker import outcome

Message = dict[str, Any]

_LONGEST = 1024 * 1024
"""Characters of an error's message that are sent; a long traceback keeps both its ends."""
_HOMES = {each.__name__: each for each in (builtins, exceptions, outcome)}
_FIELDS = tuple(field.name for field in dataclasses.fields(End))


class ElsewhereError(Exception):
    """An error raised in the job's process, of a class that is only known there."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def packed(error: BaseException | str | None) -> Message | None:
    """Returns an error as it is sent: class, message, and the traceback as text."""
    if not isinstance(error, BaseException):
        return None
    try:
        text = str(error)[:_LONGEST]
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        text = "(no message)"
    return {
        "class": type(error).__name__,
        "module": str(type(error).__module__),
        "text": text,
        "traceback": tracebacks.full(error),
    }


def unpacked(error: Message | None, own: Iterable[object] = ()) -> BaseException | None:
    """Makes an error again, or None: one of qframe's own by its class, any other by name.

    An error of a built-in class is an instance of it, too. If it is one of `own`, that one returns.
    """
    if error is None:
        return None
    for each in own:
        if isinstance(each, BaseException) and tracebacks.full(each) == error["traceback"]:
            return each
    name, home = error["class"], _HOMES.get(error["module"])
    body = {"__module__": error["module"]}
    with suppress(Exception):  # some need more than a message
        known = getattr(home, name)
        if issubclass(known, Exception | Interruption):
            if home is builtins:
                known = type(name, (ElsewhereError, known), body)
            return _named(known, error)
    return _named(type(name, (ElsewhereError,), body), error)


def _named(kind: type[BaseException], error: Message) -> BaseException:
    made = kind(error["text"])
    made.__dict__["traceback_elsewhere"] = error["traceback"]  # read by tracebacks.full
    return made


def packed_end(end: End) -> Message:
    result = None if end.result is None else status.as_json(end.result)
    return {name: getattr(end, name) for name in _FIELDS} | {
        "error": packed(end.error),
        "result": result,
    }


def unpacked_end(end: Message, own: Iterable[object] = ()) -> End:
    fields = {name: end[name] for name in _FIELDS}
    fields["state"] = State(end["state"])
    fields["error"] = unpacked(end["error"], own)
    fields["result"] = None if end["result"] is None else status.Encoded(*end["result"])
    return End(**fields)


def line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
