"""A socket whose timeout the kernel keeps."""

from __future__ import annotations

import socket
import time

import pytest

from qframe.drivers.sockets import let_block


def test_the_kernel_ends_a_wait_in_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.2)
        let_block(ours)
        assert ours.gettimeout() is None
        began = time.monotonic()
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        assert 0.1 < time.monotonic() - began < 10


def test_a_socket_without_a_timeout_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        let_block(ours)
        theirs.send(b"x")
        assert ours.recv(1) == b"x"
