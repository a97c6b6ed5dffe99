"""Deadline: ends an exchange over a socket that takes too long in total.

A socket's own timeout starts again with each byte, and with each address of a name.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Deadline:
    """Ends the exchange on the socket that it connected, after some seconds, unless left before."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._same: socket.socket | None = None
        """A duplicate of the socket: TLS replaces the original."""
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._same is not None:
            self._same.close()

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connected socket. Raises `OSError`. Only resolving the name may take longer."""
        trouble: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self._left())
                made.connect(address)
                self._same = made.dup()
                self._left()  # it ended before there was anything to shut down
            except OSError as error:
                made.close()
                trouble = error
            else:
                return made
        raise trouble

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _end(self) -> None:
        if self._same is not None:
            with suppress(OSError):
                self._same.shutdown(socket.SHUT_RDWR)
