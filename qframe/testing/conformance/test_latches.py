"""Latches: members that arrive once, and a message that is pushed when somebody should look."""

from __future__ import annotations

import time

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.facts import Latch, LatchCopy
from qframe.contracts.step import (
    Arrive,
    Close,
    Delete,
    Extend,
    Leave,
    Open,
    Outcome,
    Push,
    Result,
    Set,
)
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    needs,
    needs_lapse,
    push,
    started,
    tried,
)

THEN = Push(QUEUE, b"then")


@pytest.fixture(autouse=True)
def able(backend: Backend) -> None:
    needs(backend, Capability.FACTS)


def opened(backend: Backend, size: int, *, every: int = 0, ttl: float = 3600.0) -> None:
    apply(backend, None, Open("latch", THEN, every, ttl))
    apply(backend, None, Extend("latch", size))


def look(backend: Backend, labels: int = 0) -> Latch:
    latch = backend.latch("latch", labels)
    assert latch is not None
    return latch


def test_there_is_none_before_it_is_opened(backend: Backend) -> None:
    assert backend.latch("latch") is None
    apply(backend, None, Arrive("latch", 0), Close("latch"))
    assert backend.latch("latch") is None
    assert tried(backend, None, Extend("latch", 1)) == Result(Outcome.REFUSED, "latch")


def test_a_latch_has_no_members_at_first(backend: Backend) -> None:
    apply(backend, None, Open("latch", THEN))
    assert look(backend) == Latch(0, 0, 0, False, None, None, None)


def test_then_is_pushed_when_all_have_arrived_and_it_is_closed(
    backend: Backend, other: Backend
) -> None:
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Close("latch"))
    assert not drained(backend)
    before = time.time()
    apply(other, None, Arrive("latch", 1))
    assert drained(backend) == [b"then"]
    latch = look(other)
    assert (latch.size, latch.done, latch.failed, latch.closed) == (2, 2, 0, True)
    assert latch.completed_at == pytest.approx(before, abs=2)


def test_it_is_complete_when_it_is_closed_last(backend: Backend) -> None:
    opened(backend, 1)
    apply(backend, None, Arrive("latch", 0))
    assert look(backend).completed_at is None
    assert not drained(backend)
    apply(backend, None, Close("latch"))
    assert look(backend).completed_at is not None
    assert drained(backend) == [b"then"]


def test_a_latch_without_members_is_complete_when_it_is_closed(backend: Backend) -> None:
    apply(backend, None, Open("latch", THEN))
    apply(backend, None, Close("latch"))
    assert drained(backend) == [b"then"]


def test_a_member_arrives_once_however_often_it_is_said(backend: Backend) -> None:
    opened(backend, 3)
    apply(backend, None, Close("latch"))
    for _ in range(3):
        apply(backend, None, Arrive("latch", 1))
    assert look(backend).done == 1
    assert not drained(backend)


def test_said_again_by_the_member_that_made_it_due_it_is_due_again(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Close("latch"))
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Arrive("latch", 1))
    apply(backend, None, Arrive("latch", 1))
    assert drained(backend) == [b"then", b"then"]


def test_then_is_pushed_when_the_first_member_fails(bench: Bench, backend: Backend) -> None:
    opened(backend, 3)
    before = time.time()
    apply(backend, None, Arrive("latch", 2, failed=True, label="two"))
    assert drained(backend) == [b"then"]
    apply(backend, None, Arrive("latch", 1, failed=True, label="\u00e9"))
    assert not drained(backend)
    latch = look(backend, labels=10)
    assert (latch.done, latch.failed, latch.first_failed) == (0, 2, 2)
    assert latch.labels == ("\u00e9", "two")
    assert look(backend, labels=1).labels == ("\u00e9",)
    assert latch.failed_at == pytest.approx(before, abs=2)


def test_a_member_that_failed_may_be_done_later(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 0, failed=True, label="zero"))
    apply(backend, None, Arrive("latch", 0))
    latch = look(backend, labels=10)
    assert (latch.done, latch.failed, latch.labels, latch.first_failed) == (1, 0, (), 0)
    apply(backend, None, Arrive("latch", 0, failed=True))
    assert (look(backend).done, look(backend).failed) == (1, 0)


def test_those_that_failed_have_arrived(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Arrive("latch", 1, failed=True))
    apply(backend, None, Close("latch"))
    assert look(backend).completed_at is not None
    assert drained(backend) == [b"then", b"then"]


def test_a_member_may_leave_and_arrive_again(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Close("latch"))
    apply(backend, None, Arrive("latch", 0), Arrive("latch", 1))
    assert look(backend).completed_at is not None
    for _ in range(2):
        apply(backend, None, Leave("latch", 1))
    assert look(backend) == Latch(2, 1, 0, True, None, None, None)
    assert drained(backend) == [b"then"]
    apply(backend, None, Arrive("latch", 1, failed=True, label="one"))
    assert drained(backend) == [b"then"]
    latch = look(backend, labels=10)
    assert (latch.done, latch.failed, latch.first_failed, latch.labels) == (1, 1, 1, ("one",))
    assert latch.completed_at is not None


def test_one_that_has_failed_may_leave_and_the_next_failure_is_the_first(backend: Backend) -> None:
    opened(backend, 100)
    apply(backend, None, Arrive("latch", 70, failed=True, label="old"))
    apply(backend, None, Arrive("latch", 71, failed=True, label="other"))
    apply(backend, None, Leave("latch", 70))
    assert drained(backend) == [b"then"]
    assert look(backend, labels=10) == Latch(100, 0, 1, False, None, None, None, ("other",))
    apply(backend, None, Leave("latch", 71), Arrive("latch", 70, failed=True, label="new"))
    assert drained(backend) == [b"then"]
    latch = look(backend, labels=10)
    assert (latch.failed, latch.first_failed, latch.labels) == (1, 70, ("new",))
    apply(backend, None, Arrive("latch", 70), Leave("latch", 70))
    assert (look(backend).done, look(backend).failed) == (0, 0)


def test_one_that_has_not_arrived_does_not_leave(backend: Backend) -> None:
    apply(backend, None, Leave("latch", 0))
    assert backend.latch("latch") is None
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 1), Leave("latch", 0), Leave("latch", -1))
    apply(backend, None, Leave("latch", 2))
    assert look(backend) == Latch(2, 1, 0, False, None, None, None)


def test_then_is_pushed_at_every_so_many_that_are_done(backend: Backend) -> None:
    opened(backend, 6, every=2)
    pushed = []
    for member in range(5):
        apply(backend, None, Arrive("latch", member))
        pushed.append(len(drained(backend)))
    assert pushed == [0, 1, 0, 1, 0]


def test_a_number_that_no_member_has_is_ignored(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 2), Arrive("latch", -1), Arrive("latch", 5, failed=True))
    assert look(backend) == Latch(2, 0, 0, False, None, None, None)


def test_members_are_added_until_it_is_complete(backend: Backend) -> None:
    opened(backend, 1)
    apply(backend, None, Extend("latch", 2))
    apply(backend, None, Extend("latch", 1))
    assert look(backend).size == 2
    apply(backend, None, Close("latch"))
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Extend("latch", 3))
    assert look(backend).size == 3
    apply(backend, None, Arrive("latch", 1))
    apply(backend, None, Arrive("latch", 2))
    push(backend, b"before")
    result = tried(backend, None, Extend("latch", 4), Push(QUEUE, b"never"))
    assert result.outcome is Outcome.REFUSED
    assert result.key == "latch"
    assert drained(backend) == [b"then", b"before"]


def test_opened_again_it_stays_as_it_is(backend: Backend) -> None:
    opened(backend, 2)
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Open("latch", Push(QUEUE, b"other")))
    apply(backend, None, Arrive("latch", 1))
    apply(backend, None, Close("latch"))
    assert look(backend).done == 2
    assert drained(backend) == [b"then"]


def test_then_may_be_delayed_and_of_any_bytes(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Open("latch", Push("other", b"\x00\xff", bench.seconds(30))))
    apply(backend, None, Close("latch"))
    assert not drained(backend, "other")
    bench.pass_time(40)
    assert drained(backend, "other") == [b"\x00\xff"]


def test_then_is_handed_over_where_the_backend_shall_not_push_it(backend: Backend) -> None:
    needs(backend, Capability.JOINT)
    opened(backend, 1)
    apply(backend, None, Arrive("latch", 0, push=False))
    result = tried(backend, None, Close("latch", push=False))
    assert result == Result(Outcome.APPLIED, due=(THEN,))
    assert not drained(backend)


def test_a_latch_is_gone_after_its_time(bench: Bench, backend: Backend) -> None:
    opened(backend, 3, ttl=bench.seconds(30))
    bench.pass_time(25)
    apply(backend, None, Arrive("latch", 0))
    bench.pass_time(25)
    assert look(backend).done == 1
    bench.pass_time(10)
    assert backend.latch("latch") is None
    apply(backend, None, Arrive("latch", 1))
    assert tried(backend, None, Extend("latch", 5)).outcome is Outcome.REFUSED
    apply(backend, None, Open("latch", THEN))
    assert look(backend).size == 0


def test_the_arrival_and_the_end_of_a_job_are_one_step(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    needs_lapse(bench)
    opened(backend, 1)
    apply(backend, None, Close("latch"))
    push(backend, b"member")
    late = started(backend, lease=bench.seconds(60))
    bench.pass_time(70)
    job = started(other)
    assert tried(backend, late, Arrive("latch", 0, failed=True), Delete()).lost
    assert look(backend).failed == 0
    apply(other, job, Arrive("latch", 0), Set("key", "value"), Delete())
    assert drained(backend) == [b"then"]
    assert look(backend).done == 1


def test_latches_are_no_facts(backend: Backend) -> None:
    opened(backend, 1)
    apply(backend, None, Set("latch", "fact"))
    assert backend.read("latch") == ["fact"]
    assert backend.scan("") == [("latch", "fact")]
    assert look(backend).size == 1


def test_a_latch_may_have_many_members(backend: Backend) -> None:
    opened(backend, 2000)
    for start in range(0, 2000, 500):
        apply(backend, None, *(Arrive("latch", start + n) for n in range(500)))
    apply(backend, None, Close("latch"))
    assert look(backend).done == 2000
    assert drained(backend) == [b"then"]


def test_a_latch_is_copied_with_its_members(backend: Backend) -> None:
    opened = Open("latch", Push(QUEUE, b"then", 7.0, 3), every=5, ttl=1000.0)
    apply(backend, None, opened)
    apply(backend, None, Extend("latch", 100))
    arrivals = [Arrive("latch", number) for number in (0, 47, 48, 99)]
    failed = [Arrive("latch", number, failed=True, label=f"{number}:\u00e9") for number in (7, 3)]
    apply(backend, None, *arrivals, *failed)
    apply(backend, None, Arrive("latch", 7))
    copy = LatchCopy(opened, 100, closed=False, done=[0, 7, 47, 48, 99], failed={3: "3:\u00e9"})
    assert backend.copy_latch("latch") == copy
    apply(
        backend,
        None,
        Arrive("latch", 5, failed=True),
        Arrive("latch", 1, failed=True),
        Close("latch"),
    )
    closed = backend.copy_latch("latch")
    assert closed is not None
    assert (closed.closed, closed.failed) == (True, {3: "3:\u00e9", 5: "", 1: ""})
    assert backend.copy_latch("none") is None
