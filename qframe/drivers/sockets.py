"""What is done with a socket so that an exchange takes no longer than it must.

Sockets block in the kernel, with its timeouts: Python's cost a system call more each time. A time
that is over shows as `BlockingIOError` then.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class _Thread(threading.local):
    """What holds for the connections that one thread opens."""

    longest = math.inf
    keeps = False


_thread = _Thread()


def keep_connections(*, keeps: bool = True) -> None:
    """Let this thread keep a connection of its own where others share some: it is a worker's."""
    _thread.keeps = keeps


def keeps_connections() -> bool:
    """Whether this thread keeps its connections between two calls."""
    return _thread.keeps


def limit_waits(seconds: float) -> None:
    """Let connections that this thread opens from now on wait no longer than this for an answer."""
    _thread.longest = seconds


@contextmanager
def waits_limited(seconds: float) -> Iterator[None]:
    """Let those that this thread opens in here wait no longer than this either."""
    before = _thread.longest
    _thread.longest = min(before, seconds)
    try:
        yield
    finally:
        _thread.longest = before


def limited(seconds: float) -> float:
    """Give how long a connection that is configured to wait so many seconds may wait here."""
    return min(seconds, _thread.longest)


def let_block(plain: socket.socket) -> bool:
    """Give a socket's timeout to the kernel; says whether reads of its descriptor block there.

    One of gevent's never does: other greenlets run while it waits, for as long as its timeout says.
    """
    seconds = plain.gettimeout()
    plain.settimeout(None)
    if not os.get_blocking(plain.fileno()):
        plain.settimeout(seconds)
        return False
    if seconds is None:
        return True
    whole = int(seconds)
    limit = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1_000_000)))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return True


def notice_gone(line: socket.socket, seconds: int) -> None:
    """Let the system take the other side for gone when it has acknowledged nothing for so long.

    By themselves systems wait two hours for an answer, and a quarter of one for a way.
    """
    if line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", seconds // 2),
        ("TCP_KEEPINTVL", max(1, seconds // 4)),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Give those of the descriptors that can be read, once one can, or after so many seconds."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
