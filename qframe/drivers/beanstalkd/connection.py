"""BeanstalkdConnection: commands and answers on a socket; two connections for each thread."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

from qframe import forks
from qframe.contracts.step import Reservation
from qframe.drivers import process
from qframe.drivers.beanstalkd import errors
from qframe.drivers.beanstalkd.protocol import JobStats, ServerStats
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.sockets import let_block, limited, readable
from qframe.exceptions import BackendUnavailable

Reply = tuple[bytes, list[bytes], bytes]
"""The first word of an answer, all its words, and its body."""

_BODIES = {b"RESERVED", b"FOUND", b"OK"}
_PLAIN = {
    b"INSERTED", b"USING", b"DEADLINE_SOON", b"TIMED_OUT", b"DELETED", b"RELEASED", b"BURIED",
    b"TOUCHED", b"WATCHING", b"NOT_IGNORED", b"NOT_FOUND", b"KICKED", b"PAUSED", b"DRAINING",
    b"JOB_TOO_BIG", b"OUT_OF_MEMORY", b"EXPECTED_CRLF",
}  # fmt: skip
_LONGEST_LINE = 300
_BUFFER = 65_536
_STALE = 0.005
"""Seconds of silence after which a connection is checked before its use.

No server restarts faster. A check costs a push a twentieth, and frequent pushes need none.
"""


def where(settings: BeanstalkdSettings) -> str:
    """Return the server's address."""
    if settings.host.startswith("/"):
        return f"beanstalkd at {settings.host}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"beanstalkd://{host}:{settings.port}"


class BeanstalkdConnection:
    """A connection, opened on first use and closed whenever it may be out of step.

    `held` has its reservations, which all end with the connection. One thread reserves on it;
    others may settle and renew its reservations.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self.lock = forks.rlock()
        self.where = where(settings)
        self.clock = clock
        self.held: set[Reservation] = set()
        self.server = ServerStats("", 0, 0.0)
        self.waits_for: tuple[bytes, ...] = ()
        """The tubes of a blocking reserve in progress; no other command can be sent meanwhile."""
        self.next_number = 0
        """The expected number of the next message; 0 if unknown."""
        self._last = self._distance = 0
        self._settings = settings
        self._pid = process.pid()
        self._socket: socket.socket | None = None
        self._reader: Any = BytesIO()
        """A binary file, for which type checkers do not accept `socket.makefile`."""
        self._watched: tuple[bytes, ...] = ()
        self._used = b""
        self._spoke = 0.0

    def __del__(self) -> None:
        """Close the connection of a thread that has ended."""
        self.drop()

    # -- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Connect, unless the current connection seems sound."""
        if self._socket is not None and time.monotonic() - self._spoke > _STALE:
            if not self.is_readable():
                return
            self.drop()  # the server has closed it, or sent something unrequested
        if self._socket is None:
            self._connect()

    def _connect(self) -> socket.socket:
        with forks.undisturbed(asks=True):
            return self._connected()

    def _connected(self) -> socket.socket:
        settings, connecting = self._settings, limited(self._settings.connect_timeout)
        try:
            if settings.host.startswith("/"):
                self._socket = sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(connecting)
                sock.connect(settings.host)
            else:
                address = settings.host, settings.port
                self._socket = sock = socket.create_connection(address, connecting)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as error:
            self.drop()
            unreachable = BackendUnavailable(f"{self.where}: {errors.reason(error)}")
            unreachable.in_doubt = False
            raise unreachable from error
        sock.settimeout(limited(settings.timeout))
        if let_block(sock):
            # Not `makefile`, which reads through Python and takes 2 us each time.
            self._reader = open(sock.fileno(), "rb", _BUFFER, closefd=False)  # noqa: SIM115
        else:
            self._reader = sock.makefile("rb", _BUFFER)
        self._watched, self._used = (b"default",), b"default"
        now = self.clock()
        try:
            ((_, _, body),) = self.exchange([b"stats\r\n"])
            self.server = ServerStats.read(body, now)
        except (KeyError, ValueError, errors.OutOfStep) as error:
            self.drop()
            text = f"{self.where}: what answers there is no beanstalkd"
            raise errors.NoBeanstalkd(text) from error
        return sock

    def is_readable(self) -> bool:
        """Whether an answer, or the end of the connection, can be read at once."""
        return self._socket is None or bool(readable([self._socket.fileno()], 0))

    def fileno(self) -> int:
        return (self._socket or self._connect()).fileno()

    def drop(self) -> None:
        """Close the connection; the server at once makes its reserved messages ready."""
        sock, self._socket = self._socket, None
        self.waits_for = ()
        for job in self.held:
            job.sure_until = 0.0
        self.held.clear()
        if sock is not None:
            with suppress(OSError):
                self._reader.close()
                sock.close()

    def lose(self, number: str) -> None:
        """Note that an earlier reservation of a message has ended, which was reserved here anew.

        To the server both are the same.
        """
        for job in [each for each in self.held if each.id == number]:
            self.held.discard(job)
            job.sure_until = 0.0

    # -- exchanges --------------------------------------------------------------------------------

    def exchange(self, commands: Sequence[bytes], count: int | None = None) -> list[Reply]:
        """Send commands in one go. Returns the answer to each, or `count` answers.

        Raises `Cut` or `OutOfStep`, and then closes the connection.
        """
        with self.lock:
            if self._pid != process.pid():
                self.drop()  # the parent still uses the parent's socket
                self._pid = process.pid()
            sock = self._socket or self._connect()
            replies: list[Reply] = []
            sent = False
            try:
                sock.sendall(b"".join(commands))
                sent = True
                for _ in range(len(commands) if count is None else count):
                    replies.append(self._read(sock))  # noqa: PERF401 (an error shows how many came)
            except (OSError, ValueError) as error:
                self.drop()
                if isinstance(error, errors.OutOfStep):
                    raise
                raise errors.cut(error, self.where, sent=sent, replies=len(replies)) from error
            except BaseException:
                self.drop()
                raise
            self._spoke = time.monotonic()
            return replies

    def _read(self, sock: socket.socket) -> Reply:
        line = self._reader.readline(_LONGEST_LINE)
        if line[-2:] != b"\r\n":
            raise errors.out_of_step(line, self.where) if line else _silence(sock)
        words = line.split() or [b""]
        word = words[0]
        if word in _PLAIN:
            return word, words, b""
        if word in _BODIES:
            body: bytes | None = self._reader.read(int(words[-1]) + 2)
            if body is None or body[-2:] != b"\r\n":
                raise _silence(sock)
            return word, words, body[:-2]
        raise errors.out_of_step(line, self.where)

    def stats_of(self, number: int, reply: Reply | None = None) -> JobStats | None:
        """Return a job's stats, from `reply` or by a query.

        None if there is no such job.
        """
        word, _, yaml = reply or self.exchange([b"stats-job %d\r\n" % number])[0]
        if word != b"OK":
            return None
        try:
            return JobStats.read(yaml)
        except ValueError as error:
            self.drop()
            raise errors.out_of_step(yaml, self.where) from error

    def use(self, tube: bytes) -> list[bytes]:
        """Return the command to make `tube` the current one, if it is not."""
        if tube == self._used:
            return []
        self._used = tube
        return [b"use %b\r\n" % tube]

    def watch(self, *tubes: bytes) -> list[bytes]:
        """Return the commands to watch exactly these tubes."""
        if tubes == self._watched:
            return []
        before, self._watched = self._watched, tubes
        commands = [b"watch %b\r\n" % tube for tube in tubes if tube not in before]
        return commands + [b"ignore %b\r\n" % tube for tube in before if tube not in tubes]

    def came(self, number: int) -> bool:
        """Note the number of a message. Returns whether it was the expected one.

        Steady producers make a regular sequence.
        """
        expected = number == self.next_number
        distance, self._last = number - self._last, number
        self.next_number = max(0, number + distance) if distance == self._distance else 0
        self._distance = distance
        return expected


def _silence(sock: socket.socket) -> OSError:
    """Return why nothing more could be read: a timeout, or the end of the connection."""
    try:
        if not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return ConnectionError("the server closed the connection")
    except BlockingIOError:
        pass
    except OSError as error:
        return error
    return TimeoutError()


class BeanstalkdConnections(forks.PerThread):
    """The connections of one thread; a forked child opens its own.

    Messages are reserved and settled on one, everything else goes over the other, because a job's
    pushes have nothing to do with its lease.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self._make = partial(BeanstalkdConnection, settings, clock)
        super().__init__()

    def begin(self) -> None:
        self.talk, self._work = self._make(), self._make()

    def work(self, *, idle: bool = False) -> BeanstalkdConnection:
        """Return the connection for reservations; `idle`: from now on one that holds nothing.

        A blocking reserve needs an idle one: meanwhile leases are renewed on the other, which is
        closed with the last of its jobs.
        """
        if idle and self._work.held:
            self._work = self._make()
        return self._work

    def close(self) -> None:
        self.talk.drop()
        self._work.drop()
