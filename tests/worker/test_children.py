"""Children that a job forks are those of any program: none of the worker's signals is theirs."""

from __future__ import annotations

import ast
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from qframe.worker import handlers
from tests.support.process import Project

WORKERS: dict[str, tuple[object, ...]] = {
    "alone": (),
    "slots": ("--concurrency", 3),
    "isolated": ("--isolate",),
}
LONG = 20.0
"""Seconds that nothing takes but what waits for a child that does not end."""
AS_ANYWHERE = {
    "terminated": -15,
    "terminated_at_once": -15,
    "pooled": [1, 2],
    "executed": [1, 2],
    "forked": [15, 3, 10, 12, 14, 1, 26],
    "interrupted": 77,
    "ran": [-15, -15],
    "wakes_nobody": 0,
    "watches_by_itself": 0,
}


@pytest.fixture
def project(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("forking_jobs.py"), project.root / "forking_jobs.py")
    return project


def gave(project: Project, *options: object) -> dict[str, Any]:
    """Have a worker run what was pushed, and say what each gave; fails where one took long."""
    finished = project.drain(*options)
    found = {line[1]: (ast.literal_eval(line[2]), float(line[3])) for line in project.notes("gave")}
    assert "FAIL" not in finished.out, (finished, found)
    assert all(took < LONG for _, took in found.values()), found
    return {how: said for how, (said, _) in found.items()}


@pytest.mark.parametrize("job", ["HasChildren", "HasChildrenOnLoop", "HasChildrenInThread"])
@pytest.mark.parametrize("worker", WORKERS)
def test_children_end_as_those_of_any_program(project: Project, worker: str, job: str) -> None:
    for how in AS_ANYWHERE:
        project.push(f"forking_jobs.{job}", {"how": how})
    assert gave(project, *WORKERS[worker]) == AS_ANYWHERE


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("worker", WORKERS)
def test_so_do_those_begun_in_other_ways(project: Project, worker: str, method: str) -> None:
    for how in ("pooled", "executed"):
        project.push("forking_jobs.HasChildren", {"how": how, "args": [method]})
    assert gave(project, *WORKERS[worker]) == {"pooled": [1, 2], "executed": [1, 2]}


def test_so_do_those_of_a_pools_worker_and_of_a_plain_loop(project: Project) -> None:
    project.write("uvloop.py", "raise ImportError")
    for how in ("terminated", "pooled", "wakes_nobody"):
        project.push("forking_jobs.HasChildrenOnLoop", {"how": how})
    found = gave(project, "--workers", 1, "--concurrency", 2)
    assert found == {"terminated": -15, "pooled": [1, 2], "wakes_nobody": 0}


@pytest.mark.parametrize("worker", WORKERS)
def test_one_that_ends_by_itself_has_pushed_what_it_dispatched(
    project: Project, worker: str
) -> None:
    project.push("forking_jobs.HasChildren", {"how": "ended"})
    assert gave(project, *WORKERS[worker]) == {"ended": 0}
    assert len(project.notes("said")) == 1


def test_a_handler_of_the_jobs_own_is_inherited(project: Project) -> None:
    project.push("forking_jobs.HasChildren", {"how": "own_handler_stays"})
    assert gave(project) == {"own_handler_stays": 55}


def test_what_ends_a_job_is_not_lost_in_a_fork(project: Project) -> None:
    for _ in range(3):
        project.push("forking_jobs.ForksAndIsLate")
    for number in range(3):
        finished = project.work("--once").finished()
        assert "JobTimedOut" in finished.out, finished
        assert finished.err == ""
        assert len(project.failed()) == number + 1


def test_the_watchdog_watches_on_after_a_fork(project: Project) -> None:
    project.push("forking_jobs.StuckAfterFork")
    worker = project.work("--grace", 1)
    assert worker.wait() == 1
    assert "Timeout (" in worker.err


def forked() -> int:
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_after_the_worker_blocks_no_signal_that_was_blocked_before() -> None:
    """Or all that the program starts afterwards would be deaf, workers, too."""
    handlers.take(signal.SIGUSR2, signal.SIG_IGN)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        assert forked() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        handlers.give_back(signal.SIGUSR2)
    assert forked() == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


PROGRAM = """
import os, signal, sys
from qframe import QueueManager
from qframe import Worker, WorkerOptions
signal.signal(signal.SIGTERM, lambda *_: os._exit(33))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
sys.exit(Worker(QueueManager(), WorkerOptions(stop_when_empty=True)).run())
"""


def test_a_child_has_the_handlers_of_the_program_that_works(project: Project) -> None:
    project.push("forking_jobs.HasChildren", {"how": "forked", "args": [15]})
    project.push("forking_jobs.HasChildren", {"how": "ignored"})
    finished = project.python(PROGRAM)
    assert finished.code == 0, finished
    assert [line[1:3] for line in project.notes("gave")] == [
        ["forked", "[-33]"],
        ["ignored", "True"],
    ]
