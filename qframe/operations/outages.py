"""Outages: remembers which connections are down, so a request waits for a timeout only once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from qframe import forks
from qframe.contracts.backend import Backend
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.payload.text import one_line

T = TypeVar("T")

_LONG = 0.5
"""Seconds of waiting after which a connection counts as down."""
EVERY = 1.0
"""Seconds between two checks whether it answers again."""
_WANTED = 60.0
"""Seconds without a request after which checking stops."""


class Outages:
    """The connections that are down, and why. Thread-safe.

    A thread keeps checking a backend that hangs, or whose machine is gone: requests fail at once
    until it answers.
    """

    def __init__(self) -> None:
        self.why: dict[str, str] = {}
        self._wanted: dict[str, float] = {}
        """The connections that a thread checks, and when each was last requested."""
        self._lock = forks.lock()
        forks.in_child_of(self, lambda child: child._wanted.clear())  # noqa: SLF001 (its own)

    def ask(self, name: str, backend: Backend, read: Callable[[], T]) -> T:
        """Reads from a connection. Raises `BackendUnavailable`, at once in an outage."""
        with self._lock:
            if name in self._wanted:
                self._wanted[name] = time.monotonic()
                raise BackendUnavailable(self.why.get(name, name))
        began = time.monotonic()
        try:
            value = read()
        except BackendUnavailable as error:
            self.why[name] = one_line(str(error), 200)
            if time.monotonic() - began > _LONG:
                self._look_after(name, backend)
            raise
        self.why.pop(name, None)
        return value

    def _look_after(self, name: str, backend: Backend) -> None:
        with self._lock:
            if name in self._wanted:
                return
            self._wanted[name] = time.monotonic()
        watching = threading.Thread(
            target=self._watch, args=(name, backend), name="qframe-outage", daemon=True
        )
        watching.start()

    def _watch(self, name: str, backend: Backend) -> None:
        """Pings a backend until it answers, or nobody requests it any more."""
        try:
            while time.monotonic() - self._wanted[name] < _WANTED:
                time.sleep(EVERY)
                try:
                    backend.check()
                except BackendUnavailable as error:
                    self.why[name] = one_line(str(error), 200)
                    continue
                self.why.pop(name, None)
                break
        finally:
            with self._lock:
                del self._wanted[name]
            with suppress(QframeError):
                backend.close()
