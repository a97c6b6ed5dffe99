"""What reserving and starting promise: leases, order, counted attempts."""

from __future__ import annotations

import os
import socket
import time

import pytest

from qframe.contracts import Capability
from qframe.exceptions import LeaseLost
from tests.conformance.drivers import RETRY_AFTER, Bench
from tests.conformance.steps import TICK, at, begin, body, drain, push, take, uuids

pytestmark = pytest.mark.needs(Capability.RESERVE)

held = pytest.mark.needs(Capability.AHEAD | Capability.SIZE)


def test_nothing_there_gives_nothing_at_once(bench: Bench) -> None:
    began = time.monotonic()
    assert bench.queue.reserve(["default", "emails"], 5) == []
    assert time.monotonic() - began < 5


def test_no_queues_give_nothing(bench: Bench) -> None:
    push(bench, "a")
    assert bench.queue.reserve([]) == []


def test_what_one_has_reserved_nobody_else_gets(bench: Bench) -> None:
    push(bench, "a")
    take(bench)
    assert not bench.queue.reserve(["default"])
    assert not bench.another().reserve(["default"])


def test_a_started_job_is_given_to_nobody_until_its_lease_ends(bench: Bench) -> None:
    push(bench, "a")
    begin(bench)
    bench.forward(RETRY_AFTER - 5)
    assert not bench.queue.reserve(["default"])
    bench.forward(10)
    assert take(bench).uuid == "a"


def test_an_expired_lease_leaves_the_attempt_counted(bench: Bench) -> None:
    push(bench, "a")
    assert begin(bench).attempts() == 1
    bench.forward(RETRY_AFTER + 5)
    assert begin(bench.another()).attempts() == 2


@held
class TestHeld:
    def test_a_held_job_has_no_attempt(self, bench: Bench) -> None:
        push(bench, "a")
        job = take(bench)
        assert job.attempts() == 0
        assert bench.queue.sizes() == at(reserved=1)
        assert bench.queue.start(job)
        assert job.attempts() == 1

    def test_a_held_job_comes_back_after_about_a_second_uncounted(self, bench: Bench) -> None:
        push(bench, "a")
        take(bench)
        bench.forward(0.4)
        assert not bench.another().reserve(["default"])
        bench.forward(1.2)
        job = take(bench.another())
        assert (job.uuid, job.attempts()) == ("a", 0)

    def test_held_jobs_come_back_to_the_head_of_the_queue_in_order(self, bench: Bench) -> None:
        push(bench, *"abcdef")
        assert uuids(bench.queue.reserve(["default"], 4)) == list("abcd")
        push(bench, "g")
        bench.forward(2)
        assert drain(bench.queue) == list("abcdefg")

    def test_a_job_whose_hold_ended_cannot_be_started_once_another_has_it(
        self, bench: Bench
    ) -> None:
        push(bench, "a")
        late = take(bench)
        bench.forward(2)
        other = take(bench.another())
        assert not bench.queue.start(late)
        assert late.is_settled
        with pytest.raises(LeaseLost):
            late.delete()
        assert other.attempts() == 0
        assert bench.queue.start(other)
        assert other.attempts() == 1
        other.delete()
        assert bench.queue.size() == 0

    def test_start_takes_the_full_lease(self, bench: Bench) -> None:
        push(bench, "a", "b")
        job, _ = bench.queue.reserve(["default"], 2)
        assert bench.queue.start(job)
        bench.forward(5)
        assert uuids(bench.another().reserve(["default"], 5)) == ["b"]

    def test_the_limit_is_kept(self, bench: Bench) -> None:
        push(bench, *"abcde")
        assert uuids(bench.queue.reserve(["default"], 2)) == ["a", "b"]
        assert uuids(bench.queue.reserve(["default"])) == ["c"]
        assert uuids(bench.queue.reserve(["default"], 10)) == ["d", "e"]

    def test_queues_are_taken_strictly_in_the_order_given(self, bench: Bench) -> None:
        push(bench, "low 1", "low 2", queue="low")
        push(bench, "high 1", "high 2", queue="high")
        push(bench, "other", queue="other")
        assert uuids(bench.queue.reserve(["high", "low"], 3)) == ["high 1", "high 2", "low 1"]
        push(bench, "high 3", queue="high")
        jobs = bench.queue.reserve(["high", "low"], 5)
        assert [(job.queue, job.uuid) for job in jobs] == [("high", "high 3"), ("low", "low 2")]

    @pytest.mark.needs(Capability.DELAY)
    def test_a_due_job_of_a_first_queue_comes_before_an_older_one_of_the_next(
        self, bench: Bench
    ) -> None:
        push(bench, "high", queue="high", delay=10)
        push(bench, "low", queue="low")
        bench.forward(11)
        assert take(bench, "high", "low").uuid == "high"

    def test_more_than_a_hundred_expired_leases_all_come_back(self, bench: Bench) -> None:
        for number in range(230):
            bench.queue.push_raw(body(str(number)))
        assert len(bench.queue.reserve(["default"], 300)) == 230
        assert not bench.queue.reserve(["default"])
        bench.forward(2)
        assert sorted(drain(bench.queue), key=int) == [str(number) for number in range(230)]


def test_strict_order_one_by_one(bench: Bench) -> None:
    push(bench, "low", queue="low")
    push(bench, "high", queue="high")
    assert [take(bench, "high", "low").uuid for _ in range(2)] == ["high", "low"]


def test_attempts_only_grow(bench: Bench) -> None:
    push(bench, "a")
    for number in range(1, 6):
        job = begin(bench)
        assert job.attempts() == number
        if number % 2:
            job.release()
        else:
            bench.forward(RETRY_AFTER + 1)


@pytest.mark.needs(Capability.HISTORY)
def test_the_history_says_where_each_attempt_ran_and_how_it_ended(bench: Bench) -> None:
    push(bench, "a")
    began = time.time()
    begin(bench).retry(0, "error", "ValueError: of the first")
    begin(bench)  # whose worker dies
    bench.forward(RETRY_AFTER + 1)
    begin(bench).release()
    history = take(bench).history
    first, second, third = history.attempts
    assert {(each.host, each.pid) for each in history.attempts} == {
        (socket.gethostname(), os.getpid())
    }
    assert [each.number for each in history.attempts] == [1, 2, 3]
    assert (first.ended, first.error) == ("error", "ValueError: of the first")
    assert (second.ended, second.error) == ("", "")
    assert third.ended == "released"
    assert (history.exceptions, history.releases) == (1, 1)
    assert began - 1 <= first.started_at <= time.time() + 1


@pytest.mark.needs(Capability.HISTORY)
def test_a_long_history_keeps_the_first_and_the_last_attempts(bench: Bench) -> None:
    push(bench, "a")
    for number in range(1, 16):
        begin(bench).retry(0, "error", f"error {number}")
    history = take(bench).history
    assert [each.number for each in history.attempts] == [1, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert history.exceptions == 15


class TestFinished:
    """The deletion that travels with the next reserve or start."""

    def test_reserve_deletes_it(self, bench: Bench) -> None:
        push(bench, "a", "b")
        first = begin(bench)
        (second,) = bench.queue.reserve(["default"], finished=first)
        assert second.uuid == "b"
        assert first.is_deleted
        assert first.is_settled
        bench.forward(RETRY_AFTER + 1)
        assert drain(bench.queue) == ["b"]

    def test_reserve_deletes_it_even_when_nothing_is_there(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        assert bench.queue.reserve(["default"], finished=job) == []
        assert job.is_deleted
        bench.forward(RETRY_AFTER + 1)
        assert bench.queue.reserve(["default"]) == []

    def test_start_deletes_it(self, bench: Bench) -> None:
        push(bench, "a", "b")
        first = begin(bench)
        second = take(bench)
        assert bench.queue.start(second, finished=first)
        assert first.is_deleted
        second.delete()
        bench.forward(RETRY_AFTER + 1)
        assert bench.queue.reserve(["default"]) == []

    def test_reserve_says_that_its_lease_was_lost(self, bench: Bench) -> None:
        push(bench, "a")
        late = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        other = begin(bench.another())
        assert bench.queue.reserve(["default"], finished=late) == []
        assert not late.is_deleted
        assert late.is_settled
        with pytest.raises(LeaseLost):
            late.delete()
        other.delete()

    def test_start_says_that_its_lease_was_lost_and_starts_all_the_same(self, bench: Bench) -> None:
        push(bench, "a")
        late = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        other = begin(bench.another())
        push(bench, "b")
        job = take(bench)
        assert bench.queue.start(job, finished=late)
        assert not late.is_deleted
        other.delete()
        job.delete()

    @held
    def test_a_lost_start_deletes_the_finished_job_all_the_same(self, bench: Bench) -> None:
        push(bench, "a", "b")
        done = begin(bench)
        late = take(bench)
        bench.forward(2)
        other = take(bench.another())
        assert not bench.queue.start(late, finished=done)
        assert done.is_deleted
        assert bench.queue.start(other)
        bench.forward(TICK)
        other.delete()
        assert bench.queue.size() == 0
