"""Timeouts: the soft stage raises in the job, the hard stage ends its process."""

from __future__ import annotations

import random
import socket
import time

import pytest

from tests.support.marks import slow
from tests.support.process import Project

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.mark.every_backend
@pytest.mark.parametrize("timeout", [2, *slow(1.75)])
def test_the_soft_stage_runs_finally_and_the_worker_exits_with_1(
    project: Project, timeout: float
) -> None:
    uuid = project.push("Sleep", {"seconds": 30}, timeout=timeout)
    worker = project.work()
    project.wait_for_note("start")
    began = time.monotonic()
    assert worker.wait() == 1
    assert timeout - 1 < time.monotonic() - began < timeout + 10, "the note was read a bit later"
    assert project.notes("finally") == [["finally", "sleep"]]
    assert project.notes("end") == []
    assert f"FAIL  JobTimedOut: ran longer than its timeout of {timeout:g} s" in worker.out
    assert "stopped (timed out): 1 failed" in worker.out
    assert worker.err == ""
    record = project.failure()
    assert record.uuid == uuid
    assert record.attempts == 1
    assert "JobTimedOut" in record.exception
    assert project.empty()


@pytest.mark.slow
def test_except_exception_does_not_swallow_it(project: Project) -> None:
    project.push("Stubborn", timeout=1.5)
    worker = project.work()
    assert worker.wait() == 1
    assert project.notes("swallowed") == []
    assert project.notes("end") == []
    assert "JobTimedOut" in project.failure().exception


@pytest.mark.slow
def test_it_is_released_with_its_backoff(project: Project) -> None:
    project.push("Sleep", {"seconds": 30}, timeout=0.3, maxTries=2, backoff="60")
    worker = project.work()
    assert worker.wait() == 1
    assert "RETRY in 60 s  JobTimedOut" in worker.out
    sizes = project.sizes()
    assert (sizes.ready, sizes.delayed, sizes.reserved) == (0, 1, 0)


@pytest.mark.slow
def test_the_worker_option_is_for_jobs_that_say_nothing(project: Project) -> None:
    project.push("Sleep", {"seconds": 0.6, "word": "own"}, timeout=5)
    project.push("Sleep", {"seconds": 30, "word": "none"})
    worker = project.work("--timeout", 0.3)
    assert worker.wait() == 1
    assert [line[1] for line in project.notes("end")] == ["own"]
    assert "Sleep" in project.failure().name


@pytest.mark.slow
def test_without_a_timeout_a_job_may_run(project: Project) -> None:
    project.push("Sleep", {"seconds": 0.6}, timeout=0)
    project.push("Sleep", {"seconds": 0.6})
    project.drain("--timeout", 0)
    assert len(project.notes("end")) == 2


@pytest.mark.slow
def test_fail_on_timeout_fails_at_the_first(project: Project) -> None:
    project.push("FailsOnTimeout")
    worker = project.work()
    assert worker.wait() == 1
    assert project.notes() == [["start", "fot", "1"], ["failed", "JobTimedOut"]]
    assert project.failure().attempts == 1


def test_what_takes_no_more_than_its_timeout_is_left_alone(project: Project) -> None:
    """The alarm of one job never reaches the next, nor the pause between two."""
    for _ in range(3):
        project.push("Sleep", {"seconds": 0.2}, timeout=1.5)
        project.push("Note", timeout=0)
    worker = project.idle("--grace", 0.5)
    project.wait_for_note("end", count=3)
    project.wait_for_note("note", count=3)
    time.sleep(2)  # longer than the timeout of the last one
    assert worker.alive()
    assert worker.stop() == 0
    assert "6 done" in worker.out
    assert project.empty()


def test_an_async_job_times_out_and_its_finally_runs(project: Project) -> None:
    project.push("Later", {"seconds": 30}, timeout=1)
    worker = project.work()
    assert worker.wait() == 1
    assert project.notes("finally") == [["finally", "later"]]
    assert project.notes("end") == []
    assert "JobTimedOut" in project.failure().exception
    assert "never awaited" not in worker.err


def test_a_job_that_swallows_its_end_was_not_done(project: Project) -> None:
    project.push("SwallowsOnce", timeout=1.5)
    worker = project.work()
    assert worker.wait() == 1
    assert project.notes("succeeded") == []
    assert project.notes("failed") == [["failed", "JobTimedOut"]]
    assert "JobTimedOut" in project.failure().exception


def test_a_job_that_swallows_everything_is_ended_by_the_hard_stage(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("Deaf", timeout=1.5, maxTries=1)
    worker = project.work("--grace", 1.5)
    assert worker.wait() == 1
    assert len(project.notes("swallowed")) == 1
    assert "jobs.py" in worker.err
    assert "in handle" in worker.err
    project.work("--max-jobs", 1).wait()
    assert "MaxAttemptsExceeded" in project.failure().exception


def test_a_failed_hook_that_hangs_ends_the_worker_not_the_record(project: Project) -> None:
    project.push("HangsInFailed", maxTries=1)
    worker = project.work("--timeout", 1.5, "--grace", 1.5)
    assert worker.wait() == 1
    assert project.notes("failed") == [["failed", "ValueError"]]
    assert "ValueError: no" in project.failure().exception
    assert project.sizes().total == 0


@pytest.mark.not_on_beanstalkd(
    "a lost connection gives back at once; a first start is not on record"
)
@pytest.mark.every_backend
def test_a_job_stuck_in_c_is_ended_and_fails_with_a_reason(project: Project) -> None:
    project.configure(retry_after=1)
    uuid = project.push("StuckInC", {"computes": True}, timeout=2, maxTries=1)
    worker = project.work("--grace", 0.5)
    project.wait_for_note("start", "stuck")
    began = time.monotonic()
    assert worker.wait() == 1
    assert 0.5 < time.monotonic() - began < 30
    assert "in handle" in worker.err, "every thread's stack is on stderr"
    assert "Timeout" in worker.err
    other = project.work("--max-jobs", 1)
    assert other.wait() == 0
    record = project.failure()
    assert record.uuid == uuid
    assert record.attempts == 1
    reason = record.exception.strip().splitlines()[-1]
    assert "may be started once and was started once" in reason
    assert socket.gethostname() in reason
    assert f"pid {worker.pid}" in reason
    assert "never ended" in reason
    assert len(project.notes("start")) == 1
    assert project.empty()


@pytest.mark.slow
def test_a_job_stuck_in_c_runs_again_when_it_has_tries_left(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("StuckInC", {"always": False}, timeout=1.5, maxTries=2)
    worker = project.work("--grace", 0.3)
    assert worker.wait() == 1
    other = project.work("--max-jobs", 1)
    assert other.wait() == 0
    assert project.notes("end") == [["end", "stuck", "2"]]
    assert project.failed() == []


def test_the_hard_stage_covers_jobs_in_quick_succession(project: Project) -> None:
    """The watchdog is moved about once a second only; the last job is still ended by it."""
    for number in range(200):
        project.push("Note", {"word": str(number)}, timeout=1.5)
    project.push("StuckInC", timeout=1.5)
    worker = project.work("--grace", 0.3)
    project.wait_for_note("start", "stuck")
    assert worker.wait() == 1
    assert len(project.notes("note")) == 200


@pytest.mark.parametrize("dropped", [False, *slow(True)])
@pytest.mark.on_redis_in_ci
def test_an_alarm_during_a_driver_call_leaves_the_connection_whole(
    project: Project, dropped: bool
) -> None:
    """A job that dispatches in a tight loop is ended at a random moment, again and again.

    Whatever was being sent is there or not, once; what was sent is there; the job itself is
    settled by the same connection.
    """
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    rounds = 3
    project.push("Dispatcher", {"dropped": dropped}, maxTries=rounds)
    for attempt in range(1, rounds + 1):
        timeout = chance.uniform(0.5, 1.2)
        worker = project.work("--queue", "default", "--timeout", timeout, "--grace", 60)
        assert worker.wait() == 1, worker.err
        assert "Traceback" not in worker.err
        assert len(project.notes("start")) <= attempt  # the import counts, too
        assert project.sizes().reserved == 0
    assert "JobTimedOut" in project.failure().exception
    assert project.failure().attempts == rounds
    sending = {line[1] for line in project.notes("sending")}
    sent = {line[1] for line in project.notes("sent")}
    assert sent
    project.drain("--queue", "made")
    made = [line[1] for line in project.notes("note")]
    assert len(made) == len(set(made)), "nothing was sent twice"
    assert sent <= set(made) <= sending


@pytest.mark.parametrize("number", [0, *slow(1, 2)])
@pytest.mark.on_redis_in_ci
def test_usr1_during_a_driver_call_leaves_the_connection_whole(
    project: Project, number: int
) -> None:
    import signal

    project.push("Dispatcher", {"dropped": number % 2 == 0}, maxTries=1)
    worker = project.work("--timeout", 60, "--grace", 60)
    project.wait_for_note("sent", count=20 + 7 * number)
    worker.signal(signal.SIGUSR1)
    assert worker.wait() == 1
    assert "Traceback" not in worker.err
    assert "JobInterrupted" in project.failure().exception
    sent = {line[1] for line in project.notes("sent")}
    assert sent <= set(_made(project))
    assert project.sizes().reserved == 0


def _made(project: Project) -> list[str]:
    project.drain("--queue", "made")
    return [line[1] for line in project.notes("note")]
