"""Sessions: a forked child closes its parent's SQLite connections before it opens its own.

SQLite remembers in the process's memory which locks it has on a file, but a child does not inherit
the locks. A child that opens its parent's file would believe that it has the parent's locks; when
the parent closes the file, it removes the log that the child still writes to, and accepted jobs are
lost. So a fork waits until no thread is inside a call, and the child closes the inherited, idle
connections first.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import Any

from qframe import forks

_PATIENCE = 10.0
"""Seconds that a fork waits for calls of other threads; busy connections are then left alone."""


class Sessions:
    """The SQLite sessions of this process (`connection.Session`) and the fork in progress."""

    def __init__(self) -> None:
        self.opening = forks.rlock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._idle: list[Any] = []
        self._held: list[Any] = []
        self._left_alone: list[Any] = []

    def add(self, session: object) -> None:
        """Add a session; call it with `opening` held."""
        self._sessions.add(session)

    def before(self) -> None:
        """Wait until no thread opens or uses a connection."""
        deadline = time.monotonic() + _PATIENCE
        if not self._hold(self.opening, deadline):
            self._left_alone += self._sessions
            return
        for session in list(self._sessions):
            idle = self._hold(session.lock, deadline) and not session.in_transaction
            (self._idle if idle else self._left_alone).append(session)

    def _hold(self, lock: Any, deadline: float) -> bool:  # noqa: ANN401 (a Lock or an RLock)
        held = bool(lock.acquire(timeout=max(0.0, deadline - time.monotonic())))
        if held:
            self._held.append(lock)
        return held

    def in_parent(self) -> None:
        self._release()
        self._left_alone.clear()

    def in_child(self) -> None:
        """Close the parent's idle connections; keeps busy ones, so that they are never closed."""
        for session in self._idle:
            with contextlib.suppress(Exception):
                session.close()
        self._release()
        self._sessions = weakref.WeakSet()

    def _release(self) -> None:
        for lock in self._held:
            lock.release()
        self._held.clear()
        self._idle.clear()


sessions = Sessions()

forks.around(sessions.before, sessions.in_parent, sessions.in_child)
