"""Errors, and ends, as they travel between the process of a job and its worker."""

from __future__ import annotations

import builtins
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

_LONGEST_TEXT = 1024 * 1024
"""Characters of an error's message that travel: as JSON each may be six bytes."""
_OURS = {exceptions.__name__: exceptions, outcome.__name__: outcome}
_PLAIN = ("delay", "remark", "how", "refused", "ran", "front", "priority")


class ElsewhereError(Exception):
    """An error that was raised in the job's process, of a class that is only known there."""

    def __str__(self) -> str:
        """Give the message it had there."""
        return str(self.args[0]) if self.args else ""


def packed(error: BaseException | str | None) -> Message | None:
    """Give an error as it travels: class, message, and the traceback as text."""
    if not isinstance(error, BaseException):
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        text = "(no message)"
    kind = type(error)
    return {
        "class": kind.__name__,
        "module": kind.__module__,
        "text": _shortened(text),
        "traceback": tracebacks.full(error),
    }


def _shortened(text: str) -> str:
    """Leave out the middle of a text that is too long to travel."""
    half = _LONGEST_TEXT // 2
    left_out = len(text) - 2 * half
    if left_out <= 0:
        return text
    return f"{text[:half]}\n... {left_out:,} characters left out ...\n{text[-half:]}"


def unpacked(error: Message | None) -> BaseException | None:
    """Make an error again: one of qframe's own by its class, any other by name.

    That of a built-in class is an instance of it, too.
    """
    if error is None:
        return None
    name, text, module = str(error["class"]), str(error["text"]), error["module"]
    made: BaseException | None = None
    with suppress(Exception):  # some are made from more than a message
        if module in _OURS:
            known = getattr(_OURS[module], name)
            if issubclass(known, Exception | Interruption):
                made = known(text)
        elif module == builtins.__name__:
            known = getattr(builtins, name)
            if issubclass(known, Exception):
                made = type(name, (ElsewhereError, known), {})(text)
    if made is None:
        made = type(name, (ElsewhereError,), {})(text)
    made.__dict__["traceback_elsewhere"] = error["traceback"]  # read by tracebacks.full
    return made


def packed_end(end: End) -> Message:
    """Give how a job is to end, as it travels."""
    return {
        "state": end.state.value,
        "error": packed(end.error),
        "result": None if end.result is None else status.as_json(end.result),
        **{key: getattr(end, key) for key in _PLAIN},
    }


def unpacked_end(end: Message) -> End:
    """Make it again."""
    return End(
        State(end["state"]),
        error=unpacked(end["error"]),
        result=None if end["result"] is None else status.Encoded(*end["result"]),
        **{key: end[key] for key in _PLAIN},
    )
