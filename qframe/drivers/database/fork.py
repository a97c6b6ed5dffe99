"""What a forked child does with the SQLite connections of its parent: it closes them first.

SQLite notes in the process's memory which locks it has on a file, but the locks themselves are not
inherited. A child that opens a file its parent has open would believe it holds the parent's
locks; when the parent closes, it removes the log that the child goes on writing to, and accepted
jobs are gone. So a fork waits until no thread is inside a call, and the child closes what it
inherited, which is idle then, before it opens connections of its own.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import Any

from qframe import forks

_PATIENCE = 10.0
"""Seconds a fork waits for calls in other threads; what is still busy then is left alone."""


class Sessions:
    """The SQLite sessions of this process (`connection.Session`), and the fork under way."""

    def __init__(self) -> None:
        self.opening = forks.rlock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._idle: list[Any] = []
        self._held: list[Any] = []
        self._left_alone: list[Any] = []

    def add(self, session: object) -> None:
        """Note a session; called with `opening` held."""
        self._sessions.add(session)

    def before(self) -> None:
        """Wait until nobody opens or uses a connection."""
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
        """Go on as before."""
        self._release()
        self._left_alone.clear()

    def in_child(self) -> None:
        """Close what is the parent's; what was in use is kept, so that it is never closed."""
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
