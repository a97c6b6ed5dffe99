"""Waiting for messages: by commits on SQLite, by LISTEN or polling on servers."""

from __future__ import annotations

import errno
import math
import select
import time
from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Table

from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.listen import SILENCE, NotifyListener
from qframe.drivers.database.look import NextDue
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable

_EARLY = 0.001
"""Seconds by which two clocks may differ, so that a query is not a moment too early."""
_SILENCE = SILENCE + _EARLY


class Watch(Protocol):
    """Waits until there may be a message."""

    def note_message(self) -> None: ...

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> None:
        """Return when there may be a message, after `timeout` seconds, or on `wake`."""


class Looks(Protocol):
    """Tells in how many seconds there is something to do, at most 0 for now."""

    def seconds(self, session: Session, queues: Sequence[str], *, leases: bool = True) -> float:
        """Query the database; `leases` includes leases that run out."""


def watch_of(
    database: Database,
    settings: DatabaseSettings,
    look: Looks | None = None,
    table: Table | None = None,
) -> Watch:
    """Return the watch of a database: for messages, or for what `look` finds in a `table`."""
    look = look or NextDue(database, int(settings.retry_after))
    if database.is_sqlite:
        return FileWatch(database, look)
    return ServerWatch(database, look, NotifyListener(database, settings, table))


class FileWatch:
    """Watches for commits of other connections. SQLite shows them, but wakes nobody."""

    _PAUSE = 0.01
    """Seconds between two looks if messages came recently."""
    _PAUSE_IDLE = 0.05
    _LATELY = 10.0

    def __init__(self, database: Database, look: Looks) -> None:
        self._database = database
        self._look = look
        self._busy_until = 0.0

    def note_message(self) -> None:
        self._busy_until = time.monotonic() + self._LATELY

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> None:
        end = time.monotonic() + timeout
        self._database.follow_file()
        version = self._version()
        due = self._next_due(queues)
        while (left := min(end, due) - time.monotonic()) > 0:
            if _readable(min(left, self._pause()), wake):
                return
            now = self._version()
            if now != version:
                version = now
                due = self._next_due(queues)

    def _pause(self) -> float:
        return self._PAUSE if time.monotonic() < self._busy_until else self._PAUSE_IDLE

    def _version(self) -> object:
        with self._database.session() as session:
            return session.version()

    def _next_due(self, queues: Sequence[str]) -> float:
        with self._database.session() as session:
            return time.monotonic() + self._look.seconds(session, queues) + _EARLY


class ServerWatch:
    """Listens where it can, and also looks for messages, less often the longer none came.

    A process sends no second NOTIFY about a queue for a while. So after a notification, and after
    beginning to listen, the watch looks once more when that time is over; later commits notify
    again.
    """

    _SHORTEST = 0.002
    """The shortest pause between two looks, in seconds."""
    _LONGEST = 0.25
    _LONGEST_LISTENING = 0.5
    _SHARE = 0.01
    """The pause as a share of the time since a look last found a message."""

    def __init__(self, database: Database, look: Looks, listener: NotifyListener) -> None:
        self._database = database
        self._look = look
        self._listener = listener
        self._found = self._unnotified_at = -math.inf
        self._in_vain = 0

    def note_message(self) -> None:
        self._found = time.monotonic()
        self._in_vain = 0
        self._listener.stop()

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> None:
        due = end = time.monotonic() + timeout
        first = True
        while time.monotonic() < end:
            with self._database.session() as session:
                listening = self._listener.start(session)
                looked = time.monotonic()
                seconds = self._look.seconds(session, queues, leases=first)
                if self._listener.was_notified(session, queues):
                    return
            if seconds <= 0:
                if first:
                    self._rest(min(end, looked + self._vain_pause()), queues, wake, listening)
                else:
                    self._note_unnotified()
                return
            now = time.monotonic()
            due = min(due, now + seconds + _EARLY)
            next_look = now + self._pause(looked)
            if self._rest(min(due, next_look), queues, wake, listening) or due <= next_look:
                return
            first = False

    def _pause(self, looked: float) -> float:
        """Return the seconds until the next look; the last one began at `looked`."""
        since = self._listener.since
        if since is None:
            return min(max((looked - self._found) * self._SHARE, self._SHORTEST), self._LONGEST)
        if looked < since + _SILENCE:
            return since + _SILENCE - looked
        often = max((looked - self._unnotified_at) * self._SHARE, self._SHORTEST)
        return min(often, self._LONGEST_LISTENING)

    def _vain_pause(self) -> float:
        """Return a pause for ready messages that another transaction has locked."""
        pause: float = self._SHORTEST * (2**self._in_vain - 1)
        self._in_vain = min(self._in_vain + 1, 10)
        return min(pause, self._LONGEST)

    def _note_unnotified(self) -> None:
        """Look more often after a message without a notification: PHP sends none."""
        now, since = time.monotonic(), self._listener.since
        if since is not None and now > since + 2 * _SILENCE:
            self._unnotified_at = now

    def _rest(
        self, until: float, queues: Sequence[str], wake: int | None, listening: int | None
    ) -> bool:
        """Wait until then. Returns True if it was woken or notified of one of the queues."""
        while (left := until - time.monotonic()) > 0:
            ready = _readable(left, wake, listening)
            if wake is not None and wake in ready:
                return True
            if ready and self._was_notified(queues):
                return True
        return False

    def _was_notified(self, queues: Sequence[str]) -> bool:
        try:
            with self._database.session() as session:
                return self._listener.was_notified(session, queues)
        except BackendUnavailable:
            return True  # the connection is lost; the next query opens another or reports the error


def _readable(seconds: float, *descriptors: int | None) -> list[int]:
    """Wait until one is readable; `select` would refuse descriptors from 1,024 on."""
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    ready = poll.poll(seconds * 1000)
    if any(event & select.POLLNVAL for _, event in ready):
        raise OSError(errno.EBADF, "a descriptor that is waited on was closed by somebody")
    return [descriptor for descriptor, _ in ready]
