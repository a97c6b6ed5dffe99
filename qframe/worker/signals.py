"""Signals: they set flags and wake the loop; the few that end a job raise, only while one runs."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any, Self

from qframe import guard
from qframe.exceptions import Interruption, JobGivenBack, JobInterrupted, JobTimedOut

_EARLY = 0.01
_STOPS = ("SIGTERM", "SIGINT", "SIGQUIT")


class Signals:
    """What the worker has been told, and the file descriptor that becomes readable when it is.

    Off the main thread no signal arrives; `tell_to_stop` still works.
    """

    def __init__(self) -> None:
        self.quit = False
        self.stop_signal = 0
        self.paused = False
        self.fired: Interruption | None = None
        """What ended the running job, also when the job swallowed it."""
        self.on_main_thread = threading.current_thread() is threading.main_thread()
        self._running = False
        self._timeout = 0.0
        self._armed = False
        self._rings_at = 0.0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        """Install the handlers."""
        if self.on_main_thread:
            self._wakeup_before = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )
            for name in _STOPS:
                self._install(getattr(signal, name), self._stop)
            self._install(signal.SIGUSR1, self._interrupt)
            self._install(signal.SIGUSR2, self._pause)
            self._install(signal.SIGCONT, self._resume)
            self._install(signal.SIGALRM, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was there before."""
        if self.on_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def _install(self, number: int, handler: Any) -> None:  # noqa: ANN401 (the signal module's own)
        self._before[number] = signal.signal(number, handler)

    # -- the loop's side ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Give the descriptor to wait on beside a backend."""
        return self._reader.fileno()

    def wait(self, seconds: float) -> None:
        """Wait until told something, or for `seconds`."""
        select.select([self._reader], [], [], max(0.0, seconds))
        self.drain()

    def drain(self) -> None:
        """Make the descriptor unreadable until the next signal."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(64):
                pass

    def tell_to_stop(self) -> None:
        """Ask the worker, from any thread, to stop after its job."""
        self.quit = True
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    # -- around a running job -------------------------------------------------------------------

    def running(self, timeout: float) -> None:
        """A job runs from now on: what ends it may raise, after `timeout` at the latest."""
        self.fired = None
        self._timeout = timeout
        if self.on_main_thread:
            if timeout or self._armed:
                self._set_alarm(timeout)
            self._running = True

    def _set_alarm(self, seconds: float) -> None:
        """Let the alarm ring; one for a job that has ended is moved, and does nothing meanwhile."""
        self._rings_at = time.monotonic() + seconds
        self._armed = bool(seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def change_timeout(self, timeout: float, passed: float) -> None:
        """Give the running job another timeout, of which `passed` seconds are over."""
        if self._running and timeout != self._timeout:
            self._timeout = timeout
            self._set_alarm(max(0.001, timeout - passed) if timeout else 0)

    def not_running(self) -> None:
        """The job has ended: nothing raises any more."""
        self._running = False
        guard.forget_interruption()

    def at_rest(self) -> None:
        """No job follows at once: nothing is to ring."""
        if self._armed:
            self._set_alarm(0)

    # -- handlers -------------------------------------------------------------------------------

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.quit:
            self._end_job(JobGivenBack("the worker was told twice to stop"), frame)
        self.quit = True
        self.stop_signal = number

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self._end_job(JobInterrupted("the worker got SIGUSR1"), frame)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        self.paused = True

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        self.paused = False

    def _ring(self, _number: int, frame: FrameType | None) -> None:
        held_up = guard.pending()
        if held_up is not None:
            guard.interrupt(held_up, frame)
        elif time.monotonic() < self._rings_at - _EARLY:  # it rang for the job before, unheard
            return
        else:
            late = JobTimedOut(f"ran longer than its timeout of {self._timeout:g} s")
            self._end_job(late, frame)

    def _end_job(self, error: Interruption, frame: FrameType | None) -> None:
        """Raise in the running job; once, so that its cleaning up is not broken into."""
        if self._running:
            self._running = False
            self.fired = error
            guard.interrupt(error, frame)
