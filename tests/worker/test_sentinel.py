"""A job that closes its worker's descriptors ends that worker; a fork that comes back, itself."""

from __future__ import annotations

import psutil
import pytest

from qframe.worker.sentinel import CLOSED
from tests.support.process import Project, wait_for

CLOSING = """
import os
from jobs import note
from qframe import Queueable


class Closes(Queueable):
    first: int

    def handle(self):
        note("closes", self.attempts)
        os.closerange(self.first, 4096)


class Forks(Queueable):
    def handle(self):
        note("pid", os.getpid(), os.fork())
"""


@pytest.mark.on_redis_too
@pytest.mark.on_beanstalkd_too
def test_the_worker_ends_at_once_and_takes_no_try_from_the_jobs_behind(project: Project) -> None:
    project.write("closing.py", CLOSING)
    project.push("closing.Closes", {"first": 0})
    for _ in range(3):
        project.push("Note")
    assert project.work("--tries", 1).wait() == CLOSED
    assert not project.notes("note")
    project.drain("--tries", 1)
    project.wait_for_note("note", count=3)
    assert [note[2] for note in project.notes("note")] == ["1"] * 3


def test_output_is_not_needed_for_it(project: Project) -> None:
    project.write("closing.py", CLOSING)
    project.push("closing.Closes", {"first": 3})
    worker = project.work()
    assert worker.wait() == CLOSED
    assert "Traceback" not in worker.err


@pytest.mark.on_redis_too
@pytest.mark.on_beanstalkd_too
def test_a_fork_that_comes_back_from_its_job_is_no_second_worker(project: Project) -> None:
    project.write("closing.py", CLOSING)
    project.push("closing.Forks")
    for _ in range(3):
        project.push("Note")
    worker = project.work("--stop-when-empty")
    assert worker.wait() == 0
    (fork,) = [int(line[1]) for line in project.notes("pid") if line[2] == "0"]
    wait_for(lambda: not psutil.pid_exists(fork) or _is_dead(fork), "the end of the fork")
    assert f"a fork of worker {worker.pid} came back from its job" in worker.err
    assert "LOST" not in worker.out
    assert len(project.notes("note")) == 3
    assert project.empty()
    assert project.failed() == []


def _is_dead(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
