"""Heartbeat: the one thread of a worker that runs periodic actions beside its jobs.

It renews leases and locks, checks for cancelled jobs, and reports the worker. A process that must
not have threads because it forks calls `beat` itself while it waits.
"""

from __future__ import annotations

import _thread
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import BuiltinFunctionType

from qframe import forks
from qframe.drivers import sockets
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

Action = Callable[[], float | None]
"""Returns the seconds until its next run; None keeps the interval. It should not raise."""


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread that receives no signals: there they would not wake the main thread.

    Raises `RuntimeError` if none can be started, as while the interpreter clears its modules.
    """
    if sys.is_finalizing():  # Python 3.11 would wait for ever for the thread to begin
        raise RuntimeError("the interpreter ends")

    def run() -> None:
        if not has_threads():
            work()
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _deaf.add(threading.get_ident())
        try:
            work()
        finally:
            _deaf.discard(threading.get_ident())

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def has_threads() -> bool:
    """Whether a thread is one: gevent makes greenlets, which share the main thread's signals."""
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


def on_deaf_thread() -> bool:
    """Whether this thread blocks all signals."""
    return threading.get_ident() in _deaf


_deaf: set[int] = set()


class Beat:
    """A periodic action. `every` is in seconds; `due` is its next run on the monotonic clock."""

    __slots__ = ("action", "due", "every")

    def __init__(self, every: float, action: Action, due: float) -> None:
        self.every = every
        self.action = action
        self.due = due


class Heartbeat:
    """Runs periodic actions, in a thread that starts with the first action.

    The actions run one after the other, so an action that hangs delays the others. Therefore each
    runs at most half of the time, and its connections wait at most `longest` seconds for an answer.
    The thread calls `close` when it ends.
    """

    def __init__(
        self,
        *,
        threaded: bool = True,
        close: Callable[[], None] | None = None,
        longest: float = math.inf,
        ends_without_beats: bool = False,
    ) -> None:
        self.longest = longest
        self.ends_without_beats = ends_without_beats
        """Whether the thread ends when it has no actions left; the next `add` starts a new one."""
        self.threaded = threaded
        self._close = close
        self._beats: dict[Beat, None] = {}
        self._next = 0.0
        self._last: Callable[[], None] | None = None
        self.is_over = False
        """Whether it runs no more actions."""
        self._mutex = forks.lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, every: float, action: Action, first: float | None = None) -> Beat:
        """Run `action` every `every` seconds, for the first time after `first` (default: `every`).

        Raises `RuntimeError` if no thread can be started.
        """
        beat = Beat(every, action, time.monotonic() + (every if first is None else first))
        with self._mutex:
            if self.threaded and self._thread is None:
                self._thread = start_thread("qframe-heartbeat", self._run)
            elif beat.due < self._next:
                self._wake.set()
            self._beats[beat] = None
        return beat

    def drop(self, beat: Beat) -> None:
        """Stop running it; a run may still be in progress."""
        with self._mutex:
            self._beats.pop(beat, None)

    def beat(self) -> None:
        """Run the actions that are due. Never raises."""
        now = time.monotonic()
        with self._mutex:
            due = [beat for beat in self._beats if beat.due <= now]
        for beat in due:
            _do(beat)

    def end(self, last: Callable[[], None], within: float) -> None:
        """Run `last` and stop. Waits at most `within` seconds for the thread."""
        self._last = last
        self.is_over = True
        if self._thread is None:
            self._finish()
        else:
            self._wake.set()
            self._thread.join(within)

    def _run(self) -> None:
        sockets.limit_waits(self.longest)
        # The worker's heartbeat renews leases and must not wait for the jobs' threads; the shared
        # one may.
        sockets.keep_connections(keeps=not self.ends_without_beats)
        while not self.is_over:
            self.beat()
            if self._is_needless():
                return
            self._wait()
        self._finish()

    def _is_needless(self) -> bool:
        """Whether this thread should end; if so, the next `add` starts another one."""
        with self._mutex:
            if self.is_over or self._beats or not self.ends_without_beats:
                return False
            self._thread = None
            return True

    def _wait(self) -> None:
        with self._mutex:
            self._next = min((beat.due for beat in self._beats), default=float("inf"))
            self._wake.clear()
            seconds = self._next - time.monotonic()
        if not self.is_over:
            self._wake.wait(None if seconds == float("inf") else max(0.0, seconds))

    def _finish(self) -> None:
        if self._last is not None:
            self._last()
        if self._close is not None:
            self._close()


def _do(beat: Beat) -> None:
    began = time.monotonic()
    try:
        seconds = beat.action()
    except Exception as error:  # noqa: BLE001 (the thread must outlive whatever a driver raises)
        seconds = None
        log.warning("the heartbeat: %s", tracebacks.brief(error))
    ended = time.monotonic()
    every = beat.every if seconds is None else seconds
    beat.due = max(began + every, ended + (ended - began))


class _Here(threading.local):
    heartbeat: Heartbeat | None = None


_here = _Here()
_shared: Heartbeat | None = None


def use(heartbeat: Heartbeat | None) -> None:
    """Set the worker's heartbeat for what this thread runs."""
    _here.heartbeat = heartbeat
    beats_here = heartbeat is not None and not heartbeat.threaded
    sockets.limit_waits(heartbeat.longest if heartbeat and beats_here else math.inf)


def current() -> Heartbeat:
    """Return the heartbeat of the worker whose job this thread runs, or the process's own."""
    global _shared  # noqa: PLW0603 (one for the process)
    if _here.heartbeat is not None:
        return _here.heartbeat
    if _shared is None:
        _shared = Heartbeat(ends_without_beats=True)
    return _shared


def _forget() -> None:
    """Start afresh in a forked child, which has no threads and no actions of its own."""
    global _here, _shared
    _here, _shared = _Here(), None
    _deaf.clear()


forks.in_child(_forget)
