"""WakeUp: what ends a wait: signals, by their numbers, and calls from other threads."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterable
from typing import Self

from qframe.drivers.sockets import readable
from qframe.worker import handlers
from qframe.worker.options import NO_ANSWER

_STDERR = 2
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The signals that stop a worker, or a pool of them."""


class WakeUp:
    """A socket that is readable once a signal has come, and the replaced handlers."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._handled: list[int] = []
        self._wakeup_before: int | None = None
        self._wakes_by = self._writer.fileno()
        """The descriptor that signals are written to: an event loop here may have set its own."""
        self._own = self._writer.fileno()
        self._inode = os.fstat(self._own).st_ino
        self._leaving = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True  # before it closes files: a job may end later in a thread
        for number in self._handled:
            handlers.give_back(number)
        self._handled.clear()
        if self._wakeup_before is not None:
            signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def leave_if_closed(self, by: str) -> None:
        """Ends the process at once if the job `by` this name has closed the worker's files.

        Their numbers are reused by what is opened next: going on might write into a database.
        """
        try:
            closed = os.fstat(self._own).st_ino != self._inode
        except OSError:
            closed = True
        if closed and not self._is_over:
            self._leaving.acquire()  # for good: another thread that finds it, too, says nothing
            words = (
                f"qframe: {by} closed files of its worker's process, which ends at once: the job "
                "comes back, as its tries have it\n"
            )
            with contextlib.suppress(OSError):
                os.write(_STDERR, words.encode(errors="replace"))
            os._exit(NO_ANSWER)

    def handle(self, numbers: Iterable[int], handler: handlers.Handler) -> None:
        """Handles signals, and wakes up at each. Raises `ValueError` off the main thread."""
        if self._wakeup_before is None:
            self._wakeup_before = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )
        for number in numbers:
            handlers.take(number, handler)
            self._handled.append(number)

    def keep_waking(self) -> None:
        """Makes signals wake us again after other code has set its own descriptor."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            signal.set_wakeup_fd(self._wakes_by, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wait(self, seconds: float) -> bytes:
        """Waits until woken, or for `seconds`; returns the numbers of the signals."""
        readable([self.fileno()], seconds)
        return self.drain()

    def drain(self) -> bytes:
        """Returns the pending signals; the socket is unreadable until the next one."""
        with contextlib.suppress(BlockingIOError):
            return self._reader.recv(4096)
        return b""

    def wake(self, number: int = 0) -> None:
        """Wakes up the waiting thread, from any thread, as a signal of this number would."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([number]))
