"""Many jobs at once in one worker: each as if it were alone."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from qframe.contracts.backend import Capability
from qframe.worker import roster
from tests.support.process import Process, Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.fixture
def crowd(request: pytest.FixtureRequest, project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    if getattr(request, "param", "asyncio") == "asyncio":
        project.write("uvloop.py", "raise ImportError")  # it is not there
    return project


both_loops = pytest.mark.parametrize(
    "crowd", ["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)], indirect=True
)


def push(project: Project, job: str, **data: object) -> str:
    return project.push(f"at_once.{job}", data)


def work(project: Project, *arguments: object, slots: int = 10) -> Process:
    return project.work("--concurrency", slots, *arguments)


def ended(project: Project) -> int:
    return len(project.notes("end"))


def empty(project: Project, seconds: float = 20) -> None:
    wait_for(project.empty, "nothing to be left", seconds)


# -- at once --------------------------------------------------------------------------------------


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", ["Waits", "Blocks"])
def test_so_many_run_at_once_and_no_more(crowd: Project, kind: str) -> None:
    for number in range(12):
        push(crowd, kind, word=str(number), seconds=0.5)
    worker = work(crowd, slots=4)
    wait_for(lambda: ended(crowd) == 12, "all jobs")
    empty(crowd)
    assert crowd.stop([worker]) == [0]
    moments = [(float(line[3]), 1) for line in crowd.notes("start")]
    moments += [(float(line[3]), -1) for line in crowd.notes("end")]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert most == 4
    assert Counter(line[1] for line in crowd.notes("start")) == Counter(map(str, range(12)))


def test_a_worker_that_stops_when_empty_ends_after_its_jobs(crowd: Project) -> None:
    push(crowd, "Waits", seconds=1)
    push(crowd, "Blocks", seconds=1)
    assert work(crowd, "--stop-when-empty").wait() == 0
    assert ended(crowd) == 2
    assert crowd.empty()


def test_it_stops_after_so_many_jobs(crowd: Project) -> None:
    for _ in range(20):
        push(crowd, "Waits", seconds=0.1)
    assert work(crowd, "--max-jobs", 7).wait() == 0
    assert ended(crowd) == 7
    assert crowd.sizes().ready == 13


def test_retries_and_failures_are_those_of_each_job(crowd: Project) -> None:
    for _ in range(3):
        push(crowd, "Flaky")
        push(crowd, "Fails")
    worker = work(crowd)
    wait_for(lambda: len(crowd.notes("succeeded")) == 3, "three jobs that succeed at last")
    wait_for(lambda: len(crowd.failed()) == 3, "three failed ones")
    empty(crowd)
    assert crowd.stop([worker]) == [0]
    assert crowd.notes("done") == [["done", "3"]] * 3
    assert crowd.notes("failed") == [["failed", "ValueError"]] * 3


@both_loops
def test_a_handler_is_on_the_one_loop_whatever_is_around_it(crowd: Project) -> None:
    for _ in range(3):
        push(crowd, "Mixed")
        push(crowd, "OneAtATime")
    worker = work(crowd)
    wait_for(lambda: len(crowd.notes("loop")) == 6, "all jobs")
    assert crowd.stop([worker]) == [0]
    assert len({line[1] for line in crowd.notes("loop")}) == 1
    assert crowd.notes("outer") == [["outer", "False"]] * 3


# -- ends from outside ----------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize(
    "how",
    ["awaits", "computes", "has_a_task_compute", "has_another_task_compute", "has_a_group"],
)
def test_a_late_job_sees_why_it_ends_and_nobody_else_does(crowd: Project, how: str) -> None:
    push(crowd, "Late", how=how)
    push(crowd, "Waits", seconds=3)
    push(crowd, "Blocks", seconds=3)
    worker = work(crowd)
    wait_for(lambda: ended(crowd) == 3, "all three")
    empty(crowd)
    assert "JobTimedOut" in crowd.failure().exception
    (saw,) = crowd.notes("saw")
    assert saw[1] == how
    assert saw[2] == "JobTimedOut"
    assert len(crowd.notes("cleaned")) == (2 if how == "has_a_group" else 0)
    assert worker.alive(), "a job that has ended leaves nothing that is not to be trusted"
    assert crowd.stop([worker]) == [0]


@both_loops
def test_a_late_job_in_a_thread_is_interrupted_there(crowd: Project) -> None:
    push(crowd, "Blocks", word="late", seconds=60)
    push(crowd, "Waits", seconds=60)
    worker = work(crowd, "--timeout", 3)
    crowd.wait_for_note("start", count=2)
    wait_for(lambda: len(crowd.failed()) == 2, "two that are late")
    assert {line[1:3] == ["late", "JobTimedOut"] for line in crowd.notes("saw")} == {True, False}
    assert crowd.stop([worker]) == [0]


@both_loops
@pytest.mark.parametrize("how", ["swallows", "is_in_c_code", "sleeps"])
def test_a_job_that_does_not_end_is_settled_without_its_handler(crowd: Project, how: str) -> None:
    push(crowd, "Waits", word="neighbour", seconds=4)
    push(crowd, "Blocks", word="neighbour in a thread", seconds=4)
    if how == "sleeps":
        push(crowd, "Sleeps")
    else:
        push(crowd, "Late", how=how)
    worker = work(crowd, "--grace", 1, slots=3)
    crowd.wait_for_note("start", how)
    push(crowd, "Waits", word="next")
    assert worker.wait() == 1
    assert "JobTimedOut" in crowd.failure().exception
    assert f"{'Sleeps' if how == 'sleeps' else 'Late'}" in worker.err
    assert "most recent call first" in worker.err, "the stacks of all threads"
    ends = [" ".join(line[1:-2]) for line in crowd.notes("end")]
    assert "neighbour in a thread" in ends
    assert ("neighbour" in ends) == (how != "is_in_c_code")
    left = 2 if how == "is_in_c_code" else 1  # given back, uncounted, and not taken
    assert crowd.sizes().ready == left
    jobs = crowd.queue.reserve(["default"]), crowd.queue.reserve(["default"])
    assert [job.attempts() for found in jobs for job in found] == [0] * left


@pytest.mark.slow
def test_a_job_that_keeps_the_interpreter_to_itself_ends_the_process(crowd: Project) -> None:
    crowd.configure('jobs = ["at_once"]')
    push(crowd, "Hogs")
    worker = work(crowd, "--grace", 1)
    assert worker.wait() == 1
    assert "in handle" in worker.err


def test_the_first_stop_signal_lets_jobs_end(crowd: Project) -> None:
    push(crowd, "Waits", seconds=2)
    push(crowd, "Blocks", seconds=2)
    worker = work(crowd)
    crowd.wait_for_note("start", count=2)
    worker.signal(signal.SIGTERM)
    crowd.wait_for_note("told")
    push(crowd, "Waits", word="next")
    assert worker.wait() == 0
    assert ended(crowd) == 2
    assert crowd.sizes().ready == 1
    assert not crowd.notes("saw")


@both_loops
def test_the_second_stop_signal_gives_all_back(crowd: Project) -> None:
    push(crowd, "Waits", seconds=60)
    push(crowd, "Blocks", seconds=60)
    worker = work(crowd)
    crowd.wait_for_note("start", count=2)
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert [line[2] for line in crowd.notes("saw")] == ["JobGivenBack"] * 2
    wait_for(lambda: crowd.sizes().ready == 2, "both to be ready")


@both_loops
def test_usr1_ends_all(crowd: Project) -> None:
    push(crowd, "Waits", seconds=60)
    push(crowd, "Blocks", seconds=60)
    worker = work(crowd)
    crowd.wait_for_note("start", count=2)
    worker.signal(signal.SIGUSR1)
    assert worker.wait() == 1
    assert [line[2] for line in crowd.notes("saw")] == ["JobInterrupted"] * 2
    assert len(crowd.failed()) == 2


@pytest.mark.not_on_beanstalkd("cannot be searched")
@pytest.mark.parametrize("kind", ["Waits", "Blocks"])
def test_one_of_several_is_cancelled(crowd: Project, kind: str) -> None:
    uuid = push(crowd, kind, word="this", seconds=60)
    push(crowd, "Waits", word="other", seconds=4)
    push(crowd, "Blocks", word="other", seconds=4)
    worker = work(crowd)
    crowd.wait_for_note("start", "this")
    asked = crowd.start("cancel", "--running", uuid).finished()
    assert asked.code == 0, asked.err
    wait_for(lambda: ended(crowd) == 3, "all three")
    assert [line[1:3] for line in crowd.notes("saw")] == [["this", "JobCancelled"]]
    empty(crowd)
    assert not crowd.failed()
    assert crowd.stop([worker]) == [0]


# -- neighbours -----------------------------------------------------------------------------------


@both_loops
def test_what_would_end_a_process_fails_its_job_alone(crowd: Project) -> None:
    push(crowd, "Waits", seconds=1)
    for how in ("exit", "interrupt", "group", "task"):
        push(crowd, "Leaves", how=how)
    push(crowd, "ExitsInThread")
    push(crowd, "Waits", seconds=1)
    worker = work(crowd)
    wait_for(lambda: len(crowd.failed()) == 5, "five failed jobs")
    wait_for(lambda: ended(crowd) == 2, "their neighbours")
    assert not crowd.notes("saw")
    assert crowd.stop([worker]) == [0]


def test_a_task_that_a_job_leaves_is_told_and_so_is_its_error(crowd: Project) -> None:
    push(crowd, "LeavesATask")
    push(crowd, "Waits", seconds=1)
    worker = work(crowd)
    wait_for(lambda: "nobody hears this" in worker.err, "the task's error")
    wait_for(lambda: ended(crowd) == 1, "its neighbour")
    assert "has ended and left tasks running: goes on" in worker.err
    assert crowd.stop([worker]) == [0]
    assert not crowd.failed()


def test_context_variables_are_the_jobs_own(crowd: Project) -> None:
    for _ in range(5):
        push(crowd, "Asks")
        push(crowd, "AsksInThread")
    worker = work(crowd, slots=3)
    wait_for(lambda: len(crowd.notes("context")) == 10, "all jobs")
    assert crowd.notes("context") == [["context", "nobody", "True", "True"]] * 10
    assert crowd.stop([worker]) == [0]


@both_loops
def test_a_blocked_loop_costs_nobody_its_lease_and_is_named(crowd: Project) -> None:
    crowd.configure(retry_after=2)
    for number in range(5):
        push(crowd, "Waits", word=str(number), seconds=1)
    push(crowd, "Computes", seconds=6)
    worker, other = work(crowd), work(crowd)
    wait_for(lambda: ended(crowd) >= 6, "all jobs", 60)
    empty(crowd)
    assert crowd.stop([worker, other]) == [0, 0]
    assert set(Counter(line[1] for line in crowd.notes("start")).values()) == {1}
    assert "has blocked the event loop for" in worker.err + other.err


def test_a_worker_lists_what_it_runs(crowd: Project) -> None:
    push(crowd, "Waits", seconds=60)
    push(crowd, "Blocks", seconds=60)
    worker = work(crowd, slots=7)

    def jobs() -> list[str]:
        return [job.name for entry in roster.listed(crowd.queue.store) for job in entry.jobs]

    wait_for(lambda: sorted(jobs()) == ["at_once.Blocks", "at_once.Waits"], "both to be listed")
    shown = crowd.start("workers").finished().out.splitlines()
    assert shown[1].split()[2:5] == ["running", "2", "5"]
    worker.signal(signal.SIGUSR1)
    assert worker.wait() == 1


# -- breakdowns -----------------------------------------------------------------------------------


@pytest.mark.every_backend
@pytest.mark.on_redis_in_ci
@pytest.mark.on_rabbitmq_in_ci
def test_a_killed_worker_loses_nothing_of_many(crowd: Project) -> None:
    crowd.configure(retry_after=2)
    for number in range(100):
        push(crowd, "Waits" if number % 2 else "Blocks", word=str(number), seconds=0.1)
    first = work(crowd, "--tries", 0, slots=20)
    wait_for(lambda: ended(crowd) >= 20, "some jobs")
    first.signal(signal.SIGKILL)
    first.wait()
    second = work(crowd, "--tries", 0, slots=20)
    wait_for(lambda: len({line[1] for line in crowd.notes("end")}) == 100, "all jobs", 60)
    empty(crowd)
    assert crowd.stop([second]) == [0]
    again = Counter(line[1] for line in crowd.notes("start"))
    assert sum(again.values()) - 100 <= 20, "only what ran may run twice"


@pytest.mark.on_redis_in_ci
def test_a_pool_settles_all_that_a_dead_worker_ran(crowd: Project) -> None:
    for number in range(6):
        push(crowd, "Waits" if number % 2 else "Blocks", word=str(number), seconds=1.5)
    pool = work(crowd, "--workers", 1, "--tries", 2, "--json", slots=10)
    crowd.wait_for_note("start", count=6)
    (entry,) = wait_for(lambda: roster.listed(crowd.queue.store), "the worker")
    began = time.monotonic()
    os.kill(entry.pid, signal.SIGKILL)
    wait_for(lambda: ended(crowd) == 6, "all jobs")
    assert time.monotonic() - began < 15
    assert pool.stop() == 0
    assert sorted(line[2] for line in crowd.notes("start")) == ["1"] * 6 + ["2"] * 6


def test_a_job_that_kills_its_worker_costs_those_that_had_not_begun_nothing(crowd: Project) -> None:
    if Capability.AHEAD not in crowd.queue.capabilities:
        pytest.skip("there the server counts reservations, and gives back by itself")
    crowd.configure('jobs = ["at_once"]')
    push(crowd, "Kills")
    for number in range(6):
        push(crowd, "Waits", word=str(number), seconds=0.1)
    pool = work(crowd, "--workers", 1, "--tries", 1, slots=10)
    wait_for(lambda: ended(crowd) == 6, "its neighbours")
    wait_for(lambda: len(crowd.failed()) == 1, "the one that kills to be failed")
    assert pool.stop() == 0
    assert sorted(line[2] for line in crowd.notes("start")) == ["1"] * 7
