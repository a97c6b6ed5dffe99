"""Leases: who owns a job, and what happens when that process is late, stopped or dead."""

from __future__ import annotations

import signal
import sqlite3
import time

import pytest

from qframe.exceptions import LOST_LEASE
from tests.support.marks import slow
from tests.support.process import Project, wait_for

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]


@pytest.mark.every_backend
def test_a_long_job_runs_once_though_its_lease_is_short(project: Project) -> None:
    project.configure(retry_after=3)
    project.push("Sleep", {"seconds": 7})
    workers = [project.work(), project.work()]
    project.wait_for_note("end")
    time.sleep(0.3)
    assert project.stop(workers) == [0, 0]
    assert len(project.notes("start")) == 1
    assert len(project.notes("end")) == 1
    assert project.empty()
    assert [worker.err for worker in workers] == ["", ""]


@pytest.mark.every_backend
def test_a_killed_workers_job_runs_again_soon(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("Sleep", {"seconds": 60}, maxTries=2)
    first = project.work()
    project.wait_for_note("start")
    other = project.idle(retry_after=1)
    first.signal(signal.SIGKILL)
    killed = time.time()
    again = project.wait_for_note("start", count=2)
    assert float(again[4]) - killed < 1 + 20
    assert again[2] == "2"
    assert int(again[3]) == other.pid
    assert project.sizes().reserved == 1
    other.end()


@pytest.mark.not_on_beanstalkd("1.12 may miss the end of a lease")
def test_a_worker_that_wakes_up_late_can_change_nothing(project: Project) -> None:
    project.configure(retry_after=3)
    uuid = project.push("Sleep", {"seconds": 2, "word": "late"}, maxTries=3)
    first = project.work()
    project.wait_for_note("start")
    first.signal(signal.SIGSTOP)
    second = project.work()
    project.wait_for_note("start", count=2)
    # The first one wakes while the second still runs the job.
    first.signal(signal.SIGCONT)
    wait_for(lambda: "LOST" in first.out, "the first worker to report its loss")
    project.wait_for_note("end", count=2)
    wait_for(project.empty, "the job's end")
    assert (first.stop(), second.stop()) == (0, 0)
    assert first.out.count(f"LOST  {LOST_LEASE}") == 1
    assert "1 lost" in first.out
    assert "its lease ha" in first.err
    assert "1 done" in second.out
    assert second.err == ""
    assert project.failed() == []
    assert [line[2] for line in project.notes("start")] == ["1", "2"]
    assert uuid


@pytest.mark.embedded_only
def test_a_worker_whose_job_is_removed_says_that_it_may_have_been(project: Project) -> None:
    project.configure(retry_after=3)
    uuid = project.push("Sleep", {"seconds": 60})
    worker = project.work()
    project.wait_for_note("start")
    with sqlite3.connect(project.database, timeout=60) as database:
        database.execute("delete from jobs")
    said = "lease has passed to another worker, or it was removed"
    wait_for(lambda: f"{uuid}: its {said}" in worker.err, "the worker to say what it knows")
    wait_for(lambda: f"LOST  {LOST_LEASE}" in worker.out, "the outcome")
    worker.end()
    assert LOST_LEASE == "its lease had passed to another worker, or it was removed"
    assert project.empty()


@pytest.mark.not_on_beanstalkd("1.12 may miss the end of a lease")
@pytest.mark.parametrize(
    "case",
    [
        "raises done",
        "fails running",
        *slow("raises running", "fails done", "releases done", "releases running"),
    ],
)
def test_a_late_failure_or_release_is_refused(project: Project, case: str) -> None:
    """The first worker's job ends after another worker has done the job, or while it runs it."""
    outcome, meanwhile = case.split()
    project.write(
        "late.py",
        f"""
import time
from pathlib import Path
from jobs import Queueable, note
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)
class Late(Queueable):
    tries = 3
    def handle(self):
        note("start", self.attempts)
        if self.attempts > 1:
            if {meanwhile!r} == "running":
                wait_for("finish")
            note("end", self.attempts)
            return
        wait_for("go")
        if {outcome!r} == "releases":
            self.release(30)
        if {outcome!r} == "fails":
            self.fail("late")
        raise ValueError("late")
    def failed(self, error):
        note("failed")
""",
    )
    project.configure(retry_after=3)
    project.push("late.Late")
    first = project.work()
    project.wait_for_note("start")
    first.signal(signal.SIGSTOP)
    second = project.work("--max-jobs", 1)
    project.wait_for_note("start", 2)
    if meanwhile == "done":
        assert second.wait() == 0
    project.write("go", "")
    first.signal(signal.SIGCONT)
    wait_for(lambda: "LOST" in first.out, "the loss to be reported")
    assert first.stop() == 0
    if meanwhile == "running":
        assert (project.sizes().total, project.sizes().reserved) == (1, 1)
    project.write("finish", "")
    assert second.wait() == 0
    assert "1 lost" in first.out
    assert first.out.count("LOST") == 1
    assert "1 done" in second.out
    assert project.empty()
    assert project.failed() == []
    assert project.notes("failed") == []
    assert len(project.notes("end")) == 1


@pytest.mark.not_on_beanstalkd("nothing is held ahead")
def test_what_a_dead_worker_held_comes_back_uncounted(project: Project) -> None:
    project.configure(retry_after=60)
    for number in range(200):
        project.push("Note", {"word": str(number)}, maxTries=1)
    project.push("Kill", maxTries=1)
    for number in range(200, 400):
        project.push("Note", {"word": str(number)}, maxTries=1)
    worker = project.work()
    assert worker.wait() == -signal.SIGKILL
    killed = time.monotonic()
    other = project.work()
    project.wait_for_note("note", count=399)
    wait_for(lambda: project.sizes().total == 1, "all but the killed job")
    assert time.monotonic() - killed < 20
    other.stop()
    words = [int(line[1]) for line in project.notes("note")]
    assert set(words) == set(range(400))
    # The one that was done but not yet acknowledged when the worker died may run twice, or
    # be failed by its only try; every job that was only held ran at its first attempt.
    assert {line[2] for line in project.notes("note")} == {"1"}


@pytest.mark.embedded_only
def test_a_settle_waits_for_a_locked_database(project: Project) -> None:
    """The backend is gone when the job ends: it is settled as soon as that answers."""
    import sqlite3

    project.configure(retry_after=30, busy_timeout=0.2)
    project.push("Flaky", {"failures": 10**6}, maxTries=1)
    project.push("Sleep", {"seconds": 1})
    worker = project.work()
    project.wait_for_note("start", "sleep")
    lock = sqlite3.connect(project.database, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    project.wait_for_note("end", "sleep")
    wait_for(lambda: " gone: " in worker.out, "the loss of the backend")
    time.sleep(0.5)
    lock.execute("COMMIT")
    lock.close()
    wait_for(lambda: " back after " in worker.out, "its return")
    wait_for(project.empty, "both jobs settled")
    assert worker.stop() == 0
    assert len(project.notes("end")) == 1
    assert len(project.notes("start")) == 2
    assert worker.out.count(" gone: ") == 1
    assert worker.out.count(" back after ") == 1
    assert "Traceback" not in worker.err


@pytest.mark.embedded_only
def test_a_lost_backend_ends_the_worker_with_69(project: Project) -> None:
    import sqlite3

    worker = project.idle(busy_timeout=0.2, give_up_after=1.5)
    lock = sqlite3.connect(project.database, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    assert worker.wait() == 69
    lock.execute("COMMIT")
    lock.close()
    assert worker.out.count(" gone: ") == 1
    assert "is locked: another program has held it" in worker.out
    assert "stopped (lost backend)" in worker.out
    assert "Traceback" not in worker.err


@pytest.mark.embedded_only
def test_a_database_that_turns_into_garbage_is_reported_once(project: Project) -> None:
    worker = project.idle(give_up_after=1.5)
    project.close()
    for file in project.root.glob("qframe.sqlite3*"):
        file.unlink()
    project.database.write_bytes(b"garbage " * 4096)
    assert worker.wait() == 69
    assert worker.out.count(" gone: ") == 1
    assert "is not an SQLite database" in worker.out
    assert "Traceback" not in worker.err


@pytest.mark.embedded_only
def test_a_file_that_was_replaced_is_found_again(project: Project) -> None:
    """Gone once, back once; jobs of the new file run."""
    worker = project.idle(give_up_after=30)
    project.close()
    for file in project.root.glob("qframe.sqlite3*"):
        file.unlink()
    project.database.write_bytes(b"garbage " * 4096)
    wait_for(lambda: " gone: " in worker.out, "the loss of the backend")
    time.sleep(0.5)
    project.database.unlink()
    project.push("Note")
    project.wait_for_note("note")
    wait_for(lambda: " back after " in worker.out, "its return")
    assert worker.out.count(" gone: ") == 1
    assert worker.out.count(" back after ") == 1
    assert worker.stop() == 0
    assert project.empty()
