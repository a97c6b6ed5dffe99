"""What a thread without a job waits for: a push, the next delay or lease to end, or a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qframe import host
from qframe.config import RedisSettings
from qframe.drivers.redis.link import Reply
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.waiting import Listener, until_one
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded

_MARGIN = 0.0005
_DRIFT = 0.0005
"""Seconds a wait goes on after the moment it is for, in all and for each second it lasts: two
clocks never run alike, and one that is being corrected may run so much faster."""
_LATER = 0.5
"""Seconds after our own end at which the server would end a wait, should we not."""
_PATIENCE = 0.3
"""Seconds the server is given to end a wait that need not end at a moment."""
EMPTY = 2
"""The length of a reservation's reply where there was no job."""

Listening = Sequence[tuple[Listener, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Taken:
    """Jobs that the end of a wait has held: the reply of that reservation, and by what clock."""

    queues: tuple[str, ...]
    reply: Sequence[bytes]
    ahead: float
    """Our clock less the server's, or a little less."""
    heard_at: float


class _Thread(threading.local):
    """What one thread waits with, and what its last reservation said of the future."""

    def __init__(self) -> None:
        self.pid = host.pid()
        self.listeners: dict[str, Listener] = {}
        self.outlook: tuple[tuple[str, ...], float] | None = None
        self.ahead = 0.0
        self.taken: Taken | None = None


class Idle:
    """Waits for all queues of a worker at once; on a Cluster, with one wait for each slot."""

    def __init__(self, links: Links, settings: RedisSettings, clock: Callable[[], float]) -> None:
        self._links = links
        self._clock = clock
        self._apart = settings.cluster
        self._longest = min(settings.block_for, settings.retry_after)
        self._thread = _Thread()

    # -- what is known ----------------------------------------------------------------------------

    def expect(self, queues: Sequence[str], seconds: float, ahead: float) -> None:
        """Note that nothing is there for so many seconds, -1 for ever.

        `ahead` is how much our clock is ahead of the server's, or a little less.
        """
        self._thread.ahead = ahead
        self.expect_until(queues, time.monotonic() + self._bounded([seconds]))

    def expect_until(self, queues: Sequence[str], until: float) -> None:
        """Note that nothing is there until a moment."""
        self._thread.outlook = (tuple(queues), until)

    @property
    def expected(self) -> list[float]:
        """The moment until which nothing is there, if it is known."""
        return [] if self._thread.outlook is None else [self._thread.outlook[1]]

    def forget(self) -> None:
        """Expect nothing."""
        self._thread.outlook = None

    def _until_next(self, queues: Sequence[str]) -> float:
        """Give the seconds until there may be a job: what the last reservation said, or a look."""
        outlook, self._thread.outlook = self._thread.outlook, None
        if outlook is not None and outlook[0] == tuple(queues):
            return outlook[1] - time.monotonic()
        seconds = []
        for group in self._groups(queues):
            keys = [self._links.keys.of(queue) for queue in group]
            names = tuple(k for each in keys for k in each[:4])
            with self._links.of(keys[0].ready) as link:
                (next_one,) = link.ask(call("outlook", names))
            if next_one == b"0":
                return 0.0
            seconds.append(float(next_one))
        return self._bounded(seconds)

    def _bounded(self, seconds: Sequence[float]) -> float:
        """Give the shortest wait; what PHP delays, or gives back, wakes nobody."""
        waits = [each + _MARGIN + _DRIFT * each for each in seconds if each >= 0]
        return min([*waits, self._longest])

    def taken(self) -> Taken | None:
        """Give what the last wait has taken, once."""
        taken, self._thread.taken = self._thread.taken, None
        return taken

    # -- waiting ----------------------------------------------------------------------------------

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> None:
        """Wait for at most `timeout` seconds; a readable `wake` ends it.

        Where all queues are waited for at once, it ends with a reservation by the server itself:
        that spares the way there and back.
        """
        if self._thread.taken is not None:
            return
        outlook = self._thread.outlook is not None
        ends = self._until_next(queues)
        until = time.monotonic() + min(timeout, ends)
        listeners = self._listeners(queues)
        if until <= time.monotonic():
            return
        then = None
        if outlook and len(listeners) == 1:
            then = call(
                "reserve", tuple(k for queue in queues for k in self._links.keys.of(queue)[:4]), 1
            )
        try:
            self._wait(listeners, until, wake, then, exactly=ends <= timeout)
        except BackendUnavailable:
            for listener, _ in listeners:  # none may go on waiting: it would take a token
                listener.drop()
            raise
        if then is not None:
            self._take(listeners[0][0].found, queues)

    def _take(self, reply: Reply, queues: Sequence[str]) -> None:
        """Keep what a wait has reserved; found nothing then, the next look is made anew."""
        if isinstance(reply, list) and len(reply) > EMPTY:
            thread = self._thread
            thread.taken = Taken(tuple(queues), reply, thread.ahead, self._clock())

    def _wait(
        self,
        listeners: Listening,
        until: float,
        wake: int | None,
        then: Command | None,
        *,
        exactly: bool,
    ) -> None:
        # The server ends a pop a tenth of a second late, but that saves telling it to.
        ours, servers = (0.0, _LATER) if exactly else (_PATIENCE, 0.0)
        keys = self._links.keys
        wires = []
        with guarded():
            for listener, names in listeners:
                notify = [keys.of(name).notify for name in names]
                wires.append(listener.listen(notify, until - time.monotonic() + servers, then))
        seconds = until - time.monotonic() + ours
        told = until_one(wires, wake, seconds)
        with guarded():
            for listener, names in listeners:
                if told and (len(listeners) == 1 or listener.answered()):
                    listener.hear()
                else:
                    each = [keys.of(name) for name in names]
                    listener.end([(of.ready, of.notify) for of in each])

    def _listeners(self, queues: Sequence[str]) -> Listening:
        thread = self._thread
        if thread.pid != host.pid():
            self._thread = thread = _Thread()
        found: list[tuple[Listener, Sequence[str]]] = []
        for group in self._groups(queues):
            ready = self._links.keys.of(group[0]).ready
            key = ready if self._apart else ""
            listener = thread.listeners.get(key)
            if listener is None:
                link = self._links.of(ready)
                listener = thread.listeners[key] = Listener(self._links.server, link)
            found.append((listener, group))
        return found

    def _groups(self, queues: Sequence[str]) -> list[list[str]]:
        return [[queue] for queue in queues] if self._apart else [list(queues)]

    def close(self) -> None:
        """Close this thread's connections."""
        for listener in self._thread.listeners.values():
            listener.drop()
        self._thread.listeners.clear()
