"""`--isolate --concurrency N`: many jobs at once, each as if its process were the only one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qframe.features.status import read
from qframe.worker import roster
from tests.support.process import Process, Project, wait_for
from tests.worker.test_isolation import is_gone, stop

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]
JOBS = Path(__file__).parents[1] / "support" / "isolated.py"


@pytest.fixture(autouse=True)
def _jobs(project: Project) -> None:
    shutil.copy(JOBS, project.root / "iso.py")


def work(project: Project, *options: object, slots: int = 5, **connection: object) -> Process:
    """Start a worker whose jobs need import nothing."""
    project.configure('jobs = ["jobs", "iso"]\n', **connection)
    return project.work("--isolate", "--preload", "--concurrency", slots, *options)


def sleep(project: Project, seconds: float, word: str = "sleep", **envelope: Any) -> str:
    return project.push("Sleep", {"seconds": seconds, "word": word}, **envelope)


def started(project: Project, count: int, seconds: float = 20) -> list[int]:
    """Wait until so many jobs have started; gives the pids of their processes."""
    project.wait_for_note("start", count=count, seconds=seconds)
    return [int(line[3]) for line in project.notes("start")]


def ended(project: Project) -> list[str]:
    return [line[1] for line in project.notes("end")]


def empty(project: Project) -> None:
    wait_for(project.empty, "nothing to be left")


# -- at once --------------------------------------------------------------------------------------


def test_so_many_run_at_once_each_in_its_process(project: Project) -> None:
    for number in range(11):
        sleep(project, 1.5, str(number))
    worker = work(project, slots=4)
    wait_for(lambda: len(ended(project)) == 11, "all jobs")
    empty(project)
    stop(worker)
    moments = [(float(line[4]), 1) for line in project.notes("start")]
    moments += [(float(line[4]), -1) for line in project.notes("end")]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert most == 4
    assert len({line[3] for line in project.notes("start")}) == 11
    assert Counter(line[1] for line in project.notes("start")) == Counter(map(str, range(11)))


@pytest.mark.parametrize(
    ("options", "done"), [(["--max-jobs", 7], 7), (["--stop-when-empty"], 12), (["--once"], 1)]
)
def test_it_stops_when_it_is_to(project: Project, options: list[object], done: int) -> None:
    for number in range(12):
        sleep(project, 0.1, str(number))
    assert work(project, *options).wait() == 0
    assert len(ended(project)) == done
    assert project.sizes().ready == 12 - done
    assert project.sizes().reserved == 0


def test_one_at_a_time_rests_between_jobs(project: Project) -> None:
    for number in range(3):
        sleep(project, 0, str(number))
    assert work(project, "--rest", 0.7, "--max-jobs", 3, slots=1).wait() == 0
    moments = [float(line[4]) for line in project.notes("start")]
    assert all(after - before >= 0.7 for before, after in pairwise(moments))


def test_it_rests_no_longer_than_until_it_is_told_to_stop(project: Project) -> None:
    sleep(project, 0)
    worker = work(project, "--rest", 60, slots=1)
    wait_for(lambda: "DONE" in worker.out, "the end of the job")
    stop(worker)


def test_what_fails_is_tried_again_and_fails(project: Project) -> None:
    for _ in range(3):
        project.push("Flaky", maxTries=2)
        project.push("iso.Leave", {"how": "kill"}, maxTries=2)
    worker = work(project)
    wait_for(lambda: len(project.failed()) == 6, "six failed jobs")
    empty(project)
    stop(worker)
    assert {record.attempts for record in project.failed()} == {2}
    assert sum("DirtyExit" in record.exception for record in project.failed()) == 3


@pytest.mark.parametrize("dies", [False, True])
def test_nobody_waits_for_what_a_job_does_when_it_has_failed(project: Project, dies: bool) -> None:
    for _ in range(3):
        project.push("iso.Cleans", {"dies": dies})
    sleep(project, 0.5)
    worker = work(project)
    wait_for(lambda: len(project.notes("heard")) == 3, "three that have heard it")
    stop(worker)
    assert ended(project) == ["sleep"]
    hears = [float(line[2]) for line in project.notes("hears")]
    assert max(hears) < min(float(line[2]) for line in project.notes("heard")), "at the same time"
    assert len(project.failed()) == 3


# -- the ends of one, and its neighbours -----------------------------------------------------------


@pytest.mark.parametrize("late", ["StuckInC", "iso.Deaf"])
def test_a_late_job_is_killed_and_no_worker_ends_for_it(project: Project, late: str) -> None:
    project.push("Held", timeout=0)
    project.push(late, timeout=1.5, maxTries=2)
    worker = work(project, "--grace", 2)  # its processes have time to begin, and to be heard
    wait_for(project.failed, "the failure")
    record = project.failure()
    assert [each.ended for each in record.history.attempts] == ["timed out", "error"]
    assert "JobTimedOut: ran longer than its timeout of 1.5 s, did not end" in record.exception
    project.push("Note")
    project.wait_for_note("note")
    assert ended(project) == [], "all that was while its neighbour ran"
    project.let_go("held")
    wait_for(lambda: ended(project) == ["held"], "its neighbour")
    empty(project)
    # A busy machine may kill one before it has written its stack.
    assert 1 <= worker.err.count("Current thread") <= 2
    stop(worker)


@pytest.mark.parametrize("how", ["kill", "exit 0", "exec", "fds", "segfault", "group"])
def test_what_ends_one_process_ends_no_other(project: Project, how: str) -> None:
    sleep(project, 1.5, "before")
    project.push("iso.Leave", {"how": how}, maxTries=1)
    sleep(project, 1.5, "after")
    worker = work(project)
    wait_for(lambda: sorted(ended(project)) == ["after", "before"], "both neighbours")
    empty(project)
    assert "DirtyExit" in project.failure().exception
    stop(worker)


def test_one_that_is_dead_though_its_socket_is_not(project: Project) -> None:
    sleep(project, 2)
    project.push("iso.LeavesSocket", maxTries=1)
    worker = work(project)
    wait_for(project.failed, "the failure")
    assert "was killed by SIGKILL" in project.failure().exception
    (left,) = (line[1] for line in project.notes("left"))
    wait_for(lambda: is_gone(left), "the end of who held it")
    wait_for(lambda: ended(project) == ["sleep"], "its neighbour")
    empty(project)
    stop(worker)


def test_one_that_says_too_much_keeps_nobody_from_being_heard(project: Project) -> None:
    uuid = project.push("iso.Floods", {"seconds": 4}, track=600)
    project.push("Sleep", {"seconds": 60}, timeout=1, maxTries=1)
    worker = work(project)
    project.wait_for_note("start", "floods")
    for number in range(5):
        project.push("Note", {"word": str(number)})
    wait_for(lambda: project.failed() and len(project.notes("note")) == 5, "its neighbours")
    status = read(project.queue.backend, uuid) if not _has_no_facts(project) else None
    assert status is None or status.state == "RUNNING", "all that was while it spoke"
    empty(project)
    assert "ran longer than its timeout of 1 s" in project.failure().exception
    assert "did not end" not in project.failure().exception, "it was told in time"
    stop(worker)


def _has_no_facts(project: Project) -> bool:
    return project.queue.settings.driver == "beanstalkd"


def test_what_a_job_leaves_falls_to_it_and_ends_with_it(project: Project) -> None:
    project.push("iso.Keeps", {"seconds": 6})
    worker = work(project)
    helper = project.wait_for_note("helper")[1]
    for number in range(4):
        project.push("Note", {"word": str(number)})
    project.push("iso.Family")
    wait_for(lambda: len(project.notes("note")) == 4, "its neighbours")
    project.wait_for_note("left", count=2)
    left = [pid for _, pid in project.notes("left")]
    wait_for(lambda: all(map(is_gone, left)), "the end of what a neighbour left")
    assert not project.notes("kept"), "all that was while it ran"
    project.wait_for_note("kept", helper)
    wait_for(lambda: is_gone(helper), "the end of what it left itself")
    empty(project)
    stop(worker)


@pytest.mark.embedded_only
def test_no_process_has_what_the_worker_hears_another_by(project: Project) -> None:
    for _ in range(4):
        project.push("iso.Sockets")
    worker = work(project)
    wait_for(lambda: len(project.notes("sockets")) == 4, "all four")
    assert len({count for _, count in project.notes("sockets")}) == 1
    empty(project)
    stop(worker)


@pytest.mark.not_on_beanstalkd("only its own connection can take a job from a worker")
def test_a_lost_lease_ends_its_job_and_no_other(project: Project) -> None:
    sleep(project, 3)
    project.push("iso.Disowned")
    worker = work(project, retry_after=2)
    pid = project.wait_for_note("start", "disowned")[2]
    wait_for(lambda: "LOST" in worker.out, "the loss to be reported")
    wait_for(lambda: is_gone(pid), "the end of its process")
    wait_for(lambda: ended(project) == ["sleep"], "its neighbour")
    empty(project)
    stop(worker)
    assert worker.out.count("LOST") == 1


@pytest.mark.not_on_beanstalkd("cannot be searched")
def test_one_of_several_is_cancelled(project: Project) -> None:
    uuid = sleep(project, 60, "this")
    project.push("Held", {"word": "other"})
    worker = work(project)
    started(project, 2)
    asked = project.start("cancel", "--running", uuid).finished()
    assert asked.code == 0, asked.err
    assert project.notes("finally") == [["finally", "this"]]
    project.let_go("other")
    wait_for(lambda: ended(project) == ["other"], "the other")
    empty(project)
    assert not project.failed()
    assert "CANCELLED" in worker.out
    stop(worker)


@pytest.mark.on_redis_in_ci
def test_leases_are_kept_while_all_hold_the_interpreters_lock(project: Project) -> None:
    for _ in range(4):
        project.push("iso.Busy", {"seconds": 3.5}, maxTries=3)
    first = work(project, slots=2, retry_after=2)
    second = project.work("--isolate", "--preload", "--concurrency", 2)
    wait_for(lambda: len(project.notes("end")) == 4, "all four")
    empty(project)
    assert len(project.notes("start")) == 4
    assert project.stop([first, second]) == [0, 0]
    assert (first.err, second.err) == ("", "")


# -- signals --------------------------------------------------------------------------------------


def test_the_first_stop_signal_lets_jobs_end(project: Project) -> None:
    for _ in range(3):
        sleep(project, 2)
    worker = work(project)
    started(project, 3)
    worker.signal(signal.SIGTERM)
    sleep(project, 0, "next")
    assert worker.wait() == 0
    assert ended(project) == ["sleep"] * 3
    assert project.sizes().ready == 1
    assert worker.err == ""


def test_the_second_stop_signal_gives_all_back_uncounted(project: Project) -> None:
    for _ in range(3):
        sleep(project, 60, maxTries=1)
    project.push("iso.Deaf", maxTries=1)
    worker = work(project, "--grace", 2)
    pids = started(project, 4)
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert worker.out.count("GIVEN BACK") == 4
    assert len(project.notes("finally")) == 3
    assert all(map(is_gone, pids))
    wait_for(lambda: project.sizes().ready == 4, "all to be ready")
    jobs = [job for _ in range(4) for job in project.queue.reserve([project.queue.default_queue])]
    assert [job.attempts() for job in jobs] == [0] * 4


def test_usr1_interrupts_all_and_not_the_worker(project: Project) -> None:
    for _ in range(3):
        sleep(project, 60, maxTries=1)
    project.push("iso.Deaf", maxTries=1)
    worker = work(project, "--grace", 2)
    started(project, 4)
    worker.signal(signal.SIGUSR1)
    wait_for(lambda: len(project.failed()) == 4, "all to have failed")
    assert len(project.notes("finally")) == 3
    for record in project.failed():
        assert "JobInterrupted: the worker got SIGUSR1" in record.exception
    sleep(project, 0, "next")
    project.wait_for_note("end", "next")
    stop(worker)


def test_a_pause_leaves_alone_what_runs(project: Project) -> None:
    for _ in range(2):
        sleep(project, 2)
    worker = work(project)
    started(project, 2)
    worker.signal(signal.SIGUSR2)
    wait_for(lambda: "paused" in worker.out, "the pause")
    sleep(project, 0, "next")
    wait_for(lambda: len(ended(project)) == 2, "what runs")
    wait_for(lambda: worker.out.count("DONE") == 2, "their ends")
    assert project.sizes().ready == 1
    worker.signal(signal.SIGCONT)
    project.wait_for_note("end", "next")
    empty(project)
    stop(worker)


def test_a_restart_lets_jobs_end(project: Project) -> None:
    for _ in range(2):
        sleep(project, 4)
    worker = work(project)
    started(project, 2)
    assert project.qframe("restart").code == 0
    assert worker.wait() == 0
    assert "restart" in worker.out.splitlines()[-1]
    assert len(ended(project)) == 2
    empty(project)


# -- what is seen of it ---------------------------------------------------------------------------


def test_a_worker_lists_what_it_runs(project: Project) -> None:
    for _ in range(2):
        sleep(project, 60)
    worker = work(project, slots=7)
    started(project, 2)

    def jobs() -> list[str]:
        return [job.name for entry in roster.listed(project.queue.store) for job in entry.jobs]

    wait_for(lambda: len(jobs()) == 2, "both to be listed")
    shown = project.start("workers").finished()
    assert re.search(r"running +2 +5 +Sleep", shown.out)
    assert shown.out.count("Sleep") == 2
    worker.ask_twice_to_stop()
    assert worker.wait() == 0


@pytest.mark.parametrize("slots", [1, 2])
def test_it_is_scaled_while_it_runs(project: Project, slots: int) -> None:
    for number in range(8):
        project.push("Held", {"word": number})
    worker = work(project, "--name", "lone", slots=slots)
    started(project, slots)
    wait_for(lambda: roster.listed(project.queue.store), "the worker")
    more = project.qframe("scale", "lone", 4)
    assert more.code == 0, more.err
    started(project, 4)
    fewer = project.qframe("scale", "lone", 1)
    assert fewer.code == 0, fewer.err
    wait_for(lambda: roster.listed(project.queue.store)[0].concurrency == 1, "it to know")
    project.let_go(*(line[1] for line in project.notes("start")))
    wait_for(lambda: len(ended(project)) >= 4, "the first four")
    started(project, 5)
    for _ in range(2):  # what runs is given back
        worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert len(project.notes("start")) == 5, "one at a time again"


def test_one_that_rests_is_not_scaled(project: Project) -> None:
    worker = work(project, "--rest", 1, slots=1)
    wait_for(lambda: roster.listed(project.queue.store), "the worker")
    said = project.qframe("scale", "default", 4)
    assert said.code == 1
    assert "runs one job at a time" in said.err
    stop(worker)


# -- breakdowns -----------------------------------------------------------------------------------


def test_the_jobs_of_a_killed_worker_end_with_it_and_run_again(project: Project) -> None:
    for number in range(4):
        sleep(project, 3, str(number), maxTries=2)
    first = work(project, retry_after=2)
    pids = started(project, 4)
    first.signal(signal.SIGKILL)
    wait_for(lambda: all(map(is_gone, pids)), "the end of their processes")
    second = project.work("--isolate", "--preload", "--concurrency", 4)
    wait_for(lambda: len(ended(project)) == 4, "all jobs")
    empty(project)
    assert sorted(line[2] for line in project.notes("start")) == ["1"] * 4 + ["2"] * 4
    stop(second)


@pytest.mark.on_redis_in_ci
def test_a_pool_settles_all_that_a_dead_worker_ran(project: Project) -> None:
    for number in range(4):
        sleep(project, 4, str(number))
    pool = work(project, "--workers", 1, "--tries", 2, "--json", retry_after=60)
    pids = started(project, 4)
    (entry,) = wait_for(lambda: roster.listed(project.queue.store), "the worker")
    began = time.monotonic()
    os.kill(entry.pid, signal.SIGKILL)
    wait_for(lambda: all(map(is_gone, pids)), "the end of their processes")
    wait_for(lambda: len(ended(project)) == 4, "all jobs")
    assert time.monotonic() - began < 20, "not when their leases were over"
    assert pool.stop() == 0
    assert sorted(line[2] for line in project.notes("start")) == ["1"] * 4 + ["2"] * 4


def test_a_late_job_ends_no_worker_of_a_pool(project: Project) -> None:
    sleep(project, 8)
    project.push("StuckInC", timeout=1.5, maxTries=1)
    pool = work(project, "--workers", 1, "--grace", 0.5, "--json")
    wait_for(lambda: ended(project) == ["sleep"], "its neighbour")
    empty(project)
    assert "JobTimedOut" in project.failure().exception
    assert not [row for row in pool.rows if row["status"] == "exited"]
    assert pool.stop() == 0
