"""Stacks as text, a line `file:line function` for each call, the innermost first.

A thread takes them while it gets the interpreter. While other code keeps that, such as a long call
into C, the supervisor has `faulthandler` write the stack: its handler of a signal needs no Python.
"""

from __future__ import annotations

import asyncio
import re
import signal
from types import FrameType
from typing import Any

from qframe.jobs import execution
from qframe.payload import tracebacks
from qframe.payload.tracebacks import calls_application, is_own, package_of
from qframe.worker.recorder.memory import LONGEST_STACK

SIGNAL = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else 0
"""What makes `faulthandler` write the main thread's stack; 0: not on this system."""
BEGIN = signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else 0
"""What makes the process of a job take its stacks; 0: it does so from its start on."""
FATAL = "Fatal Python error"
_MOST = 60
_WRITTEN = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_RAISED = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_CALL = re.compile(r"^(.*):(\d+|\?+) (.*)$")


def of_frame(frame: FrameType | None) -> bytes:
    """Returns the calls of a frame, without those of qframe that called the job."""
    found: list[tuple[str, str]] = []
    while frame is not None and len(found) < _MOST:
        code = frame.f_code
        found.append((code.co_filename, f"{frame.f_lineno} {code.co_qualname}"))
        frame = frame.f_back
    return _as_text(found)


def of_task(task: asyncio.Task[Any]) -> bytes:
    """Returns the calls of a task that waits: where each of its coroutines awaits the next."""
    found: list[tuple[str, str]] = []
    each: Any = task.get_coro()
    while each is not None and len(found) < _MOST:
        frame = getattr(each, "cr_frame", None) or getattr(each, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            found.append((code.co_filename, f"{frame.f_lineno} {code.co_qualname}"))
        each = next(
            (
                inner
                for name in ("cr_await", "gi_yieldfrom", "ag_await")
                if (inner := getattr(each, name, None)) is not None
            ),
            None,
        )
    return _as_text(found[::-1])


def _as_text(found: list[tuple[str, str]]) -> bytes:
    outer = next((n for n, (file, _) in enumerate(found) if file == execution.__file__), 0)
    if outer:
        del found[outer:]
    while found and calls_application(found[-1][0]):
        found.pop()
    text = "\n".join(f"{file}:{rest}" for file, rest in found)
    return text.encode("utf-8", "backslashreplace")[:LONGEST_STACK]


def of_dump(dump: str) -> list[str]:
    """Returns the calls of the current thread in what `faulthandler` wrote; the latest dump's."""
    calls: list[tuple[str, str]] = []
    is_current = False
    for line in dump.splitlines():
        if found := _WRITTEN.match(line):
            if is_current:
                calls.append((found[1], f"{found[2]} {found[3]}"))
        else:
            is_current = line.startswith(("Current thread", "Stack (most recent"))
            calls = [] if is_current else calls
    return _as_text(calls[:_MOST]).decode("utf-8", "replace").splitlines()


def of_error(error: BaseException) -> list[str]:
    """Returns the calls in the traceback of an error, without those that interrupted the job."""
    text, _ = tracebacks.parts_of(tracebacks.full(error))
    calls = [(found[1], f"{found[2]} {found[3]}") for found in _RAISED.finditer(text)]
    while calls and calls_application(calls[-1][0]):
        calls.pop()
    return _as_text(calls[: -_MOST - 1 : -1]).decode("utf-8", "replace").splitlines()


def place_of(calls: list[str]) -> str:
    """Returns where that is in the application's code, and what it had called there, in words."""
    inner = ""
    for call in calls:
        found = _CALL.match(call)
        if found is None:
            continue
        file, line, function = found.groups()
        if is_own(file):
            place = f"{file.rpartition('/')[2]}:{line}"
            return f"in {inner or function} at {place}"
        name = function.rpartition(".")[2]
        inner = ".".join(filter(None, (package_of(file), name)))
    return f"in {inner}" if inner else ""
