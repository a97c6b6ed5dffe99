"""`--isolate`: each job in a process of its own, whatever becomes of that."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from qframe.contracts.status import State
from qframe.features.base import End
from qframe.features.status import read
from tests.support.process import Process, Project, wait_for

pytestmark = pytest.mark.on_redis_too
JOBS = Path(__file__).parents[1] / "support" / "isolated.py"


@pytest.fixture(autouse=True)
def _jobs(project: Project) -> None:
    shutil.copy(JOBS, project.root / "iso.py")


def is_gone(pid: object) -> bool:
    """Whether there is no such process, or only what its parent has not buried yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def work_preloaded(project: Project, *options: object) -> Process:
    """Start a worker whose jobs need import nothing, so that a short timeout is the handler's."""
    project.configure('jobs = ["jobs", "iso"]\n')
    return project.work("--isolate", "--preload", *options)


def stop(worker: Process) -> None:
    """Stop a worker, which has to have come to no harm."""
    assert worker.alive(), worker.err
    assert worker.stop() == 0


# -- what the process is like --------------------------------------------------------------------


def test_each_job_has_a_clean_process_of_its_own(project: Project) -> None:
    for _ in range(3):
        project.push("iso.Look")
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    looks = project.notes("look")
    assert len({line[1] for line in looks}) == 3
    for _, pid, parent, group, stdin, score in looks:
        assert int(parent) == worker.pid != int(pid)
        assert group == pid
        assert stdin == "/dev/null"
        assert score == "500"
    assert project.notes("clean") == [["clean"]] * 3, project.notes("spoilt")
    assert len({line[1] for line in project.notes("random")}) == 3
    assert worker.err == ""
    assert project.empty()


def test_the_worker_imports_no_jobs(project: Project) -> None:
    project.configure('jobs = ["iso"]\n')
    project.push("iso.Settle", {"how": "delete"})
    project.push("iso.Settle", {"how": "delete"})
    worker = project.work("--isolate", "--stop-when-empty", "--no-schedule")
    assert worker.wait() == 0
    imported = [int(line[1]) for line in project.notes("imported")]
    assert len(set(imported)) == 2
    assert worker.pid not in imported


def test_preload_imports_once_and_seeds_each_process_anew(project: Project) -> None:
    project.configure('jobs = ["iso"]\n')
    for _ in range(3):
        project.push("iso.Look")
    worker = project.work("--isolate", "--preload", "--stop-when-empty")
    assert worker.wait() == 0
    assert project.notes("imported") == [["imported", str(worker.pid)]]
    assert len(project.notes("clean")) == 3
    assert len({line[1] for line in project.notes("random")}) == 3


# -- ends of the process -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit 0", "exited with code 0"),
        ("exit 3", "exited with code 3"),
        ("exec", "exited with code 0"),
        ("fds", "exited with code 69"),
        ("segfault", "was killed by SIGSEGV"),
        ("abort", "was killed by SIGABRT"),
        ("kill", "was killed by SIGKILL, possibly out of memory"),
        ("group", "was killed by SIGKILL"),
    ],
)
def test_a_process_that_ends_without_a_word_is_a_dirty_exit(
    project: Project, how: str, words: str
) -> None:
    project.push("iso.Leave", {"how": how}, maxTries=2)
    project.push("Note")
    worker = project.work("--isolate", "--max-jobs", 3)
    assert worker.wait() == 0
    assert project.notes("note"), "the worker went on"
    starts = [line for line in project.notes("start") if line[0] == "start"]
    assert [line[-2] for line in starts] == ["1", "2"]
    record = project.failure()
    assert record.attempts == 2
    last = record.exception.strip().splitlines()[-1]
    assert "DirtyExit: the process of the job" in last
    assert words in last
    assert f"pid {starts[1][-1]}" in last
    recording = record.history.recording
    assert recording is not None
    assert recording.summary.startswith(words.removeprefix("was ").partition(",")[0])
    assert how != "segfault" or " at iso.py:" in recording.summary
    ended = [(each.ended, words in each.error) for each in record.history.attempts]
    assert ended == [("error", True)] * 2
    (told,) = project.notes("failed")
    assert told[1] == "DirtyExit"
    assert int(told[2]) != worker.pid, "the hook ran in a process of its own as well"
    assert f"RETRY in 0 s  DirtyExit: the process of the job {words}" in worker.out
    assert project.empty()


def test_the_backoff_method_of_a_dead_process_is_asked(project: Project) -> None:
    project.push("iso.AsksBackoff")
    project.drain("--isolate")
    assert project.notes("backoff") == [["backoff", "1", "DirtyExit"]]
    assert project.sizes().delayed == 1


def test_an_exception_comes_with_its_own_traceback(project: Project) -> None:
    project.push("Flaky", maxTries=1)
    project.push("Raise", {"kind": "sys.exit"})
    project.push("Raise", {"kind": "Silent"})
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    flaky, leaves, silent = project.failed()
    assert 'jobs.py", line' in flaky.exception
    assert "in handle" in flaky.exception
    assert flaky.exception.strip().endswith("ValueError: not the 1. time")
    assert leaves.exception.strip().endswith("SystemExit: 0")
    assert "_Silent" in silent.exception
    assert "FAIL  ValueError: not the 1. time" in worker.out
    assert project.notes("failed")[0] == ["failed", "flaky", "ValueError"]


def test_a_job_may_run_out_of_the_memory_it_allows_itself(project: Project) -> None:
    project.push("iso.Hog")
    project.push("Note")
    project.drain("--isolate")
    assert "MemoryError" in project.failure().exception
    assert project.notes("note")


def test_killed_from_outside(project: Project) -> None:
    project.push("Sleep", {"seconds": 60}, maxTries=1)
    worker = project.work("--isolate")
    pid = int(project.wait_for_note("start")[3])
    os.kill(pid, signal.SIGKILL)
    wait_for(project.failed, "the failure")
    assert "was killed by SIGKILL" in project.failure().exception
    stop(worker)


# -- what the job does with itself ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "state", "runs"),
    [("delete", "1001", 1), ("release", "0101", 2), ("fail", "1011", 1), ("bury", "0001", 1)],
)
def test_a_job_settles_itself_by_the_worker_and_once(
    project: Project, how: str, state: str, runs: int
) -> None:
    project.push("iso.Settle", {"how": how})
    finished = project.drain("--isolate")
    assert len(project.notes("start")) == runs
    assert project.notes("refused") == [["refused", *state]]
    assert project.sizes().buried == (how == "bury")
    assert len(project.failed()) == (how == "fail")
    assert finished.err == ""


SETTLES_AND_DIES = """
import os
from jobs import note
from qframe import Queueable

class Settles(Queueable):
    how: str

    def handle(self):
        note("start", self.attempts)
        getattr(self.job, self.how)()
        os._exit(3)
"""


@pytest.mark.parametrize("how", ["delete", "fail", "bury"])
def test_what_a_job_made_of_itself_holds_though_its_process_dies_then(
    project: Project, how: str
) -> None:
    project.write("dies.py", SETTLES_AND_DIES)
    project.push("dies.Settles", {"how": how}, maxTries=3)
    finished = project.drain("--isolate")
    assert len(project.notes("start")) == 1
    assert project.sizes().buried == (how == "bury")
    assert len(project.failed()) == (how == "fail")
    assert ("had settled itself and then raised" in finished.err) == (how != "fail")


def test_what_a_job_dispatches_is_sent_before_its_process_ends(project: Project) -> None:
    project.push("iso.Drops")
    project.drain("--isolate")
    project.drain("--queue", "made")
    assert sorted(line[1] for line in project.notes("note")) == ["cycle", "kept", "sent"]


def test_a_fork_that_comes_back_from_the_job_says_nothing(project: Project) -> None:
    project.push("iso.ReturnsTwice")
    finished = project.drain("--isolate")
    assert project.notes("second")
    assert "1 done" in finished.out
    assert project.empty()
    assert project.failed() == []


def test_what_a_job_leaves_behind_is_ended_with_it(project: Project) -> None:
    project.push("iso.Family")
    worker = project.work("--isolate")
    project.wait_for_note("left", count=2)
    left = [pid for _, pid in project.notes("left")]
    wait_for(lambda: all(map(is_gone, left)), "the end of what the job left")
    wait_for(project.empty, "the end of the job")
    stop(worker)


def test_progress_and_result_of_a_tracked_job(project: Project) -> None:
    uuid = project.push("iso.Reports", track=600)
    project.drain("--isolate")
    status = read(project.queue.backend, uuid)
    assert status is not None
    assert status.state == "COMPLETE"
    assert status.result == {"answer": 42}


TALKS = """
from qframe import Queueable

class Talks(Queueable):
    track = True

    def handle(self):
        self.progress(0.5, "x" * 70_000_000)
        return "y" * 70_000_000
"""


def test_a_job_may_say_more_than_is_kept(project: Project) -> None:
    project.write("talk.py", TALKS)
    uuid = project.push("talk.Talks", track=600)
    project.drain("--isolate")
    status = read(project.queue.backend, uuid)
    assert status is not None
    assert (status.state, status.result, len(status.message)) == ("COMPLETE", None, 500)
    assert status.remark.startswith("the result has 70,000,002 bytes")


# -- time ----------------------------------------------------------------------------------------


def test_after_a_timeout_the_worker_goes_on(project: Project) -> None:
    project.push("Sleep", {"seconds": 60}, timeout=1.5)
    project.push("Note")
    worker = work_preloaded(project)
    project.wait_for_note("note")
    assert project.notes("finally") == [["finally", "sleep"]]
    assert "FAIL  JobTimedOut: ran longer than its timeout of 1.5 s" in worker.out
    assert "in handle" in project.failure().exception, "where it was"
    stop(worker)


@pytest.mark.parametrize("job", ["StuckInC", "iso.Deaf"])
def test_a_job_that_does_not_end_is_killed_and_fails_at_once(project: Project, job: str) -> None:
    project.push(job, timeout=1.5, maxTries=2)
    project.push("Note")
    worker = work_preloaded(project, "--grace", 0.5)
    wait_for(project.failed, "the failure")
    project.wait_for_note("note")
    record = project.failure()
    assert [each.ended for each in record.history.attempts] == ["timed out", "error"]
    assert "JobTimedOut: ran longer than its timeout of 1.5 s, did not end" in record.exception
    pids = [line[-1] for line in project.notes("start")]
    assert all(map(is_gone, pids))
    assert "in handle" in worker.err, "its stack is on stderr"
    recording = record.history.recording
    assert recording is not None
    assert recording.summary.startswith("killed after its timeout of 1.5 s")
    assert recording.summary.partition(" at ")[2].startswith(("jobs.py:", "iso.py:"))
    assert len(project.notes("start")) == 2
    stop(worker)


def test_the_lease_is_kept_while_the_job_holds_the_interpreter_lock(project: Project) -> None:
    project.configure(retry_after=3)
    project.push("iso.Busy", {"seconds": 6}, maxTries=3)
    workers = [project.work("--isolate"), project.work("--isolate")]
    project.wait_for_note("end", "busy")
    wait_for(project.empty, "the job's end")
    assert len(project.notes("start")) == 1
    for worker in workers:
        stop(worker)
        assert worker.err == ""


@pytest.mark.on_redis_in_ci
def test_a_job_whose_lease_is_lost_is_ended_at_once(project: Project) -> None:
    project.configure(retry_after=3)
    project.push("Sleep", {"seconds": 60}, maxTries=3)
    first = project.work("--isolate")
    pid = project.wait_for_note("start")[3]
    first.signal(signal.SIGSTOP)
    second = project.work("--isolate")
    project.wait_for_note("start", count=2)
    first.signal(signal.SIGCONT)
    wait_for(lambda: is_gone(pid), "the late job's end")
    wait_for(lambda: "LOST" in first.out, "the loss to be reported")
    assert first.out.count("LOST") == 1
    assert project.sizes().reserved == 1
    stop(first)
    second.end()


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_the_job_finish_also_where_all_processes_are_told(
    project: Project, number: signal.Signals
) -> None:
    project.push("Sleep", {"seconds": 1})
    project.push("Note")
    worker = project.work("--isolate")
    pid = int(project.wait_for_note("start")[3])
    worker.signal(number)
    os.kill(pid, number)  # a supervisor may tell each process
    assert worker.wait() == 0
    assert [line[0] for line in project.notes()][-2:] == ["finally", "end"]
    assert project.sizes().ready == 1
    assert worker.err == ""


def test_a_second_stop_gives_the_job_back_uncounted(project: Project) -> None:
    project.push("Sleep", {"seconds": 60}, maxTries=1)
    worker = project.work("--isolate")
    pid = project.wait_for_note("start")[3]
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert "GIVEN BACK" in worker.out
    assert project.notes("finally")
    assert project.notes("end") == []
    assert is_gone(pid)
    (job,) = project.queue.reserve([project.queue.default_queue])
    assert job.attempts() == 0
    job.settle(End(State.WAITING))


def test_a_deaf_job_is_given_back_all_the_same(project: Project) -> None:
    project.push("iso.Deaf")
    worker = project.work("--isolate", "--grace", 0.3)
    pid = project.wait_for_note("start", "deaf")[3]
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert is_gone(pid)
    assert "GIVEN BACK" in worker.out
    assert (project.sizes().ready, project.sizes().reserved) == (1, 0)


def test_usr1_interrupts_the_job_and_not_the_worker(project: Project) -> None:
    project.push("Sleep", {"seconds": 60}, maxTries=1)
    project.push("iso.Deaf", maxTries=1)
    project.push("Note")
    worker = project.work("--isolate", "--grace", 2)
    project.wait_for_note("start", "sleep")
    worker.signal(signal.SIGUSR1)
    project.wait_for_note("start", "deaf")
    assert project.notes("finally")
    worker.signal(signal.SIGUSR1)
    project.wait_for_note("note")
    for record in project.failed():
        assert "JobInterrupted: the worker got SIGUSR1" in record.exception
    assert len(project.failed()) == 2
    stop(worker)


@pytest.mark.on_redis_in_ci
def test_a_killed_workers_job_ends_with_it_and_runs_again(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("Sleep", {"seconds": 60}, maxTries=2)
    first = project.work("--isolate")
    pid = project.wait_for_note("start")[3]
    first.signal(signal.SIGKILL)
    wait_for(lambda: is_gone(pid), "the end of the job's process", 40)
    second = project.work("--isolate")
    assert project.wait_for_note("start", count=2)[2] == "2"
    second.end()


# -- listeners -----------------------------------------------------------------------------------


def test_each_listener_hears_an_event_once_where_it_belongs(project: Project) -> None:
    kinds = ["JobForking", "JobForked", "JobProcessing", "JobProcessed", "JobQueued", "JobFailed"]
    lines = "".join(f'{kind} = ["iso:hear"]\n' for kind in kinds)
    project.configure(f"[listeners]\n{lines}")
    project.push("iso.Drops")
    project.push("iso.Leave", {"how": "exit 3"}, maxTries=1)
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    heard = [(line[1], int(line[2]) == worker.pid) for line in project.notes("heard")]
    assert heard == [
        ("JobForking", True),
        ("JobForked", False),
        ("JobProcessing", False),
        *[("JobQueued", False)] * 3,
        ("JobProcessed", True),
        ("JobForking", True),
        ("JobForked", False),
        ("JobProcessing", False),
        ("JobFailed", True),
    ]


def test_a_listener_that_the_jobs_own_module_adds_hears_in_its_process(project: Project) -> None:
    project.push("iso.Settle", {"how": "delete"})
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    (own,) = project.notes("own")
    assert int(own[1]) != worker.pid


def test_a_listener_of_the_worker_may_settle_the_job(project: Project) -> None:
    project.configure('[listeners]\nJobExceptionOccurred = ["iso:rescue"]\n')
    project.push("Flaky", maxTries=1)
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0
    assert project.notes("rescued") == [["rescued", str(worker.pid)]]
    assert project.failed() == []
    assert project.empty()


OWN = """
from jobs import note
from qframe import Queueable, events

class OwnError(Exception):
    pass

@events.listen(events.JobEvent)
def hear(event):
    note("own", type(event).__name__, event.job.is_settled)

class Fails(Queueable):
    tries = 2

    def backoff(self, attempt, error):
        note("backoff", isinstance(error, OwnError))
        return 0

    def handle(self):
        raise OwnError("own")

    def failed(self, error):
        note("failed", isinstance(error, OwnError), self.job.has_failed)
"""


def test_the_process_of_a_job_hears_what_became_of_it(project: Project) -> None:
    project.write("own.py", OWN)
    project.push("own.Fails")
    project.drain("--isolate")
    assert [line[1:] for line in project.notes("own")] == [
        ["JobExceptionOccurred", "False"],
        ["JobReleasedAfterException", "True"],
        ["JobAttempted", "True"],
        ["JobExceptionOccurred", "False"],
        ["JobFailed", "True"],
        ["JobAttempted", "True"],
    ]
    assert project.notes("backoff") == [["backoff", "True"]]
    assert project.notes("failed") == [["failed", "True", "True"]]


def test_what_a_listener_of_the_worker_makes_of_a_job_is_told_its_process(project: Project) -> None:
    project.configure('[listeners]\nJobExceptionOccurred = ["iso:refuse"]\n')
    project.write("own.py", OWN)
    project.push("own.Fails")
    project.drain("--isolate")
    assert project.failure().attempts == 1
    assert project.notes("failed") == [["failed", "True", "True"]]
    told = [line[1] for line in project.notes("own")]
    assert told == ["JobExceptionOccurred", "JobFailed", "JobAttempted"]


def test_the_process_of_a_job_that_is_lost_when_it_has_ended_hears_that(project: Project) -> None:
    project.configure('[listeners]\nJobExceptionOccurred = ["iso:lose"]\n')
    project.write("own.py", OWN)
    project.push("own.Fails")
    assert "LOST" in project.drain("--isolate").out
    assert project.notes("failed") == []
    assert [line[1:] for line in project.notes("own")] == [
        ["JobExceptionOccurred", "False"],
        ["JobLeaseLost", "True"],
        ["JobAttempted", "True"],
    ]
