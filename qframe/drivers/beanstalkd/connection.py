"""Connections to the server: exchanges of commands and answers, two connections for each thread."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import greenstalk

from qframe.config import BeanstalkdSettings
from qframe.contracts.step import Reservation
from qframe.drivers import process
from qframe.drivers.beanstalkd import errors
from qframe.drivers.beanstalkd.protocol import JobStats, ServerStats
from qframe.drivers.sockets import let_block

Reply = tuple[bytes, list[bytes], bytes]
"""The first word of an answer, all its words, and the body behind them."""

_BODIES = {b"RESERVED", b"FOUND", b"OK"}
_PLAIN = {
    b"INSERTED", b"USING", b"DEADLINE_SOON", b"TIMED_OUT", b"DELETED", b"RELEASED", b"BURIED",
    b"TOUCHED", b"WATCHING", b"NOT_IGNORED", b"NOT_FOUND", b"KICKED", b"PAUSED", b"DRAINING",
    b"JOB_TOO_BIG", b"OUT_OF_MEMORY", b"EXPECTED_CRLF",
}  # fmt: skip
_LONGEST_LINE = 300
_STALE = 0.2
"""Seconds of silence after which a connection is looked at before it is used."""


def where(settings: BeanstalkdSettings) -> str:
    """Say where the server is."""
    if settings.host.startswith("/"):
        return f"beanstalkd at {settings.host}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"beanstalkd://{host}:{settings.port}"


class Connection:
    """A connection, made when it is first used; closed whenever it may be out of step.

    What it has reserved is in `held`, by its number, and lost, all of it, with the connection. One
    thread reserves on it; others may settle and renew what it holds.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self.where = where(settings)
        self.clock = clock
        self.held: dict[int, Reservation] = {}
        self.server = ServerStats("", 0, 0.0)
        self.waits_for: tuple[bytes, ...] = ()
        """The tubes a blocking reserve is under way on; nothing else can be said meanwhile."""
        self.taken: Reply | None = None
        """The message such a reserve was answered with."""
        self._settings = settings
        self._pid = process.pid()
        self._client: greenstalk.Client[bytes] | None = None
        self.watched: tuple[bytes, ...] = ()
        self._used = b""
        self._spoke = 0.0
        self._last = self._step = self._next = 0

    def __del__(self) -> None:
        """Close what a thread that has ended left open."""
        self.drop()

    # -- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Connect, unless there is a connection that seems to be sound."""
        if self._client is not None and time.monotonic() - self._spoke > _STALE:
            if not self.is_readable():
                return
            self.drop()  # the server has closed it, or said something nobody asked for
        if self._client is None:
            self._connect()

    def _connect(self) -> greenstalk.Client[bytes]:
        try:
            sock = self._socket()
        except OSError as error:
            raise errors.unreachable(error, self.where) from error
        client = self._client = greenstalk.Client(sock, encoding=None)
        self.watched, self._used = (b"default",), b"default"
        now = self.clock()
        try:
            ((_, _, body),) = self.exchange([b"stats\r\n"])
            self.server = ServerStats.read(body, now)
        except (KeyError, ValueError, errors.OutOfStep) as error:
            self.drop()
            raise errors.no_beanstalkd(self.where) from error
        return client

    def _socket(self) -> socket.socket:
        settings = self._settings
        if settings.host.startswith("/"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(settings.connect_timeout)
            try:
                sock.connect(settings.host)
            except BaseException:
                sock.close()
                raise
        else:
            address = settings.host, settings.port
            sock = socket.create_connection(address, settings.connect_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(settings.timeout)
        let_block(sock)
        return sock

    def is_readable(self) -> bool:
        """Whether an answer, or the end of the connection, can be read at once."""
        return self._client is None or bool(readable([self.fileno()], 0))

    def fileno(self) -> int:
        """Give the descriptor on which an answer is waited for."""
        client = self._client or self._connect()
        return client._sock.fileno()  # noqa: SLF001 (greenstalk offers no other way to it)

    def drop(self) -> None:
        """Close the connection; the server gives what it has reserved to others at once."""
        client, self._client = self._client, None
        self.waits_for, self.taken = (), None
        for job in self.held.values():
            job.sure_until = 0.0
        self.held.clear()
        if client is not None:
            with suppress(OSError):
                client.close()

    # -- exchanges --------------------------------------------------------------------------------

    def exchange(self, commands: Sequence[bytes], count: int | None = None) -> list[Reply]:
        """Send commands in one go and give the answer to each, or `count` answers.

        Raises `Cut` or `OutOfStep`; the connection is closed then.
        """
        with self.lock:
            if self._pid != process.pid():
                self.drop()  # the parent's socket is used by the parent
                self._pid = process.pid()
            client = self._client or self._connect()
            replies: list[Reply] = []
            sent = False
            try:
                client._sock.sendall(b"".join(commands))  # noqa: SLF001 (greenstalk sends one at a time)
                sent = True
                count = len(commands) if count is None else count
                for _ in range(count):
                    replies.append(self._read(client))  # noqa: PERF401 (a break tells how many came)
            except errors.OutOfStep:
                self.drop()
                raise
            except (OSError, ValueError) as error:
                if isinstance(error, BlockingIOError):
                    error = TimeoutError("timed out")
                self.drop()
                raise errors.cut(error, self.where, sent=sent, heard=len(replies)) from error
            except BaseException:
                self.drop()
                raise
            self._spoke = time.monotonic()
            return replies

    def _read(self, client: greenstalk.Client[bytes]) -> Reply:
        reader = client._reader  # noqa: SLF001 (what it parses one answer at a time from)
        line = reader.readline(_LONGEST_LINE)
        if line[-2:] != b"\r\n":
            if line:
                raise errors.out_of_step(line, self.where)
            raise self._silence(client)
        words = line.split()
        word = words[0] if words else b""
        if word in _BODIES:
            body: bytes | None = reader.read(int(words[-1]) + 2)
            if body is None or body[-2:] != b"\r\n":
                raise self._silence(client)
            return word, words, body[:-2]
        if word not in _PLAIN:
            raise errors.out_of_step(line, self.where)
        return word, words, b""

    def _silence(self, client: greenstalk.Client[bytes]) -> OSError:
        """Say why there was nothing more to read: the time was over, or the connection was."""
        try:
            if client._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):  # noqa: SLF001 (its only way)
                return TimeoutError("timed out")  # just now there is something
        except BlockingIOError:
            return TimeoutError("timed out")
        except OSError as error:
            return error
        return ConnectionError("the server closed the connection")

    def job_stats(self, reply: Reply) -> JobStats | None:
        """Read an answer to `stats-job`; None when there is no such job."""
        if reply[0] != b"OK":
            return None
        try:
            return JobStats.read(reply[2])
        except ValueError as error:
            self.drop()
            raise errors.out_of_step(reply[2], self.where) from error

    def stats_of(self, number: int) -> JobStats | None:
        """Ask what the server knows of a job."""
        return self.job_stats(*self.exchange([b"stats-job %d\r\n" % number]))

    def use(self, tube: bytes) -> list[bytes]:
        """Give the command that makes `tube` the one put to, where it is not."""
        if tube == self._used:
            return []
        self._used = tube
        return [b"use %b\r\n" % tube]

    def watch(self, tubes: tuple[bytes, ...]) -> list[bytes]:
        """Give the commands that make `tubes` those watched, where they are not."""
        if tubes == self.watched:
            return []
        before, self.watched = self.watched, tubes
        commands = [b"watch %b\r\n" % tube for tube in tubes if tube not in before]
        return commands + [b"ignore %b\r\n" % tube for tube in before if tube not in tubes]

    def next_number(self) -> int:
        """Give the number the next message has if it follows as the last ones did; 0: no idea."""
        return self._next

    def came(self, number: int) -> None:
        """Note the number of the message that came: producers that go on make a steady row."""
        step, self._last = number - self._last, number
        self._next = max(0, number + step) if step == self._step else 0
        self._step = step


class Connections(threading.local):
    """What one thread has; a forked child has none of its parent's.

    Messages are reserved and settled on one, everything else is said on the other: what a job
    pushes has nothing to do with its lease.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self._make: Callable[[], Connection] = lambda: Connection(settings, clock)
        self._begin()

    def _begin(self) -> None:
        self._pid = process.pid()
        self._talk: Connection | None = None
        self._work: list[Connection] = []

    def talk(self) -> Connection:
        """Give the connection on which everything but reservations is said."""
        if self._pid != process.pid():
            self._begin()
        if self._talk is None:
            self._talk = self._make()
        return self._talk

    def work(self, *, idle: bool = False) -> Connection:
        """Give the one on which this thread reserves; `idle`: from now on one that holds nothing.

        A blocking reserve goes on such a one: leases are renewed on the others meanwhile.
        """
        if self._pid != process.pid():
            self._begin()
        if not self._work or (idle and self._work[-1].held):
            free = [each for each in self._work if not each.held] or [self._make()]
            self._work = [each for each in self._work if each.held] + free[:1]
        return self._work[-1]

    def close(self) -> None:
        """Close this thread's connections."""
        for each in (*self._work, self._talk):
            if each is not None:
                each.drop()
        self._begin()


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Give those of the descriptors that can be read, once one can, or after so many seconds."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
