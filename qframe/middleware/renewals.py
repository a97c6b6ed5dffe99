"""Renews the locks that this process holds: one thread for all, there once a lock was taken."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Protocol

from qframe import tracebacks

log = logging.getLogger("qframe")

_IDLE_LOOK = 1.0
"""Seconds until it looks again where locks came and went, so that a short one need not wake it."""
_AGAIN = 1.0


class Renewable(Protocol):
    """What is renewed: `due` is when, by the monotonic clock; `renew` sets it anew."""

    due: float

    def renew(self) -> None:
        """Prolong it."""


class Renewals:
    """Keeps what it is given renewed until that is dropped; holds nothing else.

    A lock held for some milliseconds costs no switch of threads. A job that holds the
    interpreter lock starves the thread, as it does that of the leases. A forked child renews
    nothing of its parent's.
    """

    def __init__(self) -> None:
        self._kept: set[Renewable] = set()
        self._came = False
        self._next = 0.0
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lock: Renewable) -> None:
        """Renew from now on."""
        with self._mutex:
            self._kept.add(lock)
            self._came = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qframe-locks", daemon=True)
                self._thread.start()
            elif lock.due < self._next:
                self._wake.set()

    def drop(self, lock: Renewable) -> None:
        """Renew no more; a renewal may be under way still."""
        with self._mutex:
            self._kept.discard(lock)

    def _run(self) -> None:
        # A signal that the system hands to this thread would not wake the main thread's job.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            due = self._due()
            for lock in due:
                self._renew(lock)
            del due[:]
            self._wait()

    def _due(self) -> list[Renewable]:
        now = time.monotonic()
        with self._mutex:
            return [lock for lock in self._kept if lock.due <= now]

    def _renew(self, lock: Renewable) -> None:
        try:
            lock.renew()
        except Exception as error:  # noqa: BLE001 (the thread must outlive whatever a driver raises)
            lock.due = time.monotonic() + _AGAIN
            log.warning("a lock could not be renewed: %s", tracebacks.brief(error))

    def _wait(self) -> None:
        """Wait until the next is due; without end where nothing has come since the last look."""
        with self._mutex:
            now = time.monotonic()
            otherwise = now + _IDLE_LOOK if self._came else float("inf")
            self._next = min((lock.due for lock in self._kept), default=otherwise)
            self._came = False
            self._wake.clear()
            seconds = self._next - now
        self._wake.wait(None if seconds == float("inf") else max(0.0, seconds))


renewals = Renewals()
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewals.__init__)  # type: ignore[misc] # as if it had just begun
