"""What must not lose a job, hold a pool up or leave a process behind, whatever breaks."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psutil
import pytest

from tests.support.pool import IDLE, children, gone, pool, rows, wait_for_row, wait_for_workers
from tests.support.process import Project, wait_for

pytestmark = pytest.mark.on_beanstalkd_too

MISBEHAVING = '''
import contextlib, os, signal, subprocess, sys, time
from jobs import note
from qframe import Queueable


class IgnoresTerm(Queueable):
    def handle(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        note("ignores", self.attempts, os.getpid())
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)


class LeavesBehind(Queueable):
    """Leaves a child, and a grandchild that has a session of its own and no parent."""
    then: str = ""

    def handle(self):
        plain = subprocess.Popen(["sleep", "600"])
        between = os.fork()
        if between == 0:
            os.setsid()
            if os.fork() == 0:
                note("left", plain.pid, os.getpid())
                os.execvp("sleep", ["sleep", "600"])
            os._exit(0)
        os.waitpid(between, 0)
        while not left():
            time.sleep(0.01)
        if self.then == "die":
            os.kill(os.getpid(), signal.SIGKILL)


def left():
    return [line for line in open(os.environ["LEDGER"]) if line.startswith("left")]
'''


@pytest.fixture(autouse=True)
def nothing_is_left(project: Project) -> Iterator[None]:
    """Fail where a process of the project outlives its test; end it."""
    project.write("mis.py", MISBEHAVING)
    yield
    left = [each for each in psutil.process_iter() if _is_of(each, project)]
    try:
        wait_for(lambda: gone(left), f"the end of {left}", 30)
    finally:
        for each in left:
            each.kill()


def _is_of(process: psutil.Process, project: Project) -> bool:
    try:
        ours = process.environ().get("LEDGER") == str(project.ledger)
        return ours and process.status() != "zombie"
    except psutil.Error:
        return False


def _has_started(project: Project, count: int) -> bool:
    return len(project.notes("start")) >= count


@pytest.mark.on_redis_too
class TestTheParent:
    def test_killed_its_workers_finish_their_jobs_and_end(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 2, "word": "a"})
        running = pool(project, toml=IDLE)
        project.wait_for_note("start", "a")
        wait_for(lambda: project.notes("idle"), "the other to be idle")
        workers = children(running)
        running.signal(signal.SIGKILL)
        died = time.monotonic()
        idle, busy = sorted(workers, key=lambda each: str(each.pid) == project.notes("start")[0][3])
        wait_for(lambda: gone([idle]), "the end of the idle one")
        wait_for(lambda: gone([busy]), "the end of the other")
        assert project.notes("end"), f"ended {time.monotonic() - died:.1f} s later, in its job"
        assert project.empty()

    def test_killed_while_it_stops_the_jobs_still_end(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 3})
        running = pool(project)
        project.wait_for_note("start")
        workers = children(running)
        running.signal(signal.SIGTERM)
        wait_for(lambda: rows(running, "exited"), "the idle worker to end")
        running.signal(signal.SIGKILL)
        wait_for(lambda: gone(workers), "the end of the workers")
        assert project.notes("end")
        assert project.empty()

    def test_a_stop_and_its_death_in_one_moment_are_not_told_twice(self, project: Project) -> None:
        """Python heeds what has come together by its number: HUP, the death, before TERM."""
        project.push("Sleep", {"seconds": 1})
        running = pool(project)
        pid = int(project.wait_for_note("start")[3])
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            os.kill(pid, number)
        wait_for(lambda: project.notes("end"), "the end of the job")
        assert len(project.notes("start")) == 1
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        assert project.empty()

    def test_killed_while_its_workers_start(self, project: Project) -> None:
        running = pool(project)
        wait_for_row(running, "started")
        running.signal(signal.SIGKILL)  # nothing_is_left looks for the worker

    def test_stopped_its_workers_go_on(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        wait_for_workers(project, running)
        running.signal(signal.SIGSTOP)
        for _ in range(20):
            project.push("Note")
        project.wait_for_note("note", count=20)
        wait_for(project.empty, "an empty queue")
        running.signal(signal.SIGCONT)
        assert running.stop() == 0

    def test_stopped_while_a_worker_is_killed_it_settles_later(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 1})
        running = pool(project, "--tries", 2, toml=IDLE)
        worker = project.wait_for_note("start")[3]
        running.signal(signal.SIGSTOP)
        os.kill(int(worker), signal.SIGKILL)
        running.signal(signal.SIGCONT)
        project.wait_for_note("end", "sleep", 2)
        assert running.stop() == 0


class TestTheWorkers:
    @pytest.mark.on_redis_too
    def test_one_that_runs_its_jobs_apart_takes_its_child_along(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 3})
        running = pool(project, "--tries", 2, "--isolate")
        child = psutil.Process(int(project.wait_for_note("start", "sleep", 1)[3]))
        worker = child.ppid()
        assert worker != running.pid
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: gone([child]), "the end of the child")
        project.wait_for_note("end", "sleep", 2)
        assert not project.notes("end")[1:]
        assert running.stop() == 0

    def test_one_that_ignores_every_signal(self, project: Project) -> None:
        project.push("mis.IgnoresTerm")
        running = pool(project, "--stop-timeout", 0.5, "--grace", 0.5, "--timeout", 0)
        worker = project.wait_for_note("ignores", 1)[2]
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 10
        assert wait_for_row(running, "exited", pid=int(worker))["signal"] == 9
        assert wait_for_row(running, "recovered")["fate"] == "given back"
        assert project.sizes().ready == 1
        assert project.queue.reserve(["default"])[0].attempts() == 0

    def test_one_that_is_stopped_does_not_hold_the_end_up(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        first, _ = wait_for_workers(project, running)
        os.kill(first, signal.SIGSTOP)
        assert running.stop() == 0

    def test_what_a_killed_worker_had_started_is_ended_with_it(self, project: Project) -> None:
        project.push("mis.LeavesBehind", {"then": "die"})
        running = pool(project)
        _, plain, alone = project.wait_for_note("left")
        wait_for_row(running, "exited", signal=9)
        wait_for(lambda: not psutil.pid_exists(int(plain)), "the end of the child")
        assert running.stop() == 0
        assert not psutil.pid_exists(int(alone)), "the pool takes orphans along when it ends"

    def test_what_a_job_had_started_is_ended_with_the_pool(self, project: Project) -> None:
        project.push("mis.LeavesBehind")
        running = pool(project)
        _, plain, alone = project.wait_for_note("left")
        wait_for_row(running, "done")
        assert psutil.pid_exists(int(plain))
        assert running.stop() == 0
        assert not psutil.pid_exists(int(plain))
        assert not psutil.pid_exists(int(alone))

    def test_orphans_that_end_are_reaped(self, project: Project) -> None:
        project.write(
            "brief.py",
            "import os\nfrom jobs import note\nfrom qframe import Queueable\n"
            "class Brief(Queueable):\n"
            "    def handle(self):\n"
            "        if os.fork() == 0:\n"
            "            if os.fork() == 0:\n"
            "                note('brief', os.getpid())\n"
            "            os._exit(0)\n"
            "        os.wait()\n",
        )
        project.push("brief.Brief")
        running = pool(project)
        brief = int(project.wait_for_note("brief")[1])
        wait_for(lambda: not psutil.pid_exists(brief), "the orphan to be reaped")
        assert running.stop() == 0

    def test_workers_killed_all_the_time_lose_no_job(self, project: Project) -> None:
        for number in range(60):
            project.push("Sleep", {"seconds": 0.1, "word": f"w{number}"})
        running = pool(project, "--tries", 0, workers=2)
        for _ in range(6):
            more = len(project.notes("start")) + 4
            wait_for(partial(_has_started, project, more), "jobs to start")
            worker = project.notes("start")[-1][3]
            if psutil.pid_exists(int(worker)):
                os.kill(int(worker), signal.SIGKILL)
        wait_for(project.empty, "an empty queue", 60)
        assert {note[1] for note in project.notes("end")} == {f"w{n}" for n in range(60)}
        assert running.stop() == 0


def test_a_backend_that_is_gone_when_a_worker_dies_gets_its_job_back_later(
    project: Project,
) -> None:
    project.push("Sleep", {"seconds": 1})
    running = pool(project, "--tries", 2)
    worker = int(project.wait_for_note("start", "sleep", 1)[3])
    with closing(sqlite3.connect(project.database, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")  # for longer than the driver waits for a lock
        os.kill(worker, signal.SIGKILL)
        wait_for_row(running, "exited", signal=9)
        time.sleep(7)
        assert len(project.notes("start")) == 1
    project.wait_for_note("end", "sleep", 2)
    assert running.stop() == 0
