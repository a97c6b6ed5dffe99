"""Reading: a value that is read anew when it is too old, once for all viewers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from qframe import forks

_SLOW = 0.05
"""A reading that takes more seconds is made in the background if there is an earlier value."""
KNOWN = 15.0
"""Seconds for which the earlier value is shown."""


class NotYetError(Exception):
    """It has never been read, and is being read now."""


class Reading:
    """A value, read anew when it is too old, by one thread at a time.

    A slow reading is made in the background, as long as the known value is not too old.
    """

    def __init__(self, seconds: float, read: Callable[[], Any], behind: ThreadPoolExecutor) -> None:
        self._seconds = seconds
        self.read = read
        """How it is read the next time."""
        self._behind = behind
        self._lock = forks.lock()
        self._value: Any = None
        self._good_until = self._known_until = 0.0
        self._took = 0.0
        self._changes = 0
        """How often it was forgotten: an earlier reading is then too old at once."""
        self._renewing: Future[None] | None = None

    def get(self, patience: float | None = None, late: float = KNOWN) -> Any:  # noqa: ANN401 (whatever it is)
        """Returns the value. Raises `NotYetError` if it is not known in `patience` seconds.

        A value that is slow to read may be too old by `late` seconds, `KNOWN` at most.
        """
        now = time.monotonic()
        if now < self._good_until:
            return self._value
        if self._took > _SLOW and now < min(self._known_until, self._good_until + late):
            self._in_background()
            return self._value
        if patience is not None:
            renewing = self._in_background()
            wait([renewing], max(0.0, patience))
            if not renewing.done():
                raise NotYetError
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._refresh()
            return self._value

    def forget(self) -> None:
        """Makes the next request read it anew, even if it is being read now."""
        self._changes += 1
        self._good_until = self._known_until = 0.0

    def _in_background(self) -> Future[None]:
        renewing = self._renewing
        if renewing is None or renewing.done():
            renewing = self._renewing = self._behind.submit(self._renew)
        return renewing

    def _renew(self) -> None:
        try:
            with self._lock:
                if time.monotonic() >= self._good_until:
                    self._refresh()
        except Exception:  # noqa: BLE001 (the next request raises it)
            self.forget()

    def _refresh(self) -> None:
        began, changes = time.monotonic(), self._changes
        self._value = self.read()
        now = time.monotonic()
        self._took = now - began
        self._good_until = now + max(self._seconds, 5 * self._took)
        self._known_until = self._good_until + KNOWN
        if self._changes != changes:
            self._good_until = self._known_until = 0.0
