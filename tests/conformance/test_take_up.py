"""A job whose worker died is settled by another process, by its ticket."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from qframe.contracts import Capability, Job
from qframe.exceptions import LeaseLost
from tests.conformance.drivers import RETRY_AFTER, Bench
from tests.conformance.steps import at, begin, push, take

LATER: list[Callable[[Job], None]] = [
    lambda job: job.release(30),
    lambda job: job.retry(30, "timed out", "late"),
    lambda job: job.give_back(30),
    lambda job: job.fail(ValueError("no")),
]
AT_ONCE: list[Callable[[Job], None]] = [
    lambda job: job.delete(),
    lambda job: job.release(),
    lambda job: job.give_back(),
]


def ticket(job: Job) -> bytes:
    found = job.ticket()
    assert found is not None
    return found


@pytest.mark.needs(Capability.TAKE_UP)
class TestTakenUp:
    def taken_up(self, bench: Bench, job: Job) -> Job | None:
        return bench.another().take_up(ticket(job))

    def test_it_is_the_same_job_in_the_same_attempt(self, bench: Bench) -> None:
        push(bench, "a", queue="x")
        job = begin(bench, "x")
        other = self.taken_up(bench, job)
        assert other is not None
        assert (other.uuid, other.queue, other.attempts()) == ("a", "x", 1)
        assert other.raw_body == job.raw_body
        assert other.history.attempts[-1].pid == os.getpid()
        other.delete()
        assert bench.queue.sizes("x") == at()

    def test_recovered_it_comes_before_the_others(self, bench: Bench) -> None:
        push(bench, "a", "b", "c")
        job = begin(bench)
        other = self.taken_up(bench, job)
        assert other is not None
        other.recover("worker died", "killed by SIGKILL")
        assert bench.queue.sizes() == at(ready=3)
        again = begin(bench)
        assert (again.uuid, again.attempts()) == ("a", 2)
        first, _ = again.history.attempts
        assert (first.ended, first.error) == ("worker died", "killed by SIGKILL")
        with pytest.raises(LeaseLost):
            job.delete()
        assert bench.queue.sizes() == at(ready=2, reserved=1)

    def test_it_can_be_settled_in_every_way(self, bench: Bench) -> None:
        push(bench, "a", "b", "c", "d")
        for act in LATER:
            other = self.taken_up(bench, begin(bench))
            assert other is not None
            act(other)
        assert bench.queue.sizes() == at(delayed=3)
        bench.forward(31)
        found = bench.queue.reserve(["default"], 9)
        counted = sorted((job.uuid, job.attempts()) for job in found)
        assert counted == [("a", 1), ("b", 1), ("c", 0)]

    def test_one_that_was_renewed(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        before = ticket(job)
        bench.forward(RETRY_AFTER / 2)
        job.renew()
        bench.forward(RETRY_AFTER * 0.75)
        assert ticket(job) == before
        assert self.taken_up(bench, job) is not None

    def test_one_that_was_settled_is_not_there(self, bench: Bench) -> None:
        for act in AT_ONCE:
            push(bench, "a", queue="x")
            job = begin(bench, "x")
            name = ticket(job)
            act(job)
            assert bench.another().take_up(name) is None
            bench.queue.clear("x")

    def test_one_that_has_passed_to_another_is_not_there(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        other = bench.another()
        held = take(other)
        assert self.taken_up(bench, job) is None, "held"
        assert other.start(held)
        assert self.taken_up(bench, job) is None, "started"
        assert held.attempts() == 2
        held.delete()

    def test_of_two_with_the_same_bytes_it_is_the_right_one(self, bench: Bench) -> None:
        push(bench, "a", "a")
        one, two = begin(bench), begin(bench)
        other = self.taken_up(bench, two)
        assert other is not None
        other.delete()
        one.delete()
        assert bench.queue.sizes() == at()
