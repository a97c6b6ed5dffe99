"""Pool: the connections to one database that the threads of this process share.

A thread has a connection for the length of a call. The last one returned is taken next, so a
program with one thread uses one connection and its prepared statements. A worker's own threads must
not wait, so each keeps a connection outside of the pool.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from qframe import forks
from qframe.drivers import heartbeat
from qframe.drivers.database.errors import NoConnectionLeft
from qframe.drivers.database.link import Link, inherited
from qframe.drivers.sockets import limited

_IDLE = 60.0
"""Seconds after which an idle connection is closed, except the last one."""
_TRIMS = 15.0
"""Seconds between two checks for idle connections."""
_REFUSED = 1.0
"""Seconds without an attempt to connect after the server had no connection left."""


class _TurnWaiter:
    """A thread that waits to get a connection, or to open one."""

    __slots__ = ("link", "may_open", "ready")

    def __init__(self) -> None:
        self.link: Link | None = None
        self.may_open = False
        """Whether it may open a connection, which is already counted."""
        self.ready = threading.Lock()
        self.ready.acquire()


class DatabasePool:
    """At most `size` connections; a thread waits at most `timeout` seconds for one.

    `connect` opens one; `shown` describes the database. The longest waiter is served first.
    """

    def __init__(self, connect: Callable[[], Link], size: int, timeout: float, shown: str) -> None:
        self._connect = connect
        self._size = size
        self._timeout = timeout
        self._shown = shown
        self._begin()
        forks.in_child_of(self, DatabasePool.begin_in_child)

    def _begin(self) -> None:
        self._lock = forks.lock()
        self._idle: deque[Link] = deque()
        """Idle connections, the last one returned at the right."""
        self._waiters: deque[_TurnWaiter] = deque()
        self._open = 0
        """The number of open or opening connections, without those that threads keep."""
        self._refused_until = 0.0
        self._all: set[Link] = set()
        """All connections of this process, so that a fork does not close its parent's."""
        self._trimmed_by: heartbeat.Heartbeat | None = None

    def take(self) -> Link:
        """Take a connection. Raises `NoConnectionLeft` or an error of opening one."""
        while True:
            link = self._taken()
            if not (link.is_stale and link.is_gone()):
                return link
            self.drop(link)

    def keep(self) -> Link:
        """Return a connection outside of the pool's size, to `drop` later, not to `give` back."""
        if not self._idle:
            try:
                return self._opened()
            except NoConnectionLeft:
                if not self._open:
                    raise
        link = self.take()
        self._left()
        return link

    def give(self, link: Link) -> None:
        """Return a connection to the pool, outside of a transaction."""
        if link not in self._all:
            return  # the parent's: the process was forked during the call
        link.spoke = time.monotonic()
        self._idle.append(link)
        if self._waiters:
            self._serve()
        elif len(self._idle) > 1 and (self._trimmed_by is None or self._trimmed_by.is_over):
            self._trim_now_and_then()

    def drop(self, link: Link, *, kept: bool = False) -> None:
        """Close a connection; `kept` if it came from `keep`."""
        self._all.discard(link)
        link.close()
        if not kept:
            self._left()

    def close(self) -> None:
        self._close_idle(0.0, spared=0)

    # -- waiting and opening ----------------------------------------------------------------------

    def _taken(self) -> Link:
        if not self._waiters:
            with contextlib.suppress(IndexError):
                return self._idle.pop()
        deadline = time.monotonic() + limited(self._timeout)
        while True:
            waiter = _TurnWaiter()
            try:
                self._wait_in_turn(waiter, deadline)
            except BaseException:  # Ctrl-C, or no connection in time
                self._give_up(waiter)
                raise
            if waiter.link is not None:
                return waiter.link
            try:
                return self._opened()
            except NoConnectionLeft:
                self._refused_until = time.monotonic() + _REFUSED
                if not self._left() or time.monotonic() >= deadline:
                    raise
            except BaseException:
                self._left()
                raise

    def _wait_in_turn(self, waiter: _TurnWaiter, deadline: float) -> None:
        """Wait in line for a connection, or for permission to open one."""
        with self._lock:
            if self._open < self._size and not (self._waiters or self._is_refused()):
                self._open += 1
                waiter.may_open = True
                return
            self._waiters.append(waiter)
        if self._idle:
            self._serve()  # returned before this waiter was in line
        if waiter.ready.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        if not self._waits_no_more(waiter):
            return  # served just now
        used = self._open
        raise NoConnectionLeft(
            f"the database {self._shown}: no connection was free within "
            f"{limited(self._timeout):g} s, all {used} of its pool are in use (pool_size)"
        )

    def _give_up(self, waiter: _TurnWaiter) -> None:
        """Leave the line; pass on what this waiter was given."""
        if self._waits_no_more(waiter):
            return
        if waiter.link is not None:
            self.give(waiter.link)
        elif waiter.may_open:
            self._left()

    def _waits_no_more(self, waiter: _TurnWaiter) -> bool:
        """Remove a waiter from the line. Returns False if it was already served."""
        with self._lock:
            if waiter not in self._waiters:
                return False
            self._waiters.remove(waiter)
            return True

    def _serve(self) -> None:
        with self._lock:
            while self._waiters and self._idle:
                try:
                    link = self._idle.pop()
                except IndexError:  # another thread took it just now
                    return
                self._hand_on(link)

    def _hand_on(self, link: Link | None) -> None:
        waiter = self._waiters.popleft()
        waiter.link, waiter.may_open = link, link is None
        waiter.ready.release()

    def _is_refused(self) -> bool:
        """Whether the server had no connection left a moment ago, while this pool has some."""
        return bool(self._open) and time.monotonic() < self._refused_until

    def _left(self) -> int:
        """Count one less, so that a waiter may open another. Returns the number left."""
        with self._lock:
            self._open -= 1
            others = self._open
            if self._waiters and self._open < self._size and not self._is_refused():
                self._open += 1
                self._hand_on(None)
            return others

    def _opened(self) -> Link:
        link = self._connect()
        self._all.add(link)
        return link

    # -- idle connections -------------------------------------------------------------------------

    def _close_idle(self, seconds: float, *, spared: int) -> None:
        """Close the connections idle for `seconds`, the longest idle first."""
        while len(self._idle) > spared:
            try:
                link = self._idle.popleft()
            except IndexError:
                return
            if time.monotonic() - link.spoke < seconds:
                self._idle.appendleft(link)
                if self._waiters:
                    self._serve()  # a waiter that came in between has not seen them
                return
            self.drop(link)

    def _trim_now_and_then(self) -> None:
        heart = self._trimmed_by = heartbeat.current()
        here = weakref.ref(self)

        def trim() -> None:
            pool = here()
            if pool is None or pool.is_trimmed():
                heart.drop(beat)

        try:
            beat = heart.add(_TRIMS, trim)
        except RuntimeError:  # no thread can be started: the next `give` tries again
            self._trimmed_by = None

    def is_trimmed(self) -> bool:
        """Close long idle connections. Returns whether none are left to close."""
        self._close_idle(_IDLE, spared=1)
        if len(self._idle) > 1:
            return False
        self._trimmed_by = None
        return True

    def begin_in_child(self) -> None:
        """Start afresh in a forked child: the open connections are its parent's."""
        inherited.extend(self._all)
        self._begin()
