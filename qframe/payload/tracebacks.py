"""Exceptions as text: in full for the failed store, and short for people."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import NamedTuple

from qframe.payload.text import one_line, printable

_OURS = str(Path(__file__).parents[1])
_BETWEEN_TASKS = str(Path(_OURS, "worker", "slots", "interrupts.py"))
"""Where the steps of a task that a job has started are timed, below the job's own frames."""
_PLUMBING = re.compile(r"/lib/python3[^/]*/(?:asyncio|concurrent|threading\.py|contextlib\.py)|^<")
"""Modules of the standard library that call jobs."""
_LIBRARY = re.compile(r"/lib/python3[^/]*/(?!site-packages)|^<")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/vendor/")
_PACKAGE = re.compile(
    r"(?:/(?:site|dist)-packages|/vendor|/lib/python3[^/]*)/(?!(?:site|dist)-packages/)(\w+)"
)
_FRAME = re.compile(
    r'^ *File "([^"\n]+)", line (\d+), in (.+)(?:\n    (?! *File )(.*))?', re.MULTILINE
)
_LONGEST_MESSAGE = 10_000
_LONGEST_TRACEBACK = 32_000


def is_own(file: str) -> bool:
    return not (_PACKAGES.search(file) or _LIBRARY.search(file) or file.startswith(_OURS))


def is_of_package(file: str) -> bool:
    """Whether a file belongs to an installed package other than qframe."""
    return bool(_PACKAGES.search(file)) and not file.startswith(_OURS)


def package_of(file: str) -> str:
    """Return the installed package, or the module of the standard library, that a file is of."""
    if file.startswith(_OURS):
        return "qframe"
    found = _PACKAGE.search(file)
    return "" if found is None else found[1]


def full(error: BaseException) -> str:
    """Return the traceback with its causes, shortened in the middle; never the local variables.

    It begins where qframe called the application's code.
    """
    try:
        elsewhere = getattr(error, "traceback_elsewhere", None)  # of an error in a child process
        text = str(elsewhere or "".join(_begun_outside(error).format()))
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


def _begun_outside(error: BaseException) -> traceback.TracebackException:
    """Return an exception to format, without qframe's frames at the beginning.

    If it has no other frames, it keeps them.
    """
    made = traceback.TracebackException.from_exception(error)
    left = [made]
    while left:
        each = left.pop()
        frames = each.stack or ()
        first = next(
            (at for at, frame in enumerate(frames) if not calls_application(frame.filename)), 0
        )
        own = frames[first:]
        each.stack[:] = [frame for frame in own if frame.filename != _BETWEEN_TASKS] or own
        left += each.exceptions or ()
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
    return made


def calls_application(file: str) -> bool:
    """Whether a file belongs to what calls the application: qframe, or Python's own machinery."""
    return file.startswith(_OURS) or bool(_PLUMBING.search(file))


def lines(error: BaseException) -> list[str]:
    return [printable(line) for line in full(error).splitlines()]


def placed(error: BaseException, limit: int = 300) -> str:
    """Return type and message in a line, with the place in the application that raised it."""
    place = place_of(error)
    return f"{brief(error, limit)} ({place})" if place else brief(error, limit)


def place_of(error: BaseException) -> str:
    """Return file and line of the application's innermost frame; "" if there is none."""
    file = getattr(error, "filename", None) if isinstance(error, SyntaxError) else None
    if file and is_own(file):
        return one_line(f"{file}:{error.lineno}")  # type: ignore[attr-defined] # a SyntaxError's
    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_own(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{number}"
    return one_line(found)


def brief(error: BaseException, limit: int = 300) -> str:
    """Return type and message in one printable line: `Type: first line ...`."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        message = "(no message)"
    name = type(error).__name__
    return _first_line(f"{name}: {message.lstrip()}" if message.strip() else name, limit)


def brief_of(text: str, limit: int = 300) -> str:
    """Return the same for an exception stored as text: a Python traceback, or Laravel's text."""
    return _first_line(parts_of(text)[1], limit)


def parts_of(text: str) -> tuple[str, str]:
    """Return the frames and the message of an exception stored as text; of a chain, the last one's.

    The frames are "" if the text is not a Python traceback.
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
"""The part between the head of a traceback and the line with the exception."""


def _first_line(text: str, limit: int) -> str:
    first, *others = text.strip().splitlines() or [""]
    more = " ..." if any(line.strip() for line in others) else ""
    return one_line(first, limit - len(more)) + more


class OwnFrame(NamedTuple):
    """A line of a traceback in the application's own code."""

    place: str
    """File, line and function."""
    code: str


def own_frames(text: str, most: int = 20) -> list[OwnFrame]:
    """Return the lines of a traceback in the application's own code, the last first."""
    found = [
        OwnFrame(f"{file}:{line} in {function}", code.strip())
        for file, line, function, code in _FRAME.findall(text)
        if is_own(file)
    ]
    return found[: -most - 1 : -1]
