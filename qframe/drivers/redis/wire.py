"""Wire: reads and writes the bytes of a connection, at less cost than redis-py.

redis-py opens the connection; then its socket is used directly. A plain socket blocks in the
kernel, with the kernel's timeouts: Python's would cost one more system call each.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Any

import hiredis
from redis.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as TooLate

from qframe.drivers.sockets import let_block

_BUFFER = 65536
_MISSING = object()


class Wire:
    """Writes commands to one connection and reads their replies.

    Raises redis-py's `ConnectionError` or `TimeoutError`, or `OSError`; then the connection is out
    of step and must be closed.
    """

    __slots__ = ("_buffer", "_connection", "_gets", "_reader", "_receive", "_socket", "send")

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        plain: Any = connection._sock  # noqa: SLF001 (redis-py offers no other way to it)
        if type(plain) is socket.socket:
            let_block(plain)
        self._socket = plain
        self.send = plain.sendall
        self._receive = plain.recv_into
        self._buffer = bytearray(_BUFFER)
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=DefaultParser.parse_error,
            notEnoughData=_MISSING,
        )
        self._gets = self._reader.gets

    def read(self) -> Any:  # noqa: ANN401 (any reply)
        """Read one reply. Returns server errors instead of raising them."""
        reply = self._gets(False)
        while reply is _MISSING:
            try:
                count = self._receive(self._buffer)
            except BlockingIOError:  # how the kernel reports a timeout
                raise TooLate("the server did not answer in time") from None
            if not count:
                raise ConnectionLost("the server closed the connection")
            self._reader.feed(self._buffer, 0, count)  # type: ignore[arg-type] # its stub knows no bytearray
            reply = self._gets(False)
        if isinstance(reply, ConnectionLost):
            raise reply
        return reply

    def ahead(self) -> bool:
        """Whether received bytes have not been read yet."""
        return self._reader.has_data() or (
            isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        )

    def readable(self) -> bool:
        """Whether a reply or the end of the connection can be read."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return self.ahead() or bool(poll.poll(0))

    def fileno(self) -> int:
        """Return the descriptor to wait on while nothing is `ahead`."""
        return int(self._socket.fileno())

    def disconnect(self) -> None:
        self._connection.disconnect()
