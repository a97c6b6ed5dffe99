"""One connection: exchanges of commands and answers, closed whenever it may be out of step."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import greenstalk

from qframe import host
from qframe.config import BeanstalkdSettings
from qframe.drivers.beanstalkd import trouble
from qframe.drivers.beanstalkd.wire import Facts
from qframe.drivers.sockets import Vigil, let_block
from qframe.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from qframe.drivers.beanstalkd.job import BeanstalkdJob

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


class Link:
    """A connection to the server, made when it is first used.

    One thread sends commands on it; the lease keeper's may touch a job in between, under `lock`.
    What it has reserved is in `held`, and lost, all of it, with the connection.
    """

    def __init__(
        self, settings: BeanstalkdSettings, where: str, clock: Callable[[], float]
    ) -> None:
        self.lock = threading.RLock()
        self.where = where
        self.held: dict[int, BeanstalkdJob] = {}
        self.facts = Facts("", 0, 0.0)
        self.waits_for: tuple[bytes, ...] = ()
        """The tubes a blocking reserve is under way on; nothing else can be said meanwhile."""
        self.taken: Reply | None = None
        """The job such a reserve was answered with."""
        self._settings = settings
        self._clock = clock
        self._pid = host.pid()
        self._client: greenstalk.Client[bytes] | None = None
        self._vigil: Vigil
        self._watched: tuple[bytes, ...] = ()
        self._used = b""
        self._spoke = 0.0
        self._last = self._step = self._guess = 0

    def __del__(self) -> None:
        """Close what a thread that has ended left open."""
        self.drop()

    # -- opening and closing --------------------------------------------------------------------

    @property
    def client(self) -> greenstalk.Client[bytes]:
        """Give greenstalk's client of this connection, connected."""
        return self._client or self._connect()

    def open(self) -> None:
        """Connect, unless there is a connection that seems to be sound."""
        if self._client is None:
            self._connect()
        elif time.monotonic() - self._spoke > _STALE and self.is_broken():
            self.drop()
            self._connect()

    def _connect(self) -> greenstalk.Client[bytes]:
        try:
            sock = self._socket()
        except OSError as error:
            raise trouble.unreachable(error, self.where) from error
        self._client = greenstalk.Client(sock, encoding=None)
        self._vigil = Vigil(sock)
        self._watched, self._used = (b"default",), b"default"
        now = self._clock()
        ((_, _, body),) = self.exchange(b"stats\r\n", 1)
        try:
            self.facts = Facts.read(body, now)
        except (KeyError, ValueError) as error:  # whatever it is, it is no beanstalkd
            self.drop()
            raise trouble.strange(body or b"nothing", self.where) from error
        return self._client

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

    def is_broken(self) -> bool:
        """Whether the server has closed the connection, or said something nobody asked for."""
        client = self._client
        return client is None or self.readable()

    def readable(self) -> bool:
        """Whether an answer, or the end of the connection, can be read at once."""
        poll = select.poll()
        try:
            poll.register(self.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def fileno(self) -> int:
        """Give the descriptor on which an answer is waited for."""
        return self.client._sock.fileno()  # noqa: SLF001 (greenstalk offers no other way to it)

    def drop(self) -> None:
        """Close the connection; the server gives what it has reserved to others at once."""
        client, self._client = self._client, None
        self.waits_for, self.taken = (), None
        self.held.clear()
        if client is not None:
            with suppress(OSError):
                client.close()

    # -- exchanges ------------------------------------------------------------------------------

    def exchange(self, commands: bytes, count: int) -> list[Reply]:
        """Send commands in one go and give the answer to each; closed where that breaks.

        Raises `Cut` or `OutOfStep`.
        """
        if self._pid != host.pid():
            self.drop()  # the parent's socket is used by the parent
            self._pid = host.pid()
        client = self._client or self._connect()
        replies: list[Reply] = []
        sent = False
        try:
            client._sock.sendall(commands)  # noqa: SLF001 (greenstalk sends one at a time)
            sent = True
            if count:
                self._vigil.keep()
            for _ in range(count):
                replies.append(self._read(client))  # noqa: PERF401 (a break tells how many came)
        except trouble.OutOfStep:
            self.drop()
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, BlockingIOError):
                error = TimeoutError("timed out")
            self.drop()
            raise trouble.cut(error, self.where, sent=sent, heard=len(replies)) from error
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
                raise trouble.strange(line, self.where)
            raise self._silence(client)
        words = line.split()
        word = words[0] if words else b""
        if word in _BODIES:
            body: bytes | None = reader.read(int(words[-1]) + 2)
            if body is None or body[-2:] != b"\r\n":
                raise self._silence(client)
            return word, words, body[:-2]
        if word not in _PLAIN:
            raise trouble.strange(line, self.where)
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

    def use(self, tube: bytes) -> tuple[bytes, int]:
        """Give the command that makes `tube` the one put to, and how many answers it has."""
        self.open()
        if tube == self._used:
            return b"", 0
        self._used = tube
        return b"use %b\r\n" % tube, 1

    def watch(self, tubes: tuple[bytes, ...]) -> tuple[bytes, int]:
        """Give the commands that make `tubes` those watched, and how many answers they have."""
        if tubes == self._watched:
            return b"", 0
        before, self._watched = self._watched, tubes
        commands = [b"watch %b\r\n" % tube for tube in tubes if tube not in before]
        commands += [b"ignore %b\r\n" % tube for tube in before if tube not in tubes]
        return b"".join(commands), len(commands)

    def guess(self) -> int:
        """Give the number the next job has if it follows as the last ones did; 0: no idea."""
        return self._guess

    def came(self, number: int) -> None:
        """Note the number of the job that came: producers that go on make a steady row."""
        step, self._last = number - self._last, number
        self._guess = number + step if step == self._step else 0
        self._step = step

    # -- a blocking reserve ---------------------------------------------------------------------

    def begin_to_wait(self, tubes: tuple[bytes, ...], seconds: int) -> None:
        """Send a reserve on all of these tubes, whose answer is not waited for."""
        self.open()
        commands, count = self.watch(tubes)
        if count:
            self.exchange(commands, count)
        self.exchange(b"reserve-with-timeout %d\r\n" % seconds, 0)
        self.waits_for = tubes

    def hear(self) -> None:
        """Read the answer to such a reserve; a job is in `taken` then."""
        self.waits_for = ()
        (reply,) = self.exchange(b"", 1)
        if reply[0] == b"RESERVED":
            self.taken = reply

    def break_off(self) -> Reply | None:
        """End such a reserve, and with it the connection; gives the job that came all the same."""
        try:
            self.client._sock.shutdown(socket.SHUT_WR)  # noqa: SLF001 (answered at once)
            self.hear()
            return self.taken
        except (BackendUnavailable, OSError):
            return None
        finally:
            self.drop()
