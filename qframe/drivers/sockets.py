"""Socket settings that make exchanges fast and bound their waits.

Sockets block in the kernel, with its timeouts; Python's own cost one more system call each time.
Such a timeout shows as `BlockingIOError`.
"""

from __future__ import annotations

import ipaddress
import math
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def prepare_names() -> None:
    """Import what turns the name of a host into an address, for the end of the interpreter.

    A dispatch that comes then can connect, but import nothing.
    """
    "".encode("idna")


class _ThreadSockets(threading.local):
    """Settings for the connections that one thread opens."""

    longest = math.inf
    keeps = False


_thread = _ThreadSockets()


def keep_connections(*, keeps: bool = True) -> None:
    """Set whether this thread keeps its own connection where others share (a worker's does)."""
    _thread.keeps = keeps


def keeps_connections() -> bool:
    """Whether this thread keeps its connections between two calls."""
    return _thread.keeps


def limit_waits(seconds: float) -> None:
    """Limit the seconds that connections opened by this thread from now on wait for an answer."""
    _thread.longest = seconds


@contextmanager
def waits_limited(seconds: float) -> Iterator[None]:
    """Limit the wait of connections that this thread opens inside, in addition to other limits."""
    before = _thread.longest
    _thread.longest = min(before, seconds)
    try:
        yield
    finally:
        _thread.longest = before


def limited(seconds: float) -> float:
    """Return how many of the configured seconds a connection of this thread may wait."""
    return min(seconds, _thread.longest)


def is_here(host: str) -> bool:
    """Whether a host is this machine: nobody else can read what is sent there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def let_block(plain: socket.socket) -> bool:
    """Move a socket's timeout to the kernel. Returns whether reads of its descriptor block there.

    With gevent they never do: other greenlets run while it waits, up to the socket's own timeout.
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
    """Set the socket to fail when the peer has acknowledged nothing for `seconds`.

    By default systems wait two hours for a silent peer, and a quarter of an hour for a lost route.
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
    """Return the readable descriptors, once there is one, or after `seconds`."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
