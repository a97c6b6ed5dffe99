"""What wakes a worker and a pool: told things, signals, and any number of descriptors."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from qframe.worker.options import StopReason
from qframe.worker.wakeup import WakeUp


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Take all descriptors below 1024, beyond which `select` cannot look."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1100:
        pytest.skip("the system gives no such descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < 1024:
        taken.append(os.dup(taken[0]))
    yield
    for each in taken:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_descriptors_may_be_large() -> None:
    with WakeUp() as wakeup:
        assert wakeup.fileno() > 1024
        wakeup.wake(7)
        began = time.monotonic()
        assert wakeup.wait(60) == b"\7"
        assert time.monotonic() - began < 30


def test_what_is_told_is_heard_once_and_in_order() -> None:
    with WakeUp() as wakeup:
        wakeup.wake(1)
        wakeup.wake(2)
        assert wakeup.drain() == b"\1\2"
        assert wakeup.drain() == b""
        assert wakeup.wait(0) == wakeup.wait(0.01) == b""


def test_signals_are_heard_by_their_numbers_and_handled_as_before_in_the_end() -> None:
    handled: list[int] = []
    before = signal.getsignal(signal.SIGUSR2)
    with WakeUp() as wakeup:
        wakeup.handle([signal.SIGUSR2], lambda number, _: handled.append(number))
        signal.raise_signal(signal.SIGUSR2)
        assert wakeup.wait(60) == bytes([signal.SIGUSR2])
    assert handled == [signal.SIGUSR2]
    assert signal.getsignal(signal.SIGUSR2) is before


_CLOSED = """
import os, sys, threading
from qframe.worker.wakeup import WakeUp

wakeup, together, write = WakeUp(), threading.Barrier(8), os.write

def late(fd, line):
    size = write(fd, line)
    threading.Event().wait(0.3)  # the others find it, too, before this one has ended the process
    return size

def look():
    together.wait()
    wakeup.leave_if_closed("a job")

os.write = late
os.close(wakeup._own)
for _ in range(8):
    threading.Thread(target=look).start()
"""


def test_closed_files_are_reported_once_whoever_finds_them() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _CLOSED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == StopReason.LOST_BACKEND.exit_code
    (line,) = ended.stderr.splitlines()
    assert line.startswith("qframe: a job closed files")


def test_files_that_the_worker_itself_has_closed_are_no_jobs_fault(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with WakeUp() as wakeup:
        pass
    wakeup.leave_if_closed("a job that ends late")
    assert capfd.readouterr().err == ""
