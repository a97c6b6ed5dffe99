"""Forks at each moment of a first dispatch in another thread, and dispatches in the child.

`python -m tests.support.forking_dispatches HOW MOMENTS MODULE...`, with the configuration in the
environment. HOW: `send` has a thread send, `drop` has the pusher push what was dropped. Each moment
is of a process of its own, forked from one that has imported the modules and used nothing yet.
Prints the moments at which a child did not end, or not well.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from qframe import Queueable, dispatch
from qframe.dispatch import pusher

_HELD = 0.1
"""Seconds the thread is held for: a fork that waits for it is not held up for longer."""
_DEADLINE = 10.0
_LATER = 10**9
"""The moment at which the thread ends, and closes what it had open."""
_ENDS = 5
"""So often the fork is made then."""


class Mark(Queueable):
    word: str

    def handle(self) -> None:
        pass


class Moments:
    """Counts what a thread does, a line of qframe or a call of anything else at a time."""

    def __init__(self, moment: int) -> None:
        self.count = 0
        self.reached = threading.Event()
        self.forked = threading.Event()
        self.where = ""
        self._moment = moment

    def trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if event in {"call", "line"}:
            self.count += 1
            if self.count == self._moment:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.reached.set()
                self.forked.wait(_HELD)
        return self.trace if "/qframe/" in frame.f_code.co_filename else None


def _send() -> None:
    dispatch(Mark(word="thread")).send()


def _drop() -> None:
    dispatch(Mark(word="dropped"))


def _first(how: str, moments: Moments) -> threading.Thread:
    """Have the first dispatch done, traced, by another thread."""

    def run() -> None:
        sys.settrace(moments.trace)
        try:
            _send()
        finally:
            sys.settrace(None)
            moments.reached.set()

    push = pusher._Pusher._run

    def traced(self: pusher._Pusher) -> None:
        sys.settrace(moments.trace)
        push(self)

    if how == "send":
        thread = threading.Thread(target=run)
        thread.start()
        return thread
    pusher._Pusher._run = traced  # type: ignore[method-assign]
    _drop()

    def wait() -> None:
        pusher.wait()
        moments.reached.set()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _try(how: str, moment: int) -> tuple[str, int]:
    """Fork at a moment; gives what went wrong, and how many moments there were."""
    moments = Moments(moment)
    thread = _first(how, moments)
    moments.reached.wait()
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(_DEADLINE, exit=True)
        try:
            dispatch(Mark(word="child")).send()
            _drop()
            pusher.wait()
        except BaseException as error:  # noqa: BLE001 (the one who waits is told)
            sys.stderr.write(f"{error!r}\n")
            os._exit(3)
        os._exit(0)
    moments.forked.set()
    _, status = os.waitpid(child, 0)
    thread.join(_DEADLINE)
    code = os.waitstatus_to_exitcode(status)
    wrong = [f"the child's exit code is {code}"] if code else []
    wrong += ["the thread hangs"] if thread.is_alive() else []
    return "; ".join(f"{moment} ({moments.where}): {each}" for each in wrong), moments.count


def _apart(how: str, moment: int) -> tuple[str, int]:
    """Do it in a process of its own."""
    ours, its = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ours)
        wrong, count = _try(how, moment)
        os.write(its, f"{count} {wrong}".encode())
        os._exit(0)
    os.close(its)
    with os.fdopen(ours) as told:
        said, _, wrong = told.read().partition(" ")
    os.waitpid(pid, 0)
    return wrong, int(said)


def main() -> None:
    how, wanted, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    _, count = _apart(how, _LATER)
    step = max(1, count // int(wanted))
    began = time.monotonic()
    tried = 0
    for moment in (*range(1, count, step), *[_LATER] * _ENDS):
        wrong, _ = _apart(how, moment)
        tried += 1
        if wrong:
            print(wrong, flush=True)
    print(f"{tried} of {count} moments in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
