"""What the process of an isolated job and its worker say to each other, in lines of JSON."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress

from qframe.drivers import process
from qframe.drivers.guard import guarded
from qframe.exceptions import QframeError
from qframe.worker.isolation.errors import Message

_PART = 65536
_PATIENCE = 10.0
"""Seconds in which a job's process that waits for a message has to take it."""


class ChildChannel:
    """The job's end. Nothing breaks into a message; only the process it was made for speaks."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._pid = process.pid()
        self._lock = threading.Lock()

    def tell(self, message: Message) -> None:
        """Say something; raises `QframeError` where that is not possible."""
        if process.pid() != self._pid:
            raise QframeError("only the process that runs the job can settle it, not a fork of it")
        try:
            with guarded(), self._lock:
                # A job may have closed every descriptor, and opened its own under this number.
                if os.fstat(self._socket.fileno()).st_ino != self._inode:
                    raise OSError("the job has closed the connection")
                self._socket.sendall(_line(message))
        except OSError as error:
            raise QframeError(f"the worker cannot be told: {error}") from error

    def hear(self) -> Message | None:
        """Wait for a message; None when there are to be no more."""
        with suppress(OSError, ValueError), self._socket.makefile("rb", buffering=0) as reader:
            heard: Message = json.loads(reader.readline())
            return heard
        return None


class ParentChannel:
    """The worker's end: it never waits for a message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._begun = b""
        self.is_open = True

    def fileno(self) -> int:
        """Give the descriptor that can be read when there is something to hear."""
        return self._socket.fileno()

    def hear(self) -> list[Message]:
        """Give the messages that have come; what is none ends it all."""
        try:
            while self.is_open:
                part = self._socket.recv(_PART, socket.MSG_DONTWAIT)
                self.is_open = bool(part)
                self._begun += part
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._begun = self._begun.split(b"\n")
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            self.close()
            return []

    def tell(self, message: Message) -> None:
        """Say something to a process that waits for it; one that is gone hears nothing."""
        with suppress(OSError):
            self._socket.settimeout(_PATIENCE)
            self._socket.sendall(_line(message))

    def say_no_more(self) -> None:
        """Let a process that waits for a message know that there is none to come."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hear and say no more."""
        self.is_open = False
        self._socket.close()


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
