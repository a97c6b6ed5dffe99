"""Outages: the connections that do not answer. Nobody waits twice for one that is slow not to."""

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
"""Seconds that nobody is to wait again for an answer that does not come."""
EVERY = 1.0
"""Seconds between two looks whether there is an answer again."""
_WANTED = 60.0
"""Seconds after which nobody looks any more, unless somebody asks."""


class Outages:
    """Who does not answer, and why. Safe to use from several threads.

    A backend that lets people wait (its machine is gone, or it hangs) is asked by a thread behind
    them from then on: they hear at once that it does not answer, until it does.
    """

    def __init__(self) -> None:
        self.why: dict[str, str] = {}
        self._wanted: dict[str, float] = {}
        """Those that a thread looks after, and when somebody asked for each."""
        self._lock = forks.lock()
        forks.in_child_of(self, lambda child: child._wanted.clear())  # noqa: SLF001 (its own)

    def ask(self, name: str, backend: Backend, read: Callable[[], T]) -> T:
        """Read something of a connection; raises `BackendUnavailable`, at once in an outage."""
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
        """Ask for a sign of life until there is one, or nobody wants to know."""
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
