"""Transports of the AMQP client that read many frames from the socket at once.

The client's own ask the system for the header of a frame, its payload and its last byte, one after
the other: nine calls for a message.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

from amqp.exceptions import UnexpectedFrame
from amqp.transport import SSLTransport, TCPTransport

_HEADER = struct.Struct(">BHI")
_AROUND = _HEADER.size + 1
"""Bytes of a frame besides its payload."""
_END = 0xCE
_AT_ONCE = 65_536

Frame = tuple[int, int, bytes]
"""Its type, its channel and its payload."""


class _Buffered:
    """Reads frames from a buffer, which one call fills with all that has come."""

    _read_buffer: bytes
    _quick_recv: Any
    _at = 0
    """Where the next frame begins in the buffer."""

    def has_frame(self) -> bool:
        """Whether the next frame is in the buffer, all of it."""
        there = len(self._read_buffer) - self._at
        if there < _AROUND:
            return False
        size: int = _HEADER.unpack_from(self._read_buffer, self._at)[2]
        return there >= size + _AROUND

    def read_frame(self) -> Frame:
        """Return the next frame; waits for it, as long as the socket's timeout."""
        while (found := self.next_frame()) is None:
            self._receive()
        return found

    def next_frame(self) -> Frame | None:
        """Return the next frame if all of it is in the buffer."""
        buffer, begin = self._read_buffer, self._at + _HEADER.size
        if len(buffer) <= begin:
            return None
        kind, channel, size = _HEADER.unpack_from(buffer, self._at)
        end = begin + size
        if len(buffer) <= end:
            return None
        if buffer[end] != _END:
            raise UnexpectedFrame(f"a frame ends with {buffer[end]:#04x}")
        self._at = end + 1
        return kind, channel, buffer[begin:end]

    def _receive(self) -> None:
        found = self._quick_recv(_AT_ONCE)
        if not found:
            raise ConnectionResetError("Server unexpectedly closed connection")
        self._read_buffer, self._at = self._read_buffer[self._at :] + found, 0


class PlainTransport(_Buffered, TCPTransport):  # type: ignore[misc] # the client has no types
    """Over a socket."""


class TlsTransport(_Buffered, SSLTransport):  # type: ignore[misc] # as above
    """Over TLS; verifies by the context that it is given."""

    def _wrap_socket(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> Any:  # noqa: ANN401 (as above)
        return context.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)
