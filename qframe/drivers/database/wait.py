"""Waiting: looks for commits by other connections. SQLite can tell of one, but wakes nobody."""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable

from qframe.drivers.database.connection import Database

_LOOK = 0.01
"""Seconds between two looks where messages came lately."""
_LOOK_IDLE = 0.05
_LOOK_FAR = 0.25
"""Over a network, where each look asks for the messages themselves."""
_LATELY = 10.0


class Watch:
    """Looks often where messages came lately."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._busy_until = 0.0

    def note_message(self) -> None:
        """Say that there was a message."""
        self._busy_until = time.monotonic() + _LATELY

    def wait(self, next_moment: Callable[[], float], timeout: float, wake: int | None) -> None:
        """Return when there may be a message, after `timeout`, or when `wake` can be read.

        `next_moment` tells in how many seconds something is due, as far as is known.
        """
        end = time.monotonic() + timeout
        self._database.follow_file()
        version = self._version()
        due = time.monotonic() + next_moment()
        while (left := min(end, due) - time.monotonic()) > 0:
            if _readable(wake, min(left, self._pause())):
                return
            now = self._version()
            if now != version:
                version = now
                due = time.monotonic() + next_moment()

    def _pause(self) -> float:
        if not self._database.is_sqlite:
            return _LOOK_FAR
        return _LOOK if time.monotonic() < self._busy_until else _LOOK_IDLE

    def _version(self) -> object:
        with self._database.session() as session:
            return session.version()


def _readable(wake: int | None, seconds: float) -> bool:
    """Wait until it can be read; `select` would refuse a descriptor of 1,024 or more."""
    if wake is None:
        time.sleep(seconds)
        return False
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    ready = poll.poll(seconds * 1000)
    if any(event & select.POLLNVAL for _, event in ready):
        raise OSError(errno.EBADF, "a descriptor that is waited on was closed by somebody")
    return bool(ready)
