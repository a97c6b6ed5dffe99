"""A socket whose timeout the kernel keeps."""

from __future__ import annotations

import socket
import time

import pytest

from qframe.drivers.sockets import BusyWait, let_block


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


def test_an_answer_is_waited_for_awake_unless_the_last_ones_came_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waited = BusyWait(ours)
        began = time.monotonic()
        for _ in range(50):
            waited.wait()
        assert time.monotonic() - began < 0.1, "nothing came: the next ones are slept for"
        theirs.send(b"x")
        for _ in range(50):
            waited.wait()
        assert ours.recv(1) == b"x"
