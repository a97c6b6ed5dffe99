"""Guard: delays a raising signal handler until the current driver call has returned.

A signal handler that raises, to end the running job, could interrupt a call on a connection at any
byte code and leave it in the middle of an exchange. Each driver call runs inside `guarded`; the
outermost call on the thread raises the delayed interruption when it returns.
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

_MOMENT = 0.001


class _ThreadGuard(threading.local):
    depth = 0
    interruption: BaseException | None = None
    before: Callable[[], bool] | None = None


_thread = _ThreadGuard()


class _Guarded:
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
"""The context of a driver's call to its backend; may be nested."""


def busy() -> bool:
    """Whether this thread is inside a driver call."""
    return _thread.depth > 0


def interrupt(error: BaseException, frame: FrameType | None = None) -> None:
    """Raise `error` now, or when the thread's current driver call has returned.

    The worker's signal handlers call this in the main thread, with the frame that they interrupted.
    The interpreter would swallow an error inside a finalizer, and the job would run on; in that
    case SIGALRM fires again in a moment. In a job that only dispatches and drops, that is one alarm
    in ten.
    """
    if _thread.depth:
        _thread.interruption = error
    elif _finalizing(frame):
        defer(error)
    else:
        _thread.interruption = None
        raise error


def defer(error: BaseException) -> None:
    """Raise `error` in a moment, outside of the finalizer, when SIGALRM (the worker's own) fires.

    A pending alarm is not postponed: finalizers may follow each other closely.
    """
    _thread.interruption = error
    if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 2 * _MOMENT:
        signal.setitimer(signal.ITIMER_REAL, _MOMENT)


def hold() -> None:
    """Delay interruptions until `let_go`, where they would be swallowed (in fork callbacks)."""
    _thread.depth += 1


def let_go() -> None:
    """Raise the interruption that came since `hold`, in a moment."""
    _thread.depth -= 1
    late = _thread.interruption
    if late is not None and _thread.depth == 0 and _on_main_thread():
        defer(late)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def here() -> dict[str, Any]:
    """Return this thread's state (`depth` and `interruption`), for other threads to read."""
    return _thread.__dict__


def _finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _FINALIZE or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


_FINALIZE = weakref.finalize.__call__.__code__


def pending() -> BaseException | None:
    """Return the interruption that waits for this thread's driver call to return."""
    return _thread.interruption


def forget_interruption() -> None:
    """Drop an interruption whose job has already ended."""
    _thread.interruption = None


def before_next_call(action: Callable[[], bool]) -> None:
    """Call `action` before the thread's next driver call; again before the one after, if false."""
    _thread.before = action


def _do_before() -> None:
    action, _thread.before = _thread.before, None
    done = False
    try:
        done = action is None or action()
    finally:
        if not done:
            _thread.before = action
