"""Watchdog: the hard stage of a timeout ends the process from outside the interpreter.

`faulthandler` runs a thread of its own that needs no interpreter lock, so it fires while a job is
stuck in C code; it writes every thread's stack to stderr and exits 1.
"""

from __future__ import annotations

import faulthandler
import threading
import time

_STDERR = 2
_PATIENCE = 12.0
"""Seconds a driver call between two jobs may take before it counts as a stuck job."""
_SLACK = 1.0
"""Seconds. Arming starts a thread, so for jobs in quick succession it is armed this much late, and
moved about once a second."""


class Watchdog:
    """Ends the process unless the covered job ends in time."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._armed_at = 0.0
        self._fires_at = 0.0

    def cover(self, seconds: float) -> None:
        """Ends the process in `seconds` (a second later when just moved); 0 covers nothing."""
        if not seconds or not self._enabled:
            self.cancel()
            return
        now = time.monotonic()
        needed = now + seconds
        if needed <= self._fires_at <= needed + _SLACK:
            return
        moved_lately = self._fires_at and now - self._armed_at < _SLACK
        self._armed_at = now
        self._fires_at = needed + (_SLACK if moved_lately else 0)
        _arm(self._fires_at)

    def sooner(self, seconds: float) -> None:
        """Ends the process in `seconds`, unless it is to end before that."""
        if not self._fires_at or time.monotonic() + seconds < self._fires_at:
            self.cover(seconds)

    def spare(self) -> None:
        """Covers nothing any more if it would fire soon; a driver call may wait longer."""
        if self._fires_at and self._fires_at - time.monotonic() < _PATIENCE:
            self.cancel()

    def cancel(self) -> None:
        if self._fires_at:
            _disarm()
            self._fires_at = 0.0


_lock = threading.RLock()
_armed_until = 0.0
"""When the process is to end, by the monotonic clock; 0: never."""


def _arm(fires_at: float) -> None:
    global _armed_until  # noqa: PLW0603 (faulthandler has one timer for the process)
    with _lock:
        seconds = max(0.001, fires_at - time.monotonic())
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
        _armed_until = fires_at


def _disarm() -> None:
    global _armed_until  # noqa: PLW0603 (as above)
    with _lock:
        faulthandler.cancel_dump_traceback_later()
        _armed_until = 0.0


# -- forks ----------------------------------------------------------------------------------------


def pause() -> None:
    """Stops the thread of faulthandler before a fork: a child would wait for it for ever."""
    _lock.acquire()
    if _armed_until:
        faulthandler.cancel_dump_traceback_later()


def resume() -> None:
    if _armed_until:
        _arm(_armed_until)
    _lock.release()


def forget() -> None:
    """Watches nothing in the child."""
    global _armed_until  # noqa: PLW0603 (as above)
    _armed_until = 0.0
    _lock.release()
