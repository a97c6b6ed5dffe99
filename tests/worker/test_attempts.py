"""Attempts, tries, backoff, and what ends a job."""

from __future__ import annotations

import itertools
import re
import signal
import socket
import time

import pytest

from tests.support.process import Project

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.mark.not_on_beanstalkd(
    "a lost connection gives back at once; a first start is not on record"
)
def test_one_try_whose_worker_was_killed_is_failed_not_run_twice(project: Project) -> None:
    project.configure(retry_after=1)
    uuid = project.push("Kill", maxTries=1)
    worker = project.work()
    assert worker.wait() == -signal.SIGKILL
    assert project.sizes().reserved == 1
    other = project.work("--max-jobs", 1)
    assert other.wait() == 0
    assert len(project.notes("start")) == 1
    record = project.failure()
    assert (record.uuid, record.attempts, record.queue) == (uuid, 1, "default")
    reason = record.exception.strip().splitlines()[-1]
    assert "MaxAttemptsExceeded" in reason
    assert f"on {socket.gethostname()}, pid {worker.pid}" in reason
    assert "never ended: its worker died" in reason
    (attempt,) = record.history.attempts
    assert (attempt.number, attempt.pid, attempt.ended) == (1, worker.pid, "")
    assert project.empty()


@pytest.mark.embedded_only
@pytest.mark.parametrize("arguments", [(), ("--concurrency", 2), ("--isolate",)])
def test_a_generator_that_an_async_decorator_hides_fails(
    project: Project, arguments: tuple[object, ...]
) -> None:
    project.write(
        "hidden.py",
        """
import functools
from jobs import Queueable, note
def deco(function):
    @functools.wraps(function)
    async def call(*args):
        return function(*args)
    return call
class Hidden(Queueable):
    tries = 1
    @deco
    def handle(self):
        yield
    def succeeded(self):
        note("succeeded")
""",
    )
    project.push("hidden.Hidden")
    project.drain(*arguments)
    assert "JobDefinitionError: Hidden.handle is a generator" in project.failure().exception
    assert project.notes() == []


@pytest.mark.every_backend
def test_three_tries_killed_twice_then_done(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("Kill", {"times": 2}, maxTries=3)
    for _ in range(2):
        assert project.work().wait() == -signal.SIGKILL
    killed = time.monotonic()
    assert project.work("--max-jobs", 1).wait() == 0
    assert time.monotonic() - killed < 20
    assert [line[2] for line in project.notes("start")] == ["1", "2", "3"]
    assert project.notes("end") == [["end", "kill", "3"]]
    assert project.failed() == []
    assert project.empty()


@pytest.mark.not_on_beanstalkd("a first start is not on record")
@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_failed_after_its_tries(project: Project) -> None:
    project.configure(retry_after=1)
    project.push("Kill", {"word": "poison"}, maxTries=3)
    pids = []
    for _ in range(3):
        worker = project.work()
        assert worker.wait() == -signal.SIGKILL
        pids.append(worker.pid)
    project.push("Note")
    assert project.work("--max-jobs", 2).wait() == 0
    record = project.failure()
    assert record.attempts == 3
    assert [attempt.pid for attempt in record.history.attempts] == pids
    for pid in pids:
        assert f"pid {pid}" in record.exception
    assert len(project.notes("note")) == 1


def test_leaving_without_a_word_is_no_success(project: Project) -> None:
    """`os._exit(0)` looks like a clean end: the lease brings the job back, its tries end it."""
    project.configure(retry_after=1)
    project.push("Exit", maxTries=2)
    for _ in range(2):
        assert project.work().wait() == 0
        assert project.sizes().total == 1
    assert project.work("--max-jobs", 1).wait() == 0
    assert len(project.notes("start")) == 2
    assert "started 2 times" in project.failure().exception
    assert "never ended" in project.failure().exception


def test_a_retried_job_succeeds_and_says_so_once(project: Project) -> None:
    project.push("Flaky", {"failures": 2}, maxTries=3)
    finished = project.drain()
    assert [line[0] for line in project.notes()] == ["start", "start", "start", "end", "succeeded"]
    assert finished.out.count("RETRY in 0 s  ValueError: not the") == 2
    assert "2 retried, 1 done" in finished.out
    assert project.failed() == []


def test_the_failure_tells_every_attempt(project: Project) -> None:
    project.push("Flaky", maxTries=3)
    finished = project.drain()
    assert "2 retried, 1 failed" in finished.out
    record = project.failure()
    assert record.exception.rstrip().endswith("ValueError: not the 3. time")
    assert "Traceback" in record.exception
    attempts = record.history.attempts
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert [attempt.error for attempt in attempts] == [
        f"ValueError: not the {n}. time" for n in (1, 2, 3)
    ]
    assert {attempt.host for attempt in attempts} == {socket.gethostname()}
    assert project.notes("failed") == [["failed", "flaky", "ValueError"]]
    assert project.notes("succeeded") == []


def _gaps(project: Project, name: str) -> list[float]:
    times = [float(line[-1]) for line in project.notes("start") if line[1] == name]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.not_on_beanstalkd("whole seconds")
def test_backoff_grows_along_its_sequence_and_stays_at_its_last(project: Project) -> None:
    project.push("Flaky", backoff="0.2,0.7", maxTries=4)
    finished = project.work("--max-jobs", 4).finished()
    assert finished.code == 0
    assert re.findall(r"RETRY in (\S+) s", finished.out) == ["0.2", "0.7", "0.7"]
    first, second, third = _gaps(project, "flaky")
    assert first >= 0.19
    assert second >= 0.69
    assert third >= 0.69


@pytest.mark.not_on_beanstalkd("whole seconds")
@pytest.mark.slow
def test_a_backoff_method_knows_attempt_and_error(project: Project) -> None:
    project.push("OwnBackoff", backoff="60")
    finished = project.work("--max-jobs", 4).finished()
    assert finished.code == 0
    assert project.notes("backoff") == [["backoff", str(n), "KeyError"] for n in (1, 2, 3)]
    assert re.findall(r"RETRY in (\S+) s", finished.out) == ["0.2", "0.6", "0"]
    first, second, _ = _gaps(project, "backoff")
    assert first >= 0.19
    assert second >= 0.59


@pytest.mark.slow
def test_a_backoff_method_that_raises_falls_back(project: Project) -> None:
    project.push("BadBackoff")
    worker = project.work("--max-jobs", 2, "--backoff", "0.1")
    assert worker.wait() == 0
    assert "no idea" in worker.err
    assert project.failure().attempts == 2


@pytest.mark.slow
def test_retry_until_in_the_past_lets_no_job_start(project: Project) -> None:
    project.push("Note", retryUntil=time.time() - 1)
    project.drain()
    assert project.notes("note") == []
    reason = project.failure().exception
    assert "may be tried until" in reason
    assert "started 0 times" in reason
    assert project.failure().attempts == 0


@pytest.mark.slow
def test_a_release_with_a_delay_waits(project: Project) -> None:
    project.push("Release", {"times": 1, "delay_seconds": 0.6}, maxTries=1)
    assert project.work("--max-jobs", 2).wait() == 0
    (gap,) = _gaps(project, "release")
    assert 0.59 <= gap < 20


@pytest.mark.slow
def test_an_error_after_a_release_is_only_reported(project: Project) -> None:
    project.push("Release", {"times": 1, "raise_after": True}, maxTries=1)
    finished = project.drain()
    assert project.notes("end") == [["end", "release", "2"]]
    assert "had settled itself and then raised" in finished.err
    assert "ValueError: after the release" in finished.err
    assert project.failed() == []


@pytest.mark.parametrize(
    ("how", "error", "last"),
    [
        ("text", "QframeError", "no use"),
        ("error", "ValueError", "no use"),
        ("none", "JobFailedByHand", "failed itself"),
    ],
)
@pytest.mark.slow
def test_fail_by_hand_whatever_tries_are_left(
    project: Project, how: str, error: str, last: str
) -> None:
    project.push("FailByHand", {"how": how})
    finished = project.drain()
    assert project.notes() == [["start", "by", "hand", "1"], ["failed", error]]
    record = project.failure()
    assert record.exception.rstrip().endswith(last)
    assert record.attempts == 1
    assert "FAIL" in finished.out
    assert project.empty()


@pytest.mark.parametrize("then_raise", [False, True])
@pytest.mark.slow
def test_delete_by_hand_is_a_success(project: Project, then_raise: bool) -> None:
    project.push("DeleteByHand", {"then_raise": then_raise}, maxTries=5)
    finished = project.drain()
    assert len(project.notes("start")) == 1
    assert project.empty()
    assert project.failed() == []
    assert ("after the delete" in finished.err) == then_raise
    assert "1 done" in finished.out


@pytest.mark.parametrize("in_set_up", [False, True])
@pytest.mark.slow
def test_dont_handle_ends_a_job_as_skipped(project: Project, in_set_up: bool) -> None:
    project.push("Skip", {"in_set_up": in_set_up}, maxTries=5)
    finished = project.drain()
    assert project.notes() == [["tear_down"]]
    assert "SKIPPED  not" in finished.out
    assert "1 skipped" in finished.out
    assert project.empty()
    assert project.failed() == []


@pytest.mark.slow
def test_a_job_that_started_in_time_does_not_expire(project: Project) -> None:
    worker = project.idle("--max-jobs", 2)
    project.push("Flaky", {"failures": 1}, maxTries=2, backoff="2.2", expiresAt=time.time() + 2)
    project.wait_for_note("end", "flaky", 2)
    assert worker.wait() == 0


def test_burying_by_hand_keeps_the_job_in_its_queue(project: Project) -> None:
    project.write(
        "bury.py",
        "from jobs import Queueable, note\n"
        "class Bury(Queueable):\n"
        "    def handle(self):\n"
        "        note('start', self.attempts)\n"
        "        if self.attempts == 1:\n"
        "            self.job.bury()\n",
    )
    project.push("bury.Bury", maxTries=0)
    finished = project.drain()
    assert "1 done" in finished.out
    assert "LOST" not in finished.out
    assert project.sizes().buried == 1
    assert project.queue.kick() == 1
    project.drain()
    assert len(project.notes("start")) == 2
    assert project.empty()


# -- hooks --------------------------------------------------------------------------------------

ORDERS = [
    ("", ["set_up", "handle", "tear_down", "succeeded"], None),
    ("set_up", ["set_up", "tear_down", "failed"], "ValueError: in set_up"),
    ("handle", ["set_up", "handle", "tear_down", "failed"], "ValueError: in handle"),
    ("tear_down", ["set_up", "handle", "tear_down", "failed"], "ValueError: in tear_down"),
    ("succeeded", ["set_up", "handle", "tear_down", "succeeded"], None),
]


@pytest.mark.parametrize(("raise_in", "order", "error"), ORDERS)
@pytest.mark.slow
def test_hooks_are_called_in_order_and_harm_nothing(
    project: Project, raise_in: str, order: list[str], error: str | None
) -> None:
    project.push("Hooks", {"raise_in": raise_in})
    finished = project.drain()
    assert [line[0] for line in project.notes()] == order
    assert project.empty()
    if error is None:
        assert project.failed() == []
        assert "1 done" in finished.out
    else:
        assert project.failure().exception.rstrip().endswith(error)
    if raise_in == "handle":
        assert "in failed" in finished.err
    if raise_in == "succeeded":
        assert "in succeeded" in finished.err


def test_async_hooks(project: Project) -> None:
    project.push("Later", {"seconds": 0.1})
    project.drain()
    assert [line[0] for line in project.notes()] == [
        "set_up", "start", "finally", "end", "succeeded",
    ]  # fmt: skip


KINDS = ["SystemExit", "sys.exit", "KeyboardInterrupt", "GeneratorExit", "StopIteration"]
KINDS += ["RecursionError", "MemoryError", "Silent"]


def test_whatever_a_job_raises_is_a_failure(project: Project) -> None:
    for kind in KINDS:
        project.push("Raise", {"kind": kind})
    project.push("Later", {"exits": True})
    project.push("Later")
    project.push("Note")
    finished = project.drain()
    assert project.notes("succeeded") == [["succeeded"]], "of the last async job alone"
    assert len(project.notes("note")) == 1
    assert len(project.failed()) == len(KINDS) + 1
    for kind, record in zip(KINDS, project.failed(), strict=False):
        name = {"sys.exit": "SystemExit", "Silent": "_Silent"}.get(kind, kind)
        assert name in record.exception
        assert ["failed", kind, name] in project.notes("failed")
    assert f"{len(KINDS) + 1} failed, 2 done" in finished.out
    assert project.empty()


def test_functions_run(project: Project) -> None:
    project.push("add", {"a": 1, "b": 2})
    project.drain()
    assert project.notes() == [["add", "3"]]


def test_dispatched_by_code_and_retried_by_command(project: Project) -> None:
    """The whole way: a real dispatch, a failure, `qframe retry`, success."""
    told = project.program(
        "from jobs import Flaky\nprint(Flaky.dispatch(failures=0, word='x').send())\n"
        "print(Flaky.dispatch(word='y').on_queue('q').send())\n"
    )
    assert told.code == 0, told.err
    _, failing = told.out.split()
    project.drain("--queue", "default,q")
    assert project.failure().uuid == failing
    assert project.qframe("retry", failing).code == 0
    assert project.failed() == []
    project.drain("--queue", "q")
    assert [line[2] for line in project.notes("start")] == ["1", "1", "1"]
