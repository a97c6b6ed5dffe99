"""`Worker(manager, options).run()` called by a program, off the main thread and on it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time

from tests.support.process import Project

OFF_MAIN = """
import logging, sys, threading, time
from qframe import QueueManager
from qframe import Worker, WorkerOptions
logging.basicConfig(level=logging.WARNING)
worker = Worker(QueueManager(), WorkerOptions(timeout=0.2, grace=0.1))
codes = []
thread = threading.Thread(target=lambda: codes.append(worker.run()))
thread.start()
deadline = time.monotonic() + 60
while worker.jobs < 4 and time.monotonic() < deadline:
    time.sleep(0.01)
told = time.monotonic()
worker.stop()
thread.join(60)
print(codes, worker.jobs, worker.stop_reason, time.monotonic() - told < 20)
"""


def test_off_the_main_thread_it_works_and_says_so(project: Project) -> None:
    project.push("Sleep", {"seconds": 0.7})
    project.push("Later", {"seconds": 0.1})
    project.push("Flaky", {"failures": 1}, maxTries=2)
    finished = project.python(OFF_MAIN)
    assert finished.out.split() == ["[0]", "4", "interrupted", "True"], finished
    assert "the worker is not on the main thread: no signals, no timeouts" in finished.err
    assert len(project.notes("end")) == 3
    assert project.empty()


STOP_FIRST = """
import threading
from qframe import QueueManager
from qframe import Worker, WorkerOptions
worker = Worker(QueueManager(), WorkerOptions())
worker.stop()
codes = []
thread = threading.Thread(target=lambda: codes.append(worker.run()), daemon=True)
thread.start()
thread.join(60)
print(codes)
thread = threading.Thread(target=lambda: codes.append(worker.run()), daemon=True)
thread.start()
thread.join(1)
print(thread.is_alive())
worker.stop()
thread.join(60)
print(codes)
"""


def test_a_stop_before_it_runs_is_not_lost(project: Project) -> None:
    finished = project.python(STOP_FIRST)
    assert finished.out.splitlines() == ["[0]", "True", "[0, 0]"], finished


BROKEN_DRIVER = """
from qframe import QueueManager
from qframe import Worker, WorkerOptions
worker = Worker(QueueManager(), WorkerOptions(max_jobs=1))
backend, calls = worker.connection.backend, []
reserve = backend.reserve
def broken(*args, **kwargs):
    calls.append(1)
    if len(calls) < 3:
        raise ZeroDivisionError("a bug of the driver")
    return reserve(*args, **kwargs)
backend.reserve = broken
print(worker.run(), worker.jobs, worker.stop_reason, len(calls))
"""


def test_a_driver_that_raises_what_it_should_not_is_reported_and_tried_again(
    project: Project,
) -> None:
    project.push("Sleep", {"seconds": 0})
    finished = project.python(BROKEN_DRIVER)
    assert finished.out.splitlines()[-1] == "0 1 max jobs 3", finished
    assert "ZeroDivisionError: a bug of the driver" in finished.err
    assert project.empty()


ON_MAIN = """
import asyncio, os, signal, sys, threading
from qframe import QueueManager
from qframe import Worker, WorkerOptions
before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)]
worker = Worker(QueueManager(), WorkerOptions(stop_when_empty=True))
print(worker.run(), worker.jobs, worker.stop_reason)
print(before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)])
print(signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1))
print([thread.name for thread in threading.enumerate()])
"""


def test_it_leaves_the_process_as_it_was(project: Project) -> None:
    project.push("Note")
    project.push("Note", timeout=5)
    finished = project.python(ON_MAIN)
    assert finished.out.splitlines() == [
        "0 2 empty", "True", "(0.0, 0.0) -1", "['MainThread']",
    ], finished  # fmt: skip


def test_signals_reach_the_main_thread_whatever_thread_takes_them(project: Project) -> None:
    """Two stops at once: the second must not be lost to a thread of the worker's own.

    Python itself can leave a signal unnoticed that comes in the very moment in which the handler
    of another returns to a sleep; a third one wakes it. That is rare, a thread's taking is not.
    """
    unnoticed = 0
    for round_ in range(5):
        project.push("Sleep", {"seconds": 30, "word": f"r{round_}"})
        worker = project.work()
        project.wait_for_note("start", f"r{round_}")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.popen.wait(10)
        if worker.alive():
            unnoticed += 1
            worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert project.queue.clear() == 1
    assert unnoticed <= 1


def test_workers_in_two_threads_share_a_manager(project: Project) -> None:
    from qframe import Worker, WorkerOptions

    for number in range(20):
        project.push("nosuch.Job", {"number": number})
    workers = [
        Worker(project.manager, WorkerOptions(stop_when_empty=True, memory=0)) for _ in range(2)
    ]
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda w=worker: codes.append(w.run())) for worker in workers
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    for thread in threads:
        thread.join(max(0.1, deadline - time.monotonic()))
    assert codes == [0, 0]
    assert len(project.failed()) == 20
    assert project.empty()
