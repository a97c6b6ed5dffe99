"""No worker is deaf: not by a job that takes its signals, nor by who starts it and blocks them."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from qframe.worker import handlers
from tests.support.process import Project, wait_for

_BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def project(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("deafening_jobs.py"), project.root / "deafening_jobs.py")
    return project


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["cancel", "stop", "close"])
def test_neighbours_that_had_not_begun_run_all_the_same(
    project: Project, how: str, loop: str
) -> None:
    if loop == "asyncio":
        project.write("uvloop.py", "raise ImportError")
    project.configure('jobs = ["deafening_jobs"]')  # known, so that none begins in a thread
    project.push("deafening_jobs.CancelsAll", {"how": how}, maxTries=1)
    for number in range(6):
        project.push("deafening_jobs.Beside", {"word": str(number)}, maxTries=0)
    worker = project.work("--concurrency", 10)
    wait_for(lambda: len({word for _, word in project.notes("done")}) == 6, "the neighbours")
    wait_for(project.empty, "nothing to be left")
    assert project.notes("cancels") == [["cancels", "7"]]
    project.push("deafening_jobs.Beside", {"word": "after"})
    wait_for(lambda: ["done", "after"] in project.notes("done"), "a slot that is free")
    assert project.stop([worker]) == [0]


@pytest.mark.parametrize("how", ["function", "ignore", "loop"])
@pytest.mark.parametrize(
    ("options", "job"),
    [
        ((), "TakesSignals"),
        (("--concurrency", 3), "TakesSignalsOnLoop"),
        (("--isolate",), "TakesSignals"),
    ],
    ids=["alone", "slots", "isolated"],
)
def test_the_worker_hears_its_signals_again(
    project: Project, options: tuple[object, ...], job: str, how: str
) -> None:
    for _ in range(3):
        project.push(f"deafening_jobs.{job}", {"how": how})
    worker = project.work(*options)
    wait_for(lambda: len(project.notes("took")) == 3, "the jobs that take signals")
    wait_for(project.empty, "nothing to be left")
    if "--isolate" not in options and not (how == "loop" and not options):
        wait_for(lambda: "replaced the worker's handler of" in worker.err, "a warning")
    project.push("deafening_jobs.Lasts")
    project.wait_for_note("lasts")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.notes("ended")
    assert project.notes("heard") == []
    said = [line for line in worker.err.splitlines() if "replaced the worker's handler" in line]
    assert len(said) <= 1, said
    assert all(f"deafening_jobs.{job}" in line and "SIGTERM" in line for line in said)


@pytest.mark.parametrize(
    ("options", "job", "how"),
    [
        ((), "BlocksSignals", "block"),
        ((), "BlocksSignals", "both"),
        (("--concurrency", 2), "BlocksSignals", "block"),
        (("--concurrency", 2), "BlocksSignalsOnLoop", "block"),
        (("--isolate",), "BlocksSignals", "block"),
    ],
    ids=["alone", "both", "thread", "loop", "isolated"],
)
def test_the_worker_hears_signals_that_a_job_has_blocked(
    project: Project, options: tuple[object, ...], job: str, how: str
) -> None:
    for _ in range(3):
        project.push(f"deafening_jobs.{job}", {"how": how})
    worker = project.work(*options)
    wait_for(lambda: len(project.notes("took")) == 3, "the jobs that block signals")
    wait_for(project.empty, "nothing to be left")
    is_on_main_thread = not options or job.endswith("OnLoop")
    if is_on_main_thread:
        wait_for(lambda: "blocked, which would" in worker.err, "a warning")
    project.push("deafening_jobs.Lasts")
    project.wait_for_note("lasts")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.notes("ended")
    said = [line for line in worker.err.splitlines() if "which would have made" in line]
    left = "SIGINT" if how == "both" else "SIGINT, SIGTERM"
    of_blocked = [line for line in said if "blocked, which would" in line]
    assert bool(of_blocked) == is_on_main_thread
    assert all(f"deafening_jobs.{job}" in line for line in said)
    assert all(f" left {left} blocked" in line for line in of_blocked)
    if not job.endswith("OnLoop"):  # there it names those beside, too
        assert len(said) == is_on_main_thread + (how == "both")


def test_a_signal_that_came_while_a_job_blocked_it_stops_the_worker(project: Project) -> None:
    project.push("deafening_jobs.BlocksSignals", {"how": "stopped"})
    project.push("deafening_jobs.Lasts", queue="late")
    worker = project.work("--queue", "default,late")
    assert worker.wait() == 0
    assert project.notes("took")
    assert not project.notes("lasts")


@pytest.mark.parametrize("how", ["open", "closed"])
@pytest.mark.parametrize(
    ("options", "job", "loop"),
    [
        ((), "TakesWakeUp", "uvloop"),
        (("--concurrency", 3), "TakesWakeUpOnLoop", "asyncio"),
        (("--concurrency", 3), "TakesWakeUpOnLoop", "uvloop"),
    ],
    ids=["alone", "asyncio", "uvloop"],
)
def test_a_signal_wakes_the_worker_again(
    project: Project, options: tuple[object, ...], job: str, loop: str, how: str
) -> None:
    if loop == "asyncio":
        project.write("uvloop.py", "raise ImportError")
    worker = project.idle("--sleep", 3600, *options)
    project.push(f"deafening_jobs.{job}", {"how": how})
    project.wait_for_note("slept" if options else "took")
    wait_for(project.empty, "nothing to be left")
    project.wait_for_note("idle", count=2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "wakeup fd" not in worker.err


@pytest.mark.parametrize("options", [(), ("--isolate",)], ids=["alone", "isolated"])
def test_signals_that_its_parent_blocks_are_heard(
    project: Project, options: tuple[str, ...]
) -> None:
    project.push("Sleep", {"seconds": 60, "word": "late"}, timeout=1.5, maxTries=1)
    project.push("Held")
    command = [sys.executable, "-c", _BLOCKING, "-m", "qframe", "work", *options]
    worker = project.run(command)
    if not options:  # a timeout ends it
        assert worker.wait() == 1
        worker = project.run(command)
    project.wait_for_note("start", "held")
    worker.signal(signal.SIGTERM)
    project.let_go("held")
    assert worker.wait() == 0
    assert "its timeout of 1.5 s" in project.failure().exception
    assert [line[1] for line in project.notes("end")] == ["held"]


def test_what_was_blocked_is_so_again_when_a_signal_is_given_back() -> None:
    number, heard = signal.SIGUSR2, list[int]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        signal.raise_signal(number)
        for _ in range(2):
            handlers.take(number, lambda *_: heard.append(number))
        assert heard == [number]
        handlers.give_back(number)
        signal.raise_signal(number)
        assert heard == [number] * 2
        unblock = handlers.hold({number})
        signal.raise_signal(number)
        assert heard == [number] * 2
        unblock()
        assert heard == [number] * 3
        handlers.give_back(number)
        assert number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
