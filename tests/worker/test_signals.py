"""Signals, each sent to a real worker."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.marks import slow
from tests.support.process import Process, Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

STOPS = [signal.SIGTERM, *slow(signal.SIGINT, signal.SIGQUIT)]


def asleep(project: Project, worker: Process, *words: object) -> None:
    """Wait until a job has begun and sleeps.

    Python heeds a signal that comes in the moment before a sleep only when that has ended.
    """
    project.wait_for_note("start", *words)
    worker.rests()


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.on_redis_in_ci
def test_a_stop_ends_an_idle_worker_at_once(project: Project, number: signal.Signals) -> None:
    worker = project.idle()
    told = time.monotonic()
    worker.signal(number)
    assert worker.wait() == 0
    assert time.monotonic() - told < 10
    assert "stopped (interrupted): no jobs" in worker.out
    assert worker.err == ""


@pytest.mark.every_backend
@pytest.mark.parametrize("number", STOPS)
def test_a_stop_lets_the_running_job_finish(project: Project, number: signal.Signals) -> None:
    project.push("Sleep", {"seconds": 1})
    project.push("Note")
    worker = project.work()
    project.wait_for_note("start")
    worker.signal(number)
    assert worker.wait() == 0
    assert [line[0] for line in project.notes()] == ["start", "finally", "end"]
    assert project.sizes().ready == 1
    assert project.sizes().total == 1
    assert worker.err == ""


@pytest.mark.on_redis_in_ci
def test_after_a_stop_nothing_is_held(project: Project) -> None:
    """Many short jobs are held ahead; none of them stays reserved."""
    for number in range(300):
        project.push("Note", {"word": str(number)})
    project.push("Sleep", {"seconds": 0.5}, queue="high")
    for number in range(300):
        project.push("Note", {"word": str(300 + number)}, queue="high")
    worker = project.work("--queue", "high,default")
    project.wait_for_note("note", count=20)
    assert worker.stop() == 0
    ran = [line[1] for line in project.notes("note")]
    assert len(ran) == len(set(ran))
    for queue in ("default", "high"):
        assert project.sizes(queue).reserved == 0
    assert project.sizes("default").ready + project.sizes("high").ready + len(ran) >= 600
    project.drain("--queue", "high,default")
    assert sorted(int(line[1]) for line in project.notes("note")) == list(range(600))
    attempts = {line[2] for line in project.notes("note")}
    assert attempts == {"1"}


@pytest.mark.every_backend
def test_a_second_stop_gives_the_running_job_back_uncounted(project: Project) -> None:
    project.push("Sleep", {"seconds": 30, "word": "long"}, maxTries=1)
    worker = project.work()
    asleep(project, worker)
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert project.notes("finally") == [["finally", "long"]]
    assert project.notes("end") == []
    assert "GIVEN BACK" in worker.out
    assert "the worker was asked twice to stop" in worker.out
    assert (project.sizes().ready, project.sizes().reserved) == (1, 0)
    again = project.work()
    line = project.wait_for_note("start", count=2)
    assert line[2] == "1", "the attempt that was given back is not counted"
    again.end()


def test_a_third_stop_changes_nothing(project: Project) -> None:
    project.push("Sleep", {"seconds": 30})
    worker = project.work()
    project.wait_for_note("start")
    for _ in range(30):
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGQUIT)
    assert worker.wait() == 0
    assert (project.sizes().ready, project.sizes().reserved) == (1, 0)
    assert "Traceback" not in worker.err


@pytest.mark.every_backend
def test_usr1_ends_the_job_as_a_failure_and_the_worker_with_1(project: Project) -> None:
    uuid = project.push("Sleep", {"seconds": 30}, maxTries=2, backoff="0")
    for attempt in (1, 2):
        worker = project.work()
        asleep(project, worker, "sleep", attempt)
        worker.signal(signal.SIGUSR1)
        assert worker.wait() == 1
        assert "JobInterrupted: the worker got SIGUSR1" in worker.out
        assert "stopped (job interrupted)" in worker.out
        assert len(project.notes("finally")) == attempt
        assert project.sizes().ready == 2 - attempt
    record = project.failure()
    assert record.uuid == uuid
    assert record.attempts == 2
    assert "JobInterrupted" in record.exception
    assert [attempt.number for attempt in record.history.attempts] == [1, 2]
    assert project.empty()


def test_an_idle_worker_ignores_usr1(project: Project) -> None:
    worker = project.idle()
    for _ in range(5):
        worker.signal(signal.SIGUSR1)
        worker.signal(signal.SIGALRM)
        worker.signal(signal.SIGCONT)
        time.sleep(0.02)
    project.push("Note")
    project.wait_for_note("note")
    assert worker.stop() == 0
    assert "1 done" in worker.out
    assert worker.err == ""


@pytest.mark.on_redis_in_ci
def test_usr2_pauses_and_cont_resumes(project: Project) -> None:
    worker = project.idle()
    worker.signal(signal.SIGUSR2)
    wait_for(lambda: "paused" in worker.out, "the pause")
    project.push("Note", {"word": "meanwhile"})
    time.sleep(1.2)
    assert project.notes("note") == []
    assert project.sizes().ready == 1
    resumed = time.monotonic()
    worker.signal(signal.SIGCONT)
    project.wait_for_note("note", "meanwhile")
    assert time.monotonic() - resumed < 10
    assert worker.out.count("paused") == 1
    assert worker.out.count("resumed") == 1
    assert worker.stop() == 0


def test_usr2_lets_the_running_job_finish(project: Project) -> None:
    project.push("Sleep", {"seconds": 0.5})
    project.push("Note")
    worker = project.work()
    project.wait_for_note("start")
    worker.signal(signal.SIGUSR2)
    project.wait_for_note("end")
    wait_for(lambda: "paused" in worker.out, "the pause")
    wait_for(lambda: project.sizes().total == project.sizes().ready == 1, "one job, held by nobody")
    assert project.notes("note") == []
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_paused_worker_is_stopped_at_once(project: Project) -> None:
    worker = project.idle()
    worker.signal(signal.SIGUSR2)
    wait_for(lambda: "paused" in worker.out, "the pause")
    told = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - told < 10


@pytest.mark.on_redis_in_ci
def test_a_storm_of_signals_ends_in_a_legal_state(project: Project) -> None:
    for number in range(200):
        project.push("Note", {"word": str(number)}, maxTries=0)
    worker = project.idle("--queue", "other")
    worker.stop()
    worker = project.work()
    project.wait_for_note("note", count=5)
    for _ in range(15):
        for number in (signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH):
            worker.signal(number)
        time.sleep(0.01)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.sizes().reserved == 0
    assert "Traceback" not in worker.err
    project.drain()
    assert sorted(int(line[1]) for line in project.notes("note")) == list(range(200))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_come_while_the_process_leaves_change_nothing(
    project: Project, number: signal.Signals
) -> None:
    worker = project.idle()
    worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while worker.alive() and time.monotonic() < deadline:
        worker.signal(number)
        time.sleep(0.002)
    assert worker.wait() == 0
    assert worker.err == ""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_an_async_job_is_ended_and_its_finally_runs(
    project: Project, number: signal.Signals
) -> None:
    project.push("Later", {"seconds": 30}, maxTries=2)
    worker = project.work()
    asleep(project, worker, "later")
    if number is signal.SIGTERM:
        worker.ask_twice_to_stop()
    else:
        worker.signal(number)
    assert worker.wait() == (1 if number is signal.SIGUSR1 else 0)
    assert project.notes("finally") == [["finally", "later"]]
    assert project.sizes().ready == 1
    assert project.notes("succeeded") == []
