"""Keeps out of a driver call what must not break into it.

Two things can break into a call on a connection at any byte code: a signal handler that raises
to end the running job, and the garbage collector sending a dropped dispatch. Both would leave
the connection in the middle of an exchange. Each driver call runs inside `guarded()`; what came
meanwhile happens when the outermost call on the thread has returned.
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType

_MOMENT = 0.001


class _Thread(threading.local):
    """What one thread is in the middle of."""

    depth = 0
    interruption: BaseException | None = None

    def __init__(self) -> None:
        self.postponed: list[Callable[[], None]] = []


_thread = _Thread()


class _Guarded:
    """Marks the thread as busy with a connection."""

    __slots__ = ()

    def __enter__(self) -> None:
        _thread.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _thread.depth -= 1
        if _thread.depth == 0 and (_thread.postponed or _thread.interruption):
            _catch_up()


class _Unraised(_Guarded):
    """Like `guarded`, for code whose exceptions the interpreter swallows (finalizers)."""

    __slots__ = ()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _thread.depth -= 1
        if _thread.depth:
            return
        while _thread.postponed:  # each reports its own errors
            _thread.postponed.pop(0)()
        if _thread.interruption:
            _ring_again()


_GUARDED = _Guarded()
_UNRAISED = _Unraised()


def guarded() -> _Guarded:
    """Give the context in which a driver talks to its backend; may be nested."""
    return _GUARDED


def unraised() -> _Unraised:
    """Give the context for a driver call made by a finalizer, from which nothing can be raised."""
    return _UNRAISED


def busy() -> bool:
    """Whether this thread is inside a driver call."""
    return _thread.depth > 0


def interrupt(error: BaseException, frame: FrameType | None = None) -> None:
    """Raise `error` now, or when the driver call this thread is in has returned.

    Called by the worker's signal handlers, in the main thread, with the frame they broke into.
    Inside a finalizer the interpreter would swallow it, and a dropped dispatch would be lost
    unsent: there SIGALRM rings again in a moment.
    """
    if _thread.depth:
        _thread.interruption = error
    elif _finalizing(frame):
        _thread.interruption = error
        _ring_again()
    else:
        _thread.interruption = None
        raise error


def _ring_again() -> None:
    """Let SIGALRM, which is the worker's own, ring in a moment, outside of the finalizer.

    One that is on its way is not put off: finalizers may follow each other closely.
    """
    if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 2 * _MOMENT:
        signal.setitimer(signal.ITIMER_REAL, _MOMENT)


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


def postpone(action: Callable[[], None]) -> None:
    """Run `action` when the driver call this thread is in has returned."""
    _thread.postponed.append(action)


def _catch_up() -> None:
    while _thread.postponed:
        _thread.postponed.pop(0)()
    error, _thread.interruption = _thread.interruption, None
    if error is not None:
        raise error
