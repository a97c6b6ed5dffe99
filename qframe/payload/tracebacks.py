"""Exceptions as text: for the failed store, and in a few words for people."""

from __future__ import annotations

import re
import traceback

from qframe.payload.text import one_line

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
    """Give class and message in one printable line: `Type: first line ...`."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        message = "(no message)"
    name = type(error).__name__
    return _first_line(f"{name}: {message.lstrip()}" if message.strip() else name, limit)


def brief_of(text: str, limit: int = 300) -> str:
    """Give the same of an exception kept as text: a Python traceback, or what Laravel keeps."""
    return _first_line(parts_of(text)[1], limit)


def parts_of(text: str) -> tuple[str, str]:
    """Give the frames of an exception kept as text, and what it says; of a chain, the last one's.

    The frames are "" where the text is no Python traceback.
    """
    last = _CHAINED.split(text.strip("\n"))[-1]
    if last.startswith((_GROUP, _HEAD_OF_GROUP)):
        last = "\n".join(line.removeprefix(_GROUP) for line in last.split("\n"))
    head, _, rest = last.partition("\n")
    if not head.strip(" +").endswith(_HEAD):
        return "", last
    frames = _FRAMES.match(rest)
    at = frames.end() if frames else 0
    return rest[:at], rest[at:]


_HEAD = "Traceback (most recent call last):"
_GROUP = "  | "
_HEAD_OF_GROUP = f"  + Exception Group {_HEAD}"
_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
    rf"(?={re.escape(_HEAD)}|{re.escape(_HEAD_OF_GROUP)})"
)
_FRAMES = re.compile(r"(?: .*\n|\n|\.\.\. \d+ characters left out \.\.\.\n.*\n)*")
"""What stands between the head of a traceback and the line that names the exception."""


def _first_line(text: str, limit: int) -> str:
    first, *others = text.strip().splitlines() or [""]
    more = " ..." if any(line.strip() for line in others) else ""
    return one_line(first, limit - len(more)) + more
