"""Keeps out of a driver call what must not break into it.

A signal handler that raises, to end the running job, can break into a call on a connection at any
byte code, and would leave it in the middle of an exchange. Each driver call runs inside
`guarded`; what came meanwhile is raised when the outermost call on the thread has returned.
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

_MOMENT = 0.001


class _Thread(threading.local):
    """What one thread is in the middle of."""

    depth = 0
    interruption: BaseException | None = None
    before: Callable[[], bool] | None = None


_thread = _Thread()


class _Guarded:
    """Marks the thread as busy with a connection."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _thread.before is not None and _thread.depth == 0:
            _do_before()
        _thread.depth += 1

    def __exit__(self, *_: object) -> None:
        _thread.depth -= 1
        if _thread.interruption is not None and _thread.depth == 0:
            late, _thread.interruption = _thread.interruption, None
            raise late


guarded = _Guarded()
"""The context in which a driver talks to its backend; may be nested."""


def busy() -> bool:
    """Whether this thread is inside a driver call."""
    return _thread.depth > 0


def interrupt(error: BaseException, frame: FrameType | None = None) -> None:
    """Raise `error` now, or when the driver call this thread is in has returned.

    Called by the worker's signal handlers, in the main thread, with the frame they broke into.
    Inside a finalizer the interpreter would swallow it, and the job run on: there SIGALRM rings
    again in a moment. One alarm in ten hits one in a job that only dispatches and drops.
    """
    if _thread.depth:
        _thread.interruption = error
    elif _finalizing(frame):
        defer(error)
    else:
        _thread.interruption = None
        raise error


def defer(error: BaseException) -> None:
    """Raise `error` in a moment, outside of the finalizer: SIGALRM, the worker's own, rings then.

    One that is on its way is not put off: finalizers may follow each other closely.
    """
    _thread.interruption = error
    if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 2 * _MOMENT:
        signal.setitimer(signal.ITIMER_REAL, _MOMENT)


def hold() -> None:
    """Raise nothing until `let_go`: the callbacks of a fork, say, would swallow it."""
    _thread.depth += 1


def let_go() -> None:
    """Raise in a moment what came since `hold`."""
    _thread.depth -= 1
    late = _thread.interruption
    if late is not None and _thread.depth == 0 and _on_main_thread():
        defer(late)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def here() -> dict[str, Any]:
    """Give what this thread is in the middle of: `depth` and `interruption`, for other threads."""
    return _thread.__dict__


def _finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _FINALIZE or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


_FINALIZE = weakref.finalize.__call__.__code__


def pending() -> BaseException | None:
    """Give the interruption that waits for a driver call on this thread to return."""
    return _thread.interruption


def forget_interruption() -> None:
    """Drop an interruption that came too late: its job has ended."""
    _thread.interruption = None


def before_next_call(action: Callable[[], bool]) -> None:
    """Do this before the next driver call on this thread; again before the one after, if false."""
    _thread.before = action


def _do_before() -> None:
    action, _thread.before = _thread.before, None
    done = False
    try:
        done = action is None or action()
    finally:
        if not done:
            _thread.before = action
