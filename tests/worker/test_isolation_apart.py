"""`--isolate` where something is missing, wrong, or not allowed."""

from __future__ import annotations

import gc
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from qframe import ConfigurationError, QueueManager, Worker, WorkerOptions
from tests.support.process import Process, Project, wait_for
from tests.worker.test_isolation import is_gone, stop

JOBS = Path(__file__).parents[1] / "support" / "isolated.py"
_WITHOUT = {
    "prctl": "from qframe.worker import process_tree; process_tree.prctl = None",
    "fork": """
import os
fork, left = os.fork, [2]
def refuse():
    if left and left.pop():
        left.append(len(left))
        raise BlockingIOError(11, "no room")
    return fork()
os.fork = refuse
""",
}


@pytest.fixture(autouse=True)
def _jobs(project: Project) -> None:
    shutil.copy(JOBS, project.root / "iso.py")


def work(project: Project, without: str, *arguments: object) -> Process:
    """Start a worker on a system that lacks something."""
    code = f"{_WITHOUT[without]}\nfrom qframe.console.app import main\nmain()"
    alone = ["work", "--isolate", "--no-schedule"]
    command = [sys.executable, "-c", code, *alone, *map(str, arguments)]
    return project.run(command)


def test_a_system_that_can_do_less(project: Project) -> None:
    for how in ("kill", "exit 3"):
        project.push("iso.Leave", {"how": how}, maxTries=1)
    project.push("StuckInC", timeout=3)
    project.push("Note")
    worker = work(project, "prctl", "--grace", 0.3)
    project.wait_for_note("note")
    wait_for(project.empty, "the end of all jobs")
    errors = [record.exception.strip().splitlines()[-1] for record in project.failed()]
    assert "was killed by SIGKILL" in errors[0]
    assert "exited with code 3" in errors[1]
    assert "and was killed" in errors[2]
    stop(worker)


def test_a_killed_workers_job_ends_with_it_there_as_well(project: Project) -> None:
    project.push("Sleep", {"seconds": 60})
    worker = work(project, "prctl")
    pid = project.wait_for_note("start")[3]
    worker.signal(signal.SIGKILL)
    wait_for(lambda: is_gone(pid), "the end of the job's process", 40)


def test_where_no_process_can_be_forked_the_job_is_given_back(project: Project) -> None:
    project.push("Note")
    worker = work(project, "fork")
    assert project.wait_for_note("note")[2] == "1", "no attempt was counted before"
    assert worker.out.count("GIVEN BACK  no process can be forked") == 1
    assert worker.err.count("no process can be forked for Note") == 1
    wait_for(lambda: "DONE" in worker.out, "the end of the job")
    stop(worker)


def test_who_finds_no_room_waits_for_it_and_its_neighbours_go_on(project: Project) -> None:
    project.configure('jobs = ["jobs"]\n', retry_after=1)
    for _ in range(2):
        project.push("Sleep", {"seconds": 0.5}, timeout=1)
    project.push("Sleep", {"seconds": 4, "word": "neighbour"}, maxTries=1)
    worker = work(project, "fork", "--concurrency", 4, "--preload")
    wait_for(lambda: len(project.notes("end")) == 3, "all three")
    wait_for(project.empty, "nothing to be left")
    assert worker.out.count("GIVEN BACK  no process can be forked") == 1
    assert "LOST" not in worker.out, "the lease of who waits was kept"
    assert [line[2] for line in project.notes("start")] == ["1"] * 3
    stop(worker)


def test_a_job_out_of_tries_is_told_in_a_process_of_its_own(project: Project) -> None:
    """With its class known, it is failed before it is started; the worker runs nothing of it."""
    project.configure('jobs = ["iso"]\n', retry_after=1)
    project.push("iso.Leave", {"how": "kill"}, maxTries=1)
    first = project.work("--isolate", "--preload", "--max-jobs", 1)
    assert first.wait() == 0
    project.push("iso.Leave", {"how": "wait"}, maxTries=1)
    (job,) = project.queue.reserve([project.queue.default_queue])
    project.queue.backend.apply(job.start_plan())
    second = project.work("--isolate", "--preload")
    wait_for(lambda: len(project.failed()) == 2, "the second failure")
    told = [
        project.wait_for_note("failed", "DirtyExit"),
        project.wait_for_note("failed", "MaxAttemptsExceeded"),
    ]
    assert int(told[0][2]) != first.pid
    assert int(told[1][2]) != second.pid
    stop(second)


@pytest.mark.parametrize(
    ("options", "toml", "words"),
    [
        (["--preload"], "", "preload is for isolate"),
        (["--isolate", "--preload"], "", "`jobs`"),
        (["--isolate", "--preload"], 'jobs = ["missing"]\n', "'missing' cannot be imported"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    project: Project, options: list[str], toml: str, words: str
) -> None:
    project.configure(toml)
    finished = project.work(*options).finished()
    assert finished.code == 2
    assert words in finished.one_line()


def test_names_are_preloaded_by_a_program(project: Project) -> None:
    project.push("iso.Settle", {"how": "delete"})
    finished = project.python(
        """
import os
from qframe import QueueManager, Worker, WorkerOptions
options = WorkerOptions(isolate=True, preload=("iso",), stop_when_empty=True)
if __name__ == "__main__":
    print(os.getpid(), Worker(QueueManager(), options).run())
"""
    )
    pid, code = finished.out.split()
    assert code == "0", finished.err
    assert project.notes("imported") == [["imported", pid]]


def test_off_the_main_thread_is_refused(project: Project) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            Worker(project.manager, WorkerOptions(isolate=True)).run()
        except ConfigurationError as error:
            raised.append(error)
        finally:
            project.manager.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_an_unknown_job_goes_back_and_then_fails(project: Project) -> None:
    project.push("jobs.Missing")
    finished = project.drain("--isolate")
    assert finished.out.count("GIVEN BACK") == 2
    assert "UnknownJob" in project.failure().exception
    assert project.failure().attempts == 0


def test_an_alias_is_found_in_the_modules_listed(project: Project) -> None:
    project.write(
        "named.py",
        "from jobs import Queueable, note\n"
        "class Alias(Queueable):\n"
        "    job_name = 'App\\\\Jobs\\\\Alias'\n"
        "    def handle(self):\n"
        "        note('alias', self.attempts)\n",
    )
    project.configure('jobs = ["named"]\n')
    project.queue.push_raw('{"uuid": "u", "job": "App\\\\Jobs\\\\Alias", "data": {}}')
    project.drain("--isolate")
    assert project.notes("alias") == [["alias", "1"]]


def test_output_of_jobs_comes_once_and_before_the_workers_line(project: Project) -> None:
    project.write(
        "talks.py",
        "import logging\n"
        "from jobs import Queueable\n"
        "class Talk(Queueable):\n"
        "    def handle(self):\n"
        "        print('said', end='\\n')\n"
        "        logging.getLogger('app').warning('logged')\n",
    )
    project.push("talks.Talk")
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    assert worker.out.count("said") == 1
    assert worker.out.index("said") < worker.out.index("DONE")
    assert worker.err.count("logged") == 1


def test_what_a_process_was_before_it_is_again(project: Project) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    manager = QueueManager(project.manager.settings)
    gc.collect()  # or what earlier tests have left is closed meanwhile
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    Worker(manager, WorkerOptions(isolate=True, stop_when_empty=True, memory=0)).run()
    manager.close()
    assert signal.getsignal(signal.SIGCHLD) == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
