"""Waiting: one blocking reserve on all tubes, which takes the message that ends it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from qframe.contracts.step import Release
from qframe.drivers import process
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection, BeanstalkdConnections, Reply
from qframe.drivers.beanstalkd.job import BeanstalkdJob
from qframe.drivers.beanstalkd.protocol import tube_of
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.guard import guarded
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

_NUMBERS = itertools.count(1)


class Waits:
    """The blocking reserves of a backend, one for each thread, on a connection without jobs.

    A reserve continues after its wait has timed out; the next `reserve` reads its answer, which
    also tells when there is no message. It also watches a tube of its own, in which a message only
    ends it.
    """

    def __init__(
        self,
        connections: BeanstalkdConnections,
        settings: BeanstalkdSettings,
        made: Callable[[BeanstalkdConnection, Reply], list[BeanstalkdJob]],
    ) -> None:
        self._connections = connections
        self._seconds = math.ceil(settings.block_for)
        self._made = made

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> None:
        with guarded:
            connection = self._connections.work(idle=True)
            tubes = tuple(map(tube_of, queues))
            if not connection.waits_for or connection.waits_for[1:] != tubes:
                self.end(connection)
                connection.open()
                own = b"qframe/%b/%d" % (process.token().encode(), next(_NUMBERS))
                if commands := connection.watch(own, *tubes):
                    connection.exchange(commands)
                connection.exchange([b"reserve-with-timeout %d\r\n" % self._seconds], 0)
                connection.waits_for = (own, *tubes)
            watched = [connection.fileno(), *([] if wake is None else [wake])]
        readable(watched, timeout)

    def outcome(
        self, connection: BeanstalkdConnection, queues: Sequence[str]
    ) -> list[BeanstalkdJob] | None:
        """Return what a wait took, [] while it continues; None if a search is needed."""
        if not connection.waits_for:
            return None
        if connection.waits_for[1:] != tuple(map(tube_of, queues)):
            self.end(connection)
            return None
        if not self._is_answered(connection):
            return []
        try:
            reply = _read(connection)
            return (self._made(connection, reply) or None) if reply[0] == b"RESERVED" else None
        except BackendUnavailable:
            return None  # the server was restarted: search anew

    def _is_answered(self, connection: BeanstalkdConnection) -> bool:
        """Whether it has ended; certain about messages whose push was answered before."""
        if not connection.is_readable():
            self._connections.talk.exchange([b"list-tube-used\r\n"])  # answered after the push
        return connection.is_readable()

    def end(self, connection: BeanstalkdConnection) -> None:
        """End it at once by a message in its own tube; what it took goes back uncounted."""
        number = b""
        if connection.waits_for and not self._is_answered(connection):
            talk = self._connections.talk
            put = b"put 0 0 60 0\r\n\r\n"
            word, words, _ = talk.exchange([*talk.use(connection.waits_for[0]), put])[-1]
            if word == b"INSERTED":
                number = words[1]
            else:  # it takes no more messages
                connection.drop()
        if not connection.waits_for:
            return
        reply = _read(connection)
        if number:
            connection.exchange([b"delete %b\r\n" % number])
        if reply[0] == b"RESERVED" and reply[1][1] != number:
            for job in self._made(connection, reply):
                job.operate(Release(counted=False))


def _read(connection: BeanstalkdConnection) -> Reply:
    connection.waits_for = ()
    return connection.exchange([], 1)[0]
