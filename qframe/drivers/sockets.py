"""What is done with a socket so that an exchange takes no longer than it must.

Sockets block in the kernel, with its timeouts: Python's cost a system call more each time. A time
that is over shows as `BlockingIOError` then.
"""

from __future__ import annotations

import socket
import struct


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
