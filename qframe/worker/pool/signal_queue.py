"""The signals a pool gets, in a queue, and what wakes it."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from collections import deque
from types import FrameType
from typing import Any, Self

from qframe.exceptions import ConfigurationError

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
PASSED_ON = (*STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
"""The signals that are for the workers."""


class SignalQueue:
    """Hears signals and the news of changed files; `wait` ends with either, or with a child."""

    def __init__(self) -> None:
        self._heard: deque[int] = deque()
        self._changed = False
        self._reader, self._writer = socket.socketpair()
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        for end in (self._reader, self._writer):
            end.setblocking(False)
        try:
            self._wakeup_before = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )
        except ValueError:
            raise ConfigurationError("a pool of workers runs on the main thread only") from None
        for number in (*PASSED_ON, signal.SIGCHLD):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._heard.append(number)

    def heard(self) -> list[int]:
        """Give the signals that came, in their order, once."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def changed(self) -> bool:
        """Whether files have changed since this was last asked."""
        changed, self._changed = self._changed, False
        return changed

    def tell_of_changes(self) -> None:
        """Tell, from any thread, that files have changed."""
        self._changed = True
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def wait(self, seconds: float) -> None:
        """Wait for a signal, a change, or `seconds`."""
        with contextlib.suppress(BlockingIOError):
            select.select([self._reader], [], [], seconds)
            while self._reader.recv(64):
                pass
