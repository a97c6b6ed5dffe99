"""A wait in a blocking call ends at a wake, and what comes later is given back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qframe.drivers import heartbeat
from qframe.drivers.broker.blocking import BlockingReceive
from qframe.drivers.broker.message import BrokerJob, BrokerMessage
from qframe.exceptions import BackendUnavailable


class SlowClient:
    """Blocks until `go` is set; then it has one message, or an error."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.error: Exception | None = None
        self.given_back: list[BrokerJob] = []
        self.job = BrokerJob(BrokerMessage("1", "q", b"raw"), 1, None, 0.0)
        self.blocking = BlockingReceive(self.receive, self.given_back.extend)

    def receive(self, queues: Sequence[str], timeout: float) -> Sequence[BrokerJob]:
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return [self.job]


def test_what_comes_while_it_waits_is_returned() -> None:
    client = SlowClient()
    threading.Timer(0.05, client.go.set).start()
    assert client.blocking.wait(["q"], 60, None) == [client.job]
    client.blocking.end(60)
    assert not client.given_back


def test_it_ends_at_a_wake_and_what_comes_then_is_given_back() -> None:
    client = SlowClient()
    reader, writer = os.pipe()
    os.write(writer, b".")
    assert client.blocking.wait(["q"], 60, reader) == []
    client.go.set()
    client.blocking.end(60)
    assert client.given_back == [client.job]
    os.close(reader)
    os.close(writer)


def test_it_raises_what_the_call_raised() -> None:
    client = SlowClient()
    client.error = BackendUnavailable("gone")
    client.go.set()
    with pytest.raises(BackendUnavailable, match="gone"):
        client.blocking.wait(["q"], 60, None)


@pytest.mark.parametrize("lacking", ["pipe", "thread"])
def test_a_process_without_descriptors_keeps_the_calls_it_could_make(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    client = SlowClient()
    blocking = BlockingReceive(client.receive, client.given_back.extend, apart=True)
    pipe, start = os.pipe, heartbeat.start_thread
    left = iter([True])

    def made() -> tuple[int, int]:
        if not next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return pipe()

    def started(name: str, run: Callable[[], None]) -> threading.Thread:
        if not next(left, False):
            raise RuntimeError("can't start new thread")
        return start(name, run)

    with monkeypatch.context() as patch:
        if lacking == "pipe":
            patch.setattr(os, "pipe", made)
        else:
            patch.setattr("qframe.drivers.broker.blocking.start_thread", started)
        descriptors = len([*Path("/proc/self/fd").iterdir()])
        with pytest.raises(BackendUnavailable, match="cannot wait for messages"):
            blocking.wait(["a", "b"], 60, None)
        kept = len([*Path("/proc/self/fd").iterdir()]) - descriptors
        assert kept == 2  # of the call that goes on
    client.go.set()
    blocking.end(60)
    assert client.given_back == [client.job]
