"""Priorities: the order of levels, what keeps a priority, and that nothing waits for ever."""

from __future__ import annotations

from random import Random

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    Arrive,
    Bury,
    Close,
    Delete,
    Extend,
    Open,
    Push,
    Release,
    Start,
    Step,
)
from qframe.drivers.levels import AGING, FIRST, MIDDLE, behind, level_of
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    needs,
    needs_lapse,
    needs_skew,
    push,
    reserve,
    started,
)


@pytest.fixture(autouse=True)
def able(backend: Backend) -> None:
    needs(backend, Capability.PRIORITY)


def push_at(
    backend: Backend, *priorities: int | None, delay: float = 0.0, queue: str = QUEUE
) -> None:
    """Push messages that hold their priority, one after another."""
    for each in priorities:
        apply(backend, None, Push(queue, b"%d" % (1024 if each is None else each), delay, each))


def priorities(backend: Backend, *queues: str) -> list[int]:
    return [int(raw) for raw in drained(backend, *queues)]


def test_they_come_level_by_level(backend: Backend, other: Backend) -> None:
    push_at(other, 5000, None, 5, 0, 1023, 1025, 100)
    assert priorities(backend) == [0, 5, 100, 1023, 1024, 1025, 5000]


def test_each_level_comes_before_the_next(backend: Backend) -> None:
    levels = [*FIRST, 2**32 - 1]
    for each in reversed(levels):
        push_at(backend, each)
    found = priorities(backend)
    assert [level_of(each) for each in found] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]


def test_what_no_priority_was_given_is_in_the_middle(backend: Backend) -> None:
    push(backend, b"1")
    apply(backend, None, Push(QUEUE, b"2", priority=1024))
    push(backend, b"3")
    assert drained(backend) == [b"1", b"2", b"3"]


def test_messages_of_a_level_come_in_the_order_they_were_pushed(backend: Backend) -> None:
    for first in range(0, 30, 10):
        apply(
            backend, None,
            *(Push(QUEUE, b"%d" % n, priority=n % 2) for n in range(first, first + 10)),
        )  # fmt: skip
    found = priorities(backend)
    assert found == [*range(0, 30, 2), *range(1, 30, 2)]


def test_the_same_bytes_pushed_twice_are_two_messages(backend: Backend) -> None:
    apply(backend, None, *[Push(QUEUE, b"same", priority=0)] * 2)
    apply(backend, None, Push(QUEUE, b"same", priority=0))
    first = reserve(backend)
    apply(backend, first, Start(60))
    apply(backend, first, Delete())
    assert drained(backend) == [b"same"] * 2


@pytest.mark.parametrize("priority", [0, 5000])
def test_a_message_alone_need_not_wait(backend: Backend, other: Backend, priority: int) -> None:
    assert backend.reserve([QUEUE]) == ([], [])
    push_at(other, priority)
    assert priorities(backend) == [priority]


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_many_are_reserved_at_once_in_order(backend: Backend, other: Backend, limit: int) -> None:
    needs(backend, Capability.AHEAD)
    for each in (5000, None, 0) * 5:
        push_at(other, each)
    found: list[bytes] = []
    while jobs := backend.reserve([QUEUE], limit)[0]:
        found += [job.raw_body for job in jobs]
        backend.apply(*(Step(job, Start(60)) for job in jobs))
    assert found == [b"0"] * 5 + [b"1024"] * 5 + [b"5000"] * 5


def test_one_that_comes_later_is_next_however_many_wait(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.AHEAD)
    apply(backend, None, *(Push(QUEUE, b"plain") for _ in range(300)))
    assert len(backend.reserve([QUEUE], 5)[0]) == 5
    push_at(other, 0)
    jobs, _ = backend.reserve([QUEUE], 5)
    assert [job.raw_body for job in jobs] == [b"0", *[b"plain"] * 4]


def test_a_queue_before_another_is_emptied_first(backend: Backend) -> None:
    push_at(backend, 0, queue="low")
    push_at(backend, 5000, queue="high")
    assert priorities(backend, "high", "low") == [5000, 0]


def test_a_release_keeps_the_priority(backend: Backend) -> None:
    push_at(backend, 0)
    apply(backend, started(backend), Release())
    push_at(backend, None, 5)
    job = reserve(backend)
    assert (job.raw_body, job.attempts) == (b"0", 1)
    apply(backend, job, Release())
    assert priorities(backend) == [0, 5, 1024]


def test_a_release_may_give_another_priority(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    push(backend, b"1", b"2", b"3")
    apply(backend, started(backend), Release(priority=5000))
    apply(backend, started(backend), Release(priority=0))
    job = reserve(backend)
    assert (job.raw_body, job.attempts) == (b"2", 1)
    apply(backend, job, Start(60, b"noted"))
    apply(backend, job, Release(priority=1024))
    assert drained(backend) == [b"3", b"2", b"1"]


def test_one_that_was_only_held_keeps_its_priority_and_its_count(backend: Backend) -> None:
    push_at(backend, 0, 5000)
    apply(backend, reserve(backend), Release(counted=False))
    job = started(backend)
    assert (job.raw_body, job.attempts) == (b"0", 1)
    apply(backend, job, Release(counted=False, priority=20_000))
    job = started(backend)
    assert job.raw_body == b"5000"
    apply(backend, job, Delete())
    assert reserve(backend).attempts == 0


def test_notes_stay_with_a_message_of_another_priority(backend: Backend) -> None:
    needs(backend, Capability.NOTES)
    push(backend, b'{"uuid": "x", "attempts": 0}')
    for number, priority in enumerate([0, None, 5000, 1024, 7]):
        job = reserve(backend)
        assert (job.attempts, job.notes) == (number, b"%d" % number if number else b"")
        apply(backend, job, Start(60, b"%d" % (number + 1)))
        apply(backend, job, Release(priority=priority))
    assert reserve(backend).raw_body == b'{"uuid": "x", "attempts": 0}'


def test_a_release_to_the_front_comes_before_all(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    push_at(backend, 0, 0, 5)
    first, second = started(backend), started(backend)
    apply(backend, second, Release(front=True))
    apply(backend, first, Release(front=True))
    push_at(backend, 0)
    assert reserve(backend).id == first.id or reserve(backend).id == second.id


def test_one_that_is_delayed_is_due_before_it_is_first(bench: Bench, backend: Backend) -> None:
    push_at(backend, 0, 5000, delay=bench.seconds(20))
    assert backend.sizes(QUEUE) == Sizes(delayed=2)
    assert not drained(backend)
    push_at(backend, None)
    assert backend.sizes(QUEUE) == Sizes(ready=1, delayed=2)
    assert priorities(backend) == [1024]
    push_at(backend, None, 10_000)
    bench.pass_time(30)
    assert backend.sizes(QUEUE).ready == 4
    assert priorities(backend) == [0, 1024, 5000, 10_000]


def test_a_delayed_release_keeps_the_priority(bench: Bench, backend: Backend) -> None:
    push_at(backend, 0)
    apply(backend, started(backend), Release(bench.seconds(50)))
    assert not drained(backend)
    push_at(backend, None)
    bench.pass_time(60)
    assert priorities(backend) == [0, 1024]


def test_what_was_delayed_wakes_in_its_level(backend: Backend) -> None:
    needs(backend, Capability.SIZE)
    push_at(backend, 0)
    job, release = started(backend), Release(600)
    handle = job.handle(release)
    apply(backend, job, release)
    push_at(backend, 5)
    try:
        woken = backend.wake(QUEUE, handle)
    except NotImplementedError:
        pytest.skip("it cannot wake one")
    assert woken
    assert not backend.wake(QUEUE, handle)
    assert priorities(backend) == [0, 5]


def test_one_whose_lease_ran_out_is_first(bench: Bench, backend: Backend) -> None:
    needs_lapse(bench)
    needs(backend, Capability.ORDER)
    push_at(backend, 5000)
    started(backend, lease=bench.seconds(60))
    push_at(backend, 0)
    bench.pass_time(70)
    assert priorities(backend) == [5000, 0]


def test_a_buried_message_keeps_its_priority(backend: Backend) -> None:
    needs(backend, Capability.BURY)
    push_at(backend, 5000, 0)
    apply(backend, started(backend), Bury())
    apply(backend, started(backend), Bury())
    assert backend.sizes(QUEUE) == Sizes(buried=2)
    assert not drained(backend)
    push_at(backend, None)
    assert backend.kick(QUEUE) == 2
    assert backend.kick(QUEUE) == 0
    assert priorities(backend) == [0, 1024, 5000]


def test_a_purge_deletes_all_levels(backend: Backend) -> None:
    needs(backend, Capability.PURGE)
    push_at(backend, 0, None, 5000)
    push_at(backend, 0, 5000, delay=600)
    assert backend.purge(QUEUE) == 5
    assert not drained(backend)
    assert QUEUE not in backend.queues()


def test_queues_with_a_priority_are_listed(backend: Backend) -> None:
    needs(backend, Capability.LIST)
    push_at(backend, 0, queue="first")
    push_at(backend, 5000, queue="later", delay=600)
    assert backend.queues() == ["first", "later"]


def listed(backend: Backend, place: Place) -> list[int]:
    found, page = list[int](), backend.browse(QUEUE, place, 2)
    while True:
        found += [int(each.raw_body) for each in page.found]
        assert {each.place for each in page.found} <= {place}
        if not page.after:
            return found
        page = backend.browse(QUEUE, place, 2, page.after)


def test_they_are_listed_in_the_order_in_which_they_come(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.BROWSE)
    needs(backend, Capability.ORDER)
    push_at(backend, 5000, None, 0, 1025, None, 5, 0)
    assert listed(backend, Place.READY) == [0, 0, 5, 1024, 1024, 1025, 5000]
    assert listed(backend, Place.DELAYED) == []
    for delay, each in ((300, 0), (200, None), (100, 5000)):
        push_at(backend, each, delay=delay)
    assert listed(backend, Place.DELAYED) == [5000, 1024, 0]
    assert listed(backend, Place.READY) == [0, 0, 5, 1024, 1024, 1025, 5000]


def test_what_is_found_can_be_taken(backend: Backend) -> None:
    needs(backend, Capability.SEARCH)
    push_at(backend, 0, 5000)
    push_at(backend, 7, delay=600)
    found = {each.raw_body: each for each in backend.search(QUEUE, b"")}
    assert {raw: each.place for raw, each in found.items()} == {
        b"0": Place.READY, b"5000": Place.READY, b"7": Place.DELAYED,
    }  # fmt: skip
    job = backend.take(found[b"7"])
    assert job is not None
    apply(backend, job, Release())
    assert priorities(backend) == [0, 7, 5000]


def test_what_a_latch_pushes_has_its_priority(backend: Backend) -> None:
    needs(backend, Capability.FACTS)
    then = Push(QUEUE, b"0", priority=0)
    push_at(backend, None, None)
    apply(backend, None, Open("latch", then, every=1))
    apply(backend, None, Extend("latch", 2), Close("latch"))
    apply(backend, None, Arrive("latch", 0))
    apply(backend, None, Arrive("latch", 1))
    found = [0, 0, 1024, 1024]
    assert priorities(backend) == found


# -- aging ----------------------------------------------------------------------------------------


def test_a_level_is_worth_so_many_seconds(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    needs_skew(bench)
    push_at(backend, 2000)
    bench.pass_time(4 * AGING - 50)
    push_at(backend, 1023)
    bench.pass_time(100)
    push_at(backend, 1000)
    assert priorities(backend) == [1023, 2000, 1000]


def test_no_flood_of_urgent_ones_keeps_others_for_ever(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    needs_skew(bench)
    push_at(backend, None, 5000)
    came: list[int] = []
    for _ in range(20):
        push_at(backend, 0)
        job = started(backend)
        came.append(int(job.raw_body))
        apply(backend, job, Delete())
        bench.pass_time(AGING / 2)
    # The default's level is worth five of these, 5000 has eight: at two urgent ones in each.
    assert came.index(1024) in {10, 11}
    assert came.index(5000) in {16, 17}


@pytest.mark.parametrize("seed", range(8))
def test_none_is_overtaken_by_one_that_ought_to_wait(
    bench: Bench, backend: Backend, seed: int
) -> None:
    """Random pushes, releases and times: what comes has the least rank of all that are ready.

    Redis knows when what has no priority was seen, not when it became ready: a step later.
    """
    needs(backend, Capability.ORDER)
    needs_skew(bench)
    random, clock = Random(seed), 0.0
    waiting: dict[bytes, tuple[float, int | None]] = {}
    slack = 600.0 if backend.described().startswith("redis") else 10.0

    def draw() -> tuple[float, int | None]:
        delay = random.choice([0.0, 0.0, 0.0, 500.0])
        return delay, random.choice([0, 5, 1000, None, None, 1025, 5000, 10_000])

    for number in range(60):
        for _ in range(random.choice([0, 1, 1, 2])):
            (delay, priority), raw = draw(), b"%d of %d" % (number, len(waiting))
            apply(backend, None, Push(QUEUE, raw, delay, priority))
            waiting[raw] = clock + delay, priority
        jobs, _ = backend.reserve([QUEUE])
        ready = {
            raw: since + behind(level_of(priority), AGING)
            for raw, (since, priority) in waiting.items()
            if since <= clock
        }
        assert len(jobs) == min(1, len(ready))
        for job in jobs:
            assert ready[job.raw_body] - min(ready.values()) < slack
            apply(backend, job, Start(60))
            _, kept = waiting.pop(job.raw_body)
            if random.random() < 0.4:
                delay, priority = draw()
                apply(backend, job, Release(delay, priority=priority))
                waiting[job.raw_body] = clock + delay, kept if priority is None else priority
            else:
                apply(backend, job, Delete())
        passed = random.choice([0.0, 30.0, 100.0, 290.0])
        bench.pass_time(passed)
        clock += passed
    assert backend.sizes(QUEUE).total == len(waiting)


def test_levels_are_in_order() -> None:
    assert [level_of(each) for each in FIRST] == [*range(len(FIRST))]
    assert level_of(None) == level_of(1024) == MIDDLE
    assert level_of(2**63) == len(FIRST) - 1
