"""Starts that are told without waiting, whatever becomes of the connection and of the scripts."""

from __future__ import annotations

import threading

import pytest

from qframe.contracts.step import (
    Add,
    Arrive,
    Close,
    Delete,
    Extend,
    Open,
    Push,
    Raise,
    Release,
    Renew,
    Reservation,
    Result,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnavailable
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

QUEUE = "q"


def _held(backend: RedisBackend, count: int = 1) -> list[Reservation]:
    """Hold messages for long: a start is told as long as a third of it has not passed."""
    backend.timing.hold = 60
    backend.apply(*(Step(None, Push(QUEUE, b"%d" % n)) for n in range(count)))
    jobs, _ = backend.reserve([QUEUE], count)
    assert len(jobs) == count
    return jobs


def _tell(backend: RedisBackend, *steps: Step) -> list[Result]:
    heard: list[Result] = []
    backend.apply_async(steps, heard.extend)
    return heard


def _attempts(backend: RedisBackend, job: Reservation) -> int:
    """How often the message was started, as the next one sees who reserves it."""
    backend.apply(job.release())
    (again,), _ = backend.reserve([QUEUE])
    return again.attempts


def test_it_is_not_waited_for(server: RedisServer, proxy: Proxy, behind: RedisBackend) -> None:
    (job,) = _held(behind)
    proxy.switch(Mode.BLACKHOLE)
    heard = _tell(behind, Step(job, Start(60)))
    assert heard == []
    assert job.started
    assert job.attempts == 1
    proxy.switch(Mode.PASS)
    behind.sizes(QUEUE)
    assert heard[0].applied


@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_what_was_lost_with_its_connection_is_said_again_and_counts_once(
    mode: Mode, proxy: Proxy, behind: RedisBackend
) -> None:
    first, second = _held(behind, 2)
    assert behind.apply(Step(first, Start(60)))[0].applied
    proxy.switch(mode, times=1)
    heard = _tell(behind, Step(first, Delete()), Step(second, Start(60)))
    assert behind.sizes(QUEUE).reserved == 1
    assert [result.of_end(unanswered=False).applied for result in heard] == [True, True]
    assert _attempts(behind, second) == 1


@pytest.mark.parametrize("mode", [Mode.PASS, Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_what_is_changed_besides_is_changed_once(
    mode: Mode, proxy: Proxy, behind: RedisBackend
) -> None:
    first, second = _held(behind, 2)
    behind.apply(Step(first, Start(60)), Step(None, Open("l", Push("then", b"look", 5))))
    behind.apply(Step(None, Extend("l", 1), Close("l"), Set("lock", "a")))
    proxy.switch(mode, times=1)
    end = Arrive("l", 0), Unset("lock", "a"), Raise("status", 2, "done", 60), Add("n", 1), Delete()
    heard = _tell(
        behind, Step(first, *end), Step(second, Set("at", "b", 60), Add("n", 10), Start(60))
    )
    assert behind.read("lock", "status", "at", "n") == [None, "done", "b", "11"]
    assert behind.sizes("then").delayed == 1
    assert behind.sizes(QUEUE).total == 1
    assert [result.of_end(unanswered=False).applied for result in heard] == [True, True]


def test_one_whose_lease_was_lost_changes_nothing(backend: RedisBackend) -> None:
    first, second = _held(backend, 2)
    backend.apply(Step(first, Start(60)))
    backend.apply(Step(first, Release()), Step(second, Release()))
    for job in (first, second):
        job.sure_until = backend.clock() + 1
    heard = _tell(backend, Step(first, Add("n", 1), Delete()), Step(second, Add("n", 1), Start(60)))
    assert backend.read("n") == [None]
    assert [result.lost for result in heard] == [True, True]
    assert backend.sizes(QUEUE).ready == 2


def test_a_server_that_forgot_its_scripts_does_all_in_order(
    server: RedisServer, backend: RedisBackend
) -> None:
    jobs = _held(backend, 3)
    heard = _tell(backend, Step(jobs[0], Start(60)))
    server.command("SCRIPT", "FLUSH")
    heard += _tell(backend, Step(jobs[0], Delete()), Step(jobs[1], Start(60)))
    heard2 = _tell(backend, Step(jobs[1], Delete()), Step(jobs[2], Start(60)))
    assert backend.sizes(QUEUE).total == 1
    assert all(result.applied for result in heard + heard2)
    server.command("SCRIPT", "FLUSH")
    assert backend.apply(Step(jobs[2], Delete()), Step(None, Push(QUEUE, b"x")))[0].applied
    server.command("SCRIPT", "FLUSH")
    assert len(backend.reserve([QUEUE])[0]) == 1


def test_one_that_was_not_done_is_taken_back(backend: RedisBackend) -> None:
    (job,) = _held(backend)
    backend.apply(Step(job, Release()))
    job.sure_until = backend.clock() + 1
    heard: list[Result] = []
    backend.apply_async([Step(job, Start(60))], heard.extend)
    backend.sizes(QUEUE)
    assert heard[0].lost
    assert not job.started
    assert job.attempts == 0


def test_without_certainty_it_is_waited_for(backend: RedisBackend) -> None:
    (job,) = _held(backend)
    job.sure_until = 0.0
    assert _tell(backend, Step(job, Start(60)))[0].applied


def test_one_that_cannot_be_said_is_taken_back(proxy: Proxy, behind: RedisBackend) -> None:
    (job,) = _held(behind)
    behind.close()
    proxy.switch(Mode.CUT)
    with pytest.raises(BackendUnavailable):
        _tell(behind, Step(job, Start(60)))
    assert not job.started
    proxy.switch(Mode.PASS)
    assert behind.apply(Step(job, Start(60)))[0].applied


def test_another_thread_that_renews_says_the_start_first(
    server: RedisServer, proxy: Proxy, behind: RedisBackend
) -> None:
    """What was told is on its way still, on a connection that hangs."""
    first, job = _held(behind, 2)
    behind.apply(Step(first, Start(60)))
    renewed: list[Result] = []
    elsewhere = threading.Thread(target=lambda: renewed.extend(behind.apply(Step(job, Renew(60)))))
    proxy.switch(Mode.CUT_REQUEST, only=b"start", times=1)
    heard = _tell(behind, Step(first, Delete()), Step(job, Start(60)))
    elsewhere.start()
    elsewhere.join()
    assert renewed[0].applied
    behind.sizes(QUEUE)
    assert [result.of_end(unanswered=False).applied for result in heard] == [True, True]
    assert _attempts(behind, job) == 1
