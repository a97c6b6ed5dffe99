"""The signals a pool gets, in their order, and what wakes it."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from typing import Any, Self

from qframe.exceptions import ConfigurationError

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
PASSED_ON = (*STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
"""The signals that are for the workers."""
CHANGED = 0
"""Heard like a signal: files have changed."""


class SignalQueue:
    """Hears signals and the news of changed files; `wait` ends with either, or with a child."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._writer.setblocking(False)
        try:
            # It is written the number of each signal.
            self._wakeup_before = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )
        except ValueError:
            raise ConfigurationError("a pool of workers runs on the main thread only") from None
        for number in (*PASSED_ON, signal.SIGCHLD):
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def tell_of_changes(self) -> None:
        """Tell, from any thread, that files have changed."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([CHANGED]))

    def wait(self, seconds: float) -> bytes:
        """Wait for a signal, a change, or `seconds`; gives the numbers of what came."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        return self._reader.recv(1024) if ready else b""
