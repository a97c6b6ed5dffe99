"""Waiting: ends when `reserve` may find something, after the time, or when it is woken."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Release
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    needs,
    needs_lapse,
    push,
    reserve,
    started,
)

LONG = 60.0
PROMPTLY = LONG / 2  # seconds
SOON = 0.05


def waited(backend: Backend, timeout: float = LONG, wake: int | None = None) -> float:
    """Wait, and say how many seconds that took."""
    begun = time.monotonic()
    backend.wait(["other", QUEUE], timeout, wake)
    return time.monotonic() - begun


def waited_for_a_message(backend: Backend) -> float:
    """Wait until one is there, as a worker does, and say how many seconds that took."""
    begun = time.monotonic()
    while not backend.reserve(["other", QUEUE])[0]:
        assert time.monotonic() - begun < LONG
        backend.wait(["other", QUEUE], LONG)
    return time.monotonic() - begun


@contextmanager
def soon(do: Callable[[], object]) -> Iterator[None]:
    """Do something in a moment, in another thread."""
    timer = threading.Timer(SOON, do)
    timer.start()
    yield
    timer.join()


def test_it_ends_after_its_time(backend: Backend) -> None:
    assert 0.08 <= waited(backend, 0.1) < PROMPTLY
    assert waited(backend, 0) < PROMPTLY
    assert waited(backend, -1) < PROMPTLY


def test_it_ends_at_once_where_a_message_is_ready(backend: Backend) -> None:
    needs(backend, Capability.WAIT)
    push(backend, b"1")
    assert waited(backend) < PROMPTLY
    reserve(backend)


def test_it_ends_when_a_message_is_pushed(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.WAIT)
    with soon(lambda: push(other, b"1")):
        assert SOON / 2 < waited_for_a_message(backend) < PROMPTLY


def test_it_ends_when_a_message_is_released(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.WAIT)
    push(backend, b"1")
    job = started(backend)

    def release() -> None:
        apply(backend, job, Release())

    with soon(release):
        assert waited_for_a_message(other) < PROMPTLY


def test_it_ends_when_a_delay_does(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.WAIT)
    push(backend, b"1", delay=bench.seconds(10))
    bench.pass_time(9.9)
    assert waited_for_a_message(backend) < PROMPTLY


def test_it_ends_when_a_lease_does(bench: Bench, backend: Backend, other: Backend) -> None:
    needs_lapse(bench)
    needs(backend, Capability.WAIT)
    push(backend, b"1")
    started(backend, lease=bench.seconds(60))
    bench.pass_time(59.9)
    assert waited_for_a_message(other) < PROMPTLY


def test_it_ends_when_it_is_woken(backend: Backend) -> None:
    reader, writer = os.pipe()
    try:
        with soon(lambda: os.write(writer, b"x")):
            assert waited(backend, wake=reader) < PROMPTLY
        assert waited(backend, wake=reader) < PROMPTLY, "it is readable still"
        assert os.read(reader, 10) == b"x", "it is left to be read"
    finally:
        os.close(reader)
        os.close(writer)


def test_of_several_that_wait_each_gets_one(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.WAIT)
    found: list[float] = []

    def wait_for_one() -> None:
        found.append(waited_for_a_message(other))
        other.close()

    threads = [threading.Thread(target=wait_for_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(SOON)
    for number in range(3):
        push(backend, b"%d" % number)
    for thread in threads:
        thread.join()
    assert max(found) < PROMPTLY
