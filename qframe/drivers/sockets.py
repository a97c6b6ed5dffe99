"""What is done with a socket so that an exchange takes no longer than it must.

Sockets block in the kernel, with its timeouts: Python's cost a system call more each time. A time
that is over shows as `BlockingIOError` then.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence


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
