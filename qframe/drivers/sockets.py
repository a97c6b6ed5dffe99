"""What is done with a socket so that an exchange takes no longer than it must.

Sockets block in the kernel, with its timeouts: Python's cost a system call more each time. A time
that is over shows as `BlockingIOError` then.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time

_AWAKE = 0.0003
"""Seconds an answer is waited for without sleeping: on one machine it is there sooner."""
_MOST_MISSES = 6
_yield = getattr(os, "sched_yield", None)


def let_block(plain: socket.socket) -> None:
    """Give a socket's timeout to the kernel."""
    seconds = plain.gettimeout()
    if seconds is None:
        return
    whole = int(seconds)
    limit = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1_000_000)))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    plain.settimeout(None)


class Vigil:
    """Stays awake for the next answer, where answers come at once.

    To put a processor to sleep and to wake it up takes longer than a server on the same machine, or
    near, takes to answer. Whatever else wants this processor has it meanwhile. Where an answer did
    not come in time, the next ones are slept for: 2, 4, up to 64, until it is tried again.
    """

    __slots__ = ("_misses", "_receive", "_sleeps")

    def __init__(self, plain: socket.socket) -> None:
        self._receive = plain.recv
        self._misses = 0
        self._sleeps = 0.0 if _yield is not None and _processors() > 1 else math.inf

    def keep(self) -> None:
        """Return when there is something to read, an error too, or when it is time to sleep."""
        if self._sleeps:
            self._sleeps -= 1
            return
        until = time.monotonic() + _AWAKE
        while time.monotonic() < until:
            try:
                self._receive(1, _LOOK)
            except BlockingIOError:
                _yield()  # type: ignore[misc] # else nothing is slept for
            except OSError:
                return
            else:
                self._misses = 0
                return
        self._misses = min(_MOST_MISSES, self._misses + 1)
        self._sleeps = 2**self._misses


_LOOK = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
