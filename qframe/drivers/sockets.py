"""What is done with a socket so that an exchange takes no longer than it must.

Sockets block in the kernel, with its timeouts: Python's cost a system call more each time. A time
that is over shows as `BlockingIOError` then.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence

_AWAKE = 0.0003
"""Seconds an answer is waited for without sleeping: on one machine it is there sooner."""
_SLEEPS = 64
"""How many answers are slept for after one that took longer."""


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


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Give those of the descriptors that can be read, once one can, or after so many seconds."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]


class BusyWait:
    """Waits awake for the next answer on a socket, where answers come at once.

    To put a processor to sleep and to wake it takes longer than a server on the same machine takes
    to answer. The processor is not offered to others meanwhile: on a busy machine it would come
    back much later than an answer that is slept for.
    """

    __slots__ = ("_poll", "_sleeps")

    def __init__(self, plain: socket.socket) -> None:
        poll = select.poll()
        poll.register(plain, select.POLLIN)
        self._poll = poll.poll
        self._sleeps = 0

    def wait(self) -> None:
        """Return when there is something to read, an error too, or when it is time to sleep."""
        if self._sleeps:
            self._sleeps -= 1
            return
        until = time.monotonic() + _AWAKE
        while not self._poll(0):
            if time.monotonic() > until:
                self._sleeps = _SLEEPS
                return
