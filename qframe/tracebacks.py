"""Exceptions as text: for the failed store, and in a few words for people."""

from __future__ import annotations

import traceback

from qframe.names import one_line

_LONGEST_MESSAGE = 10_000
_LONGEST_TRACEBACK = 32_000


def full(error: BaseException) -> str:
    """Give the traceback with its causes, capped in the middle; never the local variables."""
    try:
        elsewhere = getattr(error, "traceback_elsewhere", None)  # of an error in a child process
        text = str(elsewhere or "".join(traceback.format_exception(error)))
    except Exception as trouble:  # noqa: BLE001 (an exception whose own __str__ raises)
        text = f"{type(error).__name__} (its text could not be made: {type(trouble).__name__})\n"
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST_TRACEBACK:
        return text
    head = _LONGEST_TRACEBACK - _LONGEST_MESSAGE
    return (
        f"{text[:head]}\n... {len(text) - _LONGEST_TRACEBACK} characters left out ...\n"
        + (text[-_LONGEST_MESSAGE:])
    )


def brief(error: BaseException, limit: int = 300) -> str:
    """Give class and message in one printable line."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        message = "(no message)"
    name = type(error).__name__
    return one_line(f"{name}: {message}" if message else name, limit)
