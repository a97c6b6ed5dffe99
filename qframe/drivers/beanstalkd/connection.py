"""BeanstalkdConnection: commands and their answers, on a socket; two of them for each thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any

from qframe import forks
from qframe.config import BeanstalkdSettings
from qframe.contracts.step import Reservation
from qframe.drivers import process
from qframe.drivers.beanstalkd import errors
from qframe.drivers.beanstalkd.protocol import JobStats, ServerStats
from qframe.drivers.sockets import let_block, limited, readable
from qframe.exceptions import BackendUnavailable

Reply = tuple[bytes, list[bytes], bytes]
"""The first word of an answer, all its words, and the body behind them."""

_BODIES = {b"RESERVED", b"FOUND", b"OK"}
_PLAIN = {
    b"INSERTED", b"USING", b"DEADLINE_SOON", b"TIMED_OUT", b"DELETED", b"RELEASED", b"BURIED",
    b"TOUCHED", b"WATCHING", b"NOT_IGNORED", b"NOT_FOUND", b"KICKED", b"PAUSED", b"DRAINING",
    b"JOB_TOO_BIG", b"OUT_OF_MEMORY", b"EXPECTED_CRLF",
}  # fmt: skip
_LONGEST_LINE = 300
_BUFFER = 65_536
_STALE = 0.005
"""Seconds of silence after which a connection is looked at before it is used.

In less no server restarts; a look costs a push a twentieth, and who pushes on needs none.
"""


def where(settings: BeanstalkdSettings) -> str:
    """Say where the server is."""
    if settings.host.startswith("/"):
        return f"beanstalkd at {settings.host}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"beanstalkd://{host}:{settings.port}"


class BeanstalkdConnection:
    """A connection, made when it is first used; closed whenever it may be out of step.

    What it has reserved is in `held`, and lost, all of it, with the connection. One thread reserves
    on it; others may settle and renew what it holds.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self.lock = forks.rlock()
        self.where = where(settings)
        self.clock = clock
        self.held: set[Reservation] = set()
        self.server = ServerStats("", 0, 0.0)
        self.waits_for: tuple[bytes, ...] = ()
        """The tubes a blocking reserve is under way on; nothing else can be said meanwhile."""
        self.next_number = 0
        """The number of the next message if it follows as the last ones did; 0: no idea."""
        self._last = self._distance = 0
        self._settings = settings
        self._pid = process.pid()
        self._socket: socket.socket | None = None
        self._reader: Any = BytesIO()
        """A binary file, which `socket.makefile` is not for type checkers."""
        self._watched: tuple[bytes, ...] = ()
        self._used = b""
        self._spoke = 0.0

    def __del__(self) -> None:
        """Close what a thread that has ended left open."""
        self.drop()

    # -- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Connect, unless there is a connection that seems to be sound."""
        if self._socket is not None and time.monotonic() - self._spoke > _STALE:
            if not self.is_readable():
                return
            self.drop()  # the server has closed it, or said something nobody asked for
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
            # Not `makefile`: its reads go through Python, some 2 us each.
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
        """Give the descriptor on which an answer is waited for."""
        return (self._socket or self._connect()).fileno()

    def drop(self) -> None:
        """Close the connection; the server gives what it has reserved to others at once."""
        sock, self._socket = self._socket, None
        self.waits_for = ()
        for job in self.held:
            job.sure_until = 0.0
        self.held.clear()
        if sock is not None:
            with suppress(OSError):
                self._reader.close()
                sock.close()

    # -- exchanges --------------------------------------------------------------------------------

    def exchange(self, commands: Sequence[bytes], count: int | None = None) -> list[Reply]:
        """Send commands in one go and give the answer to each, or `count` answers.

        Raises `Cut` or `OutOfStep`; the connection is closed then.
        """
        with self.lock:
            if self._pid != process.pid():
                self.drop()  # the parent's socket is used by the parent
                self._pid = process.pid()
            sock = self._socket or self._connect()
            replies: list[Reply] = []
            sent = False
            try:
                sock.sendall(b"".join(commands))
                sent = True
                for _ in range(len(commands) if count is None else count):
                    replies.append(self._read(sock))  # noqa: PERF401 (a break tells how many came)
            except (OSError, ValueError) as error:
                self.drop()
                if isinstance(error, errors.OutOfStep):
                    raise
                raise errors.cut(error, self.where, sent=sent, heard=len(replies)) from error
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

    def stats_of(self, number: int, told: Reply | None = None) -> JobStats | None:
        """Give what the server has `told` of a job, or is asked for; None when there is none."""
        word, _, yaml = told or self.exchange([b"stats-job %d\r\n" % number])[0]
        if word != b"OK":
            return None
        try:
            return JobStats.read(yaml)
        except ValueError as error:
            self.drop()
            raise errors.out_of_step(yaml, self.where) from error

    def use(self, tube: bytes) -> list[bytes]:
        """Give the command that makes `tube` the one put to, where it is not."""
        if tube == self._used:
            return []
        self._used = tube
        return [b"use %b\r\n" % tube]

    def watch(self, *tubes: bytes) -> list[bytes]:
        """Give the commands that make `tubes` those watched, where they are not."""
        if tubes == self._watched:
            return []
        before, self._watched = self._watched, tubes
        commands = [b"watch %b\r\n" % tube for tube in tubes if tube not in before]
        return commands + [b"ignore %b\r\n" % tube for tube in before if tube not in tubes]

    def came(self, number: int) -> bool:
        """Note the number of the message that came; says whether it is the one expected.

        Producers that go on make a steady row.
        """
        expected = number == self.next_number
        distance, self._last = number - self._last, number
        self.next_number = max(0, number + distance) if distance == self._distance else 0
        self._distance = distance
        return expected


def _silence(sock: socket.socket) -> OSError:
    """Say why there was nothing more to read: the time was over, or the connection was."""
    try:
        if not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return ConnectionError("the server closed the connection")
    except BlockingIOError:
        pass
    except OSError as error:
        return error
    return TimeoutError()


class Connections(threading.local):
    """What one thread has; a forked child has none of its parent's.

    Messages are reserved and settled on one, everything else is said on the other: what a job
    pushes has nothing to do with its lease.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self._make: Callable[[], BeanstalkdConnection] = lambda: BeanstalkdConnection(
            settings, clock
        )
        self._begin()

    def _begin(self) -> None:
        self._pid = process.pid()
        self._talk, self._work = self._make(), self._make()

    def talk(self) -> BeanstalkdConnection:
        """Give the connection on which everything but reservations is said."""
        if self._pid != process.pid():
            self._begin()
        return self._talk

    def work(self, *, idle: bool = False) -> BeanstalkdConnection:
        """Give the one on which this thread reserves; `idle`: from now on one that holds nothing.

        A blocking reserve goes on such a one: leases are renewed on the other meanwhile, which is
        closed with the last of its jobs.
        """
        if self._pid != process.pid():
            self._begin()
        if idle and self._work.held:
            self._work = self._make()
        return self._work

    def close(self) -> None:
        """Close this thread's connections."""
        self._talk.drop()
        self._work.drop()
