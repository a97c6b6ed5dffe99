"""Waiting for an answer without sleeping, where answers come at once."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from qframe.drivers import sockets
from qframe.drivers.sockets import Vigil, let_block


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    monkeypatch.setattr(sockets, "_processors", lambda: 2)
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    let_block(ours)
    with ours, theirs:
        yield ours, theirs


def _looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Count how often the processor is given to others between two looks."""
    looks: list[None] = []
    monkeypatch.setattr(sockets, "_yield", lambda: looks.append(None))
    return looks


def test_an_answer_that_is_there_is_left_to_be_read(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _looks(monkeypatch)
    ours, theirs = pair
    theirs.send(b"answer")
    Vigil(ours).keep()
    assert looks == []
    assert ours.recv(100) == b"answer"


def test_it_is_woken_by_an_answer_that_comes_meanwhile(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_AWAKE", 30.0)
    ours, theirs = pair
    threading.Timer(0.05, theirs.send, [b"x"]).start()
    began = time.monotonic()
    Vigil(ours).keep()
    assert time.monotonic() - began < 20
    assert ours.recv(100) == b"x"


def test_it_returns_where_the_connection_has_ended(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_AWAKE", 30.0)
    ours, theirs = pair
    theirs.close()
    began = time.monotonic()
    Vigil(ours).keep()
    ours.close()
    Vigil(ours).keep()
    assert time.monotonic() - began < 20


def test_where_answers_take_longer_it_is_slept_ever_more_often(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Awake 1, asleep 2, awake 1, asleep 4, ... 64, and again 64; an answer in time ends that."""
    looks = _looks(monkeypatch)
    ours, theirs = pair
    vigil = Vigil(ours)
    stays: list[int] = []
    for turn in range(400):
        before = len(looks)
        vigil.keep()
        if len(looks) > before:
            stays.append(turn)
    gaps = [after - before - 1 for before, after in itertools.pairwise(stays)]
    assert gaps[:7] == [2, 4, 8, 16, 32, 64, 64]
    theirs.send(b"x")
    for _ in range(65):
        vigil.keep()
    ours.recv(1)
    before = len(looks)
    vigil.keep()
    assert len(looks) > before


@pytest.mark.parametrize(("name", "value"), [("_processors", lambda: 1), ("_yield", None)])
def test_nothing_is_stayed_awake_for_where_the_other_side_could_not_run(
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: object,
) -> None:
    monkeypatch.setattr(sockets, "_AWAKE", 30.0)
    monkeypatch.setattr(sockets, name, value)
    ours, _ = pair
    began = time.monotonic()
    Vigil(ours).keep()
    assert time.monotonic() - began < 20
