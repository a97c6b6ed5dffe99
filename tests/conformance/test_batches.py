"""Batches: what their store promises, and how a queue counts the members that it removes."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qframe import QueueManager
from qframe.contracts import (
    BatchRecord,
    BatchStore,
    Cancelling,
    Capability,
    Job,
    State,
)
from qframe.drivers.base import BaseQueue
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import BackendUnavailable, LeaseLost
from tests.conformance.batches import KINDS, TELLER, counts, new, opened, read, stored_elsewhere
from tests.conformance.drivers import (
    RETRY_AFTER,
    BeanstalkdBench,
    Bench,
    MemoryBench,
    SqliteBench,
)
from tests.conformance.steps import begin, body, drain, push, take

# -- the store ----------------------------------------------------------------------------------


@pytest.fixture(params=list(KINDS))
def bench_of_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(bench_of_store: Bench) -> BatchStore:
    own = bench_of_store.queue.own_batches()
    assert own is not None
    return own


def done(store: BatchStore, number: int, batch: str = "b") -> bool:
    """Count a member as done; says whether the teller is due."""
    return store.settle(batch, number, f"job-{number}", failed=False) is not None


def failed(store: BatchStore, number: int, batch: str = "b") -> bool:
    return store.settle(batch, number, f"job-{number}", failed=True) is not None


def test_a_new_batch_is_there_and_has_no_members(store: BatchStore) -> None:
    assert store.read("b") is None
    before = time.time()
    assert store.create(new(step=3))
    found = read(store)
    assert before - 1 < found.created_at < time.time() + 1
    assert found == BatchRecord(
        id="b",
        name="Ein Stapel ä👍 %s",
        connection="here",
        total=0,
        done=0,
        failed=0,
        sealed=False,
        told=frozenset(),
        told_progress=0,
        options={"queue": None, "follow": {"then": ["ä👍 'x' %s \n"]}},
        created_at=found.created_at,
    )
    assert not found.is_finished, "it is not sealed"
    assert list(store.failures("b")) == []


def test_an_id_is_taken_once(store: BatchStore) -> None:
    opened(store, 2)
    before = read(store)
    assert not store.create(new(name="another", allows=True, step=1, teller=b"{}"))
    assert read(store) == before
    assert failed(store, 0)
    assert read(store).cancelled_at is not None, "it still allows no failures"


def test_members_are_numbered_as_it_grows(store: BatchStore) -> None:
    store.create(new())
    assert store.grow("b", 3) == 0
    assert store.grow("b", 1) == 3
    assert store.grow("b", 500) == 4
    assert counts(store) == (0, 0, 504)
    assert store.grow("none", 1) is None
    assert store.read("none") is None


def test_growing_with_a_word_is_done_once(store: BatchStore) -> None:
    store.create(new())
    assert store.grow("b", 3, "job 1:1") == 0
    assert store.grow("b", 2, "job 1:2") == 3
    assert store.grow("b", 3, "job 1:1") == 0
    assert store.grow("b", 1) == 5
    assert read(store).total == 6
    store.create(new("c"))
    assert store.grow("c", 1, "job 1:1") == 0
    assert read(store, "c").total == 1
    assert store.grow("none", 1, "job 1:1") is None


def test_it_grows_until_it_is_over(store: BatchStore) -> None:
    opened(store, 1, sealed=False)
    assert not done(store, 0)
    assert store.grow("b", 1) == 1, "all have settled, but more were to come"
    store.seal("b")
    assert store.grow("b", 1) == 2, "as from a job that adds to its own batch"
    assert not done(store, 1)
    assert done(store, 2)
    assert store.grow("b", 1) is None
    opened(store, 1, "c", sealed=False)
    store.cancel("c")
    assert store.grow("c", 1) == 1, "the rest of those that were dispatched together"
    store.seal("c")
    assert store.grow("c", 1) is None
    assert (read(store).total, read(store, "c").total) == (3, 2)


def test_sealing_ends_what_has_settled_by_then(store: BatchStore) -> None:
    assert store.seal("none") is None
    opened(store, 2, sealed=False)
    assert not done(store, 0)
    assert failed(store, 1), "the first failure"
    assert not failed(store, 7), "no member"
    assert not read(store).is_finished
    assert read(store).finished_at is None
    teller = store.seal("b")
    assert teller is not None
    assert (teller.raw, teller.uuid, teller.queue) == (TELLER, "teller", "tell")
    finished = read(store)
    assert finished.is_finished
    assert finished.finished_at is not None
    assert abs(finished.finished_at - time.time()) < 5
    assert store.seal("b") is not None, "said again, perhaps nobody has pushed it"
    assert read(store) == finished
    opened(store, 1, "c")
    assert store.seal("c") is None


def test_an_empty_batch_ends_when_it_is_sealed(store: BatchStore) -> None:
    store.create(new())
    assert store.seal("b") is not None
    assert read(store).is_finished
    assert read(store).finished_at is not None


def test_a_member_is_done_once(store: BatchStore) -> None:
    opened(store, 3)
    assert not done(store, 1)
    assert not done(store, 1)
    assert counts(store) == (1, 0, 3)
    assert not store.settle("b", 1, "another", failed=True), "what is done has not failed"
    assert counts(store) == (1, 0, 3)
    assert list(store.failures("b")) == []
    assert read(store).cancelled_at is None
    assert not done(store, 0)
    assert done(store, 2)
    assert counts(store) == (3, 0, 3)


def test_a_member_has_failed_once(store: BatchStore) -> None:
    opened(store, 3, allows=True)
    assert failed(store, 2)
    assert failed(store, 2), "it made the teller due, and perhaps nobody has pushed it"
    assert not failed(store, 1)
    assert not failed(store, 1)
    assert counts(store) == (0, 2, 3)
    assert list(store.failures("b")) == ["job-1", "job-2"]


def test_one_that_failed_and_is_done_after_a_retry_is_done(store: BatchStore) -> None:
    opened(store, 3, allows=True)
    failed(store, 0)
    failed(store, 1)
    assert not done(store, 0)
    assert counts(store) == (1, 1, 3)
    assert list(store.failures("b")) == ["job-1"]
    failed(store, 0)
    assert counts(store) == (1, 1, 3)
    assert failed(store, 2), "the end"
    assert counts(store) == (1, 2, 3)


def test_the_first_failure_is_the_first_ever(store: BatchStore) -> None:
    opened(store, 5, allows=True)
    assert failed(store, 0)
    done(store, 0)
    assert counts(store) == (1, 0, 5)
    assert not failed(store, 1)


def test_the_first_failure_cancels_unless_they_are_allowed(store: BatchStore) -> None:
    opened(store, 3)
    opened(store, 3, "c", allows=True)
    before = time.time()
    failed(store, 0)
    failed(store, 0, "c")
    cancelled = read(store)
    assert cancelled.cancelled_at is not None
    assert before - 1 < cancelled.cancelled_at < time.time() + 1
    assert read(store, "c").cancelled_at is None
    failed(store, 1)
    assert read(store).cancelled_at == cancelled.cancelled_at


def test_a_failure_does_not_cancel_it_anew(store: BatchStore) -> None:
    opened(store, 3)
    assert store.cancel("b")
    before = read(store).cancelled_at
    time.sleep(0.01)
    assert failed(store, 0), "it is the first failure all the same"
    assert read(store).cancelled_at == before


def test_it_is_finished_when_all_have_settled(store: BatchStore) -> None:
    opened(store, 3, allows=True)
    assert not done(store, 2)
    assert failed(store, 0)
    assert read(store).finished_at is None
    assert done(store, 1)
    finished = read(store)
    assert finished.is_finished
    assert finished.finished_at is not None
    assert abs(finished.finished_at - time.time()) < 5
    for number in range(3):
        assert done(store, number) if number else failed(store, number), "said again"
    assert read(store) == finished


def test_a_retried_member_is_told_of_after_the_end(store: BatchStore) -> None:
    opened(store, 2, allows=True)
    failed(store, 0)
    assert failed(store, 1)
    finished = read(store).finished_at
    time.sleep(0.01)
    done(store, 1)
    assert counts(store) == (1, 1, 2)
    assert done(store, 0)
    assert counts(store) == (2, 0, 2)
    assert read(store).finished_at == finished


def test_progress_is_told_of_in_steps(store: BatchStore) -> None:
    opened(store, 7, step=3, allows=True)
    assert [done(store, number) for number in range(3)] == [False, False, True]
    assert failed(store, 3)
    assert [done(store, number) for number in range(4, 6)] == [False, False]
    assert done(store, 3), "the sixth that is done"
    assert done(store, 6)


def test_of_a_batch_that_is_not_there_nothing_is_counted(store: BatchStore) -> None:
    assert not done(store, 0)
    assert not failed(store, 1)
    assert store.read("b") is None
    assert list(store.failures("b")) == []
    opened(store, 3)
    assert not done(store, 2)
    assert not done(store, 0)
    assert not failed(store, 3), "a number that was never given out"
    assert not done(store, 2**31 - 1)
    assert counts(store) == (2, 0, 3), "what was said before it began has left nothing"
    assert read(store).cancelled_at is None


def test_batches_are_counted_apart(store: BatchStore) -> None:
    opened(store, 2, allows=True)
    opened(store, 2, "c", allows=True)
    failed(store, 0)
    done(store, 0, "c")
    assert failed(store, 1)
    assert counts(store, "c") == (1, 0, 2)
    assert list(store.failures("c")) == []


def test_failures_come_in_the_members_order(store: BatchStore) -> None:
    opened(store, 120, allows=True)
    for number in (100, 9, 10, 99, 0):
        failed(store, number)
    assert list(store.failures("b")) == ["job-0", "job-9", "job-10", "job-99", "job-100"]
    assert list(store.failures("b", 2)) == ["job-0", "job-9"]
    assert list(store.failures("none")) == []


def test_cancel_says_whether_there_was_something_to_cancel(store: BatchStore) -> None:
    assert not store.cancel("none")
    opened(store, 1)
    assert store.cancel("b")
    before = read(store)
    assert before.cancelled_at is not None
    assert not store.cancel("b")
    assert read(store) == before
    assert done(store, 0), "its members settle, and it ends"
    assert read(store).is_finished
    opened(store, 1, "c")
    done(store, 0, "c")
    assert not store.cancel("c")
    assert read(store, "c").cancelled_at is None


@pytest.mark.parametrize("how", ["by a failure", "by hand"])
def test_a_cancelled_batch_that_is_revived_goes_on(store: BatchStore, how: str) -> None:
    assert not store.revive("none")
    assert store.read("none") is None
    opened(store, 2)
    assert not store.revive("b"), "it is not cancelled"
    before = read(store)
    if how == "by hand":
        store.cancel("b")
    store.settle("b", 0, "job-0", failed=True)
    assert read(store).cancelled_at is not None
    assert store.revive("b")
    assert read(store) == dataclasses.replace(before, failed=1)
    assert store.grow("b", 1) == 2, "it takes members again"
    store.settle("b", 1, "job-1", failed=True)
    assert read(store).cancelled_at is None, "that was not the first failure"
    assert store.cancel("b")


def test_what_was_told_is_noted(store: BatchStore) -> None:
    store.told("none", "then", progress=1)
    assert store.read("none") is None
    opened(store, 5)
    store.told("b", "catch")
    store.told("b", "then", "finally")
    assert read(store).told == {"catch", "then", "finally"}
    assert read(store).told_progress == 0
    store.told("b", progress=2)
    store.told("b", "chain", progress=4)
    store.told("b", "catch")
    found = read(store)
    assert found.told == {"catch", "then", "finally", "chain"}
    assert found.told_progress == 4


def test_the_latest_come_first_page_by_page(store: BatchStore) -> None:
    names = [f"batch-{number}" for number in range(5)]
    for name in names:
        store.create(new(name, name=f"the {name}"))
        time.sleep(0.003)
    pages = []
    after = None
    while page := store.page(2, after):
        pages.append([each.id for each in page])
        after = page[-1].id
    assert pages == [["batch-4", "batch-3"], ["batch-2", "batch-1"], ["batch-0"]]
    assert [each.name for each in store.page()] == [f"the {name}" for name in reversed(names)]
    assert store.page(1)[0] == read(store, "batch-4")


def test_those_begun_one_right_after_the_other_are_all_listed(store: BatchStore) -> None:
    names = {f"batch-{number}" for number in range(30)}
    for name in names:
        store.create(new(name))
    found: list[str] = []
    while page := store.page(3, found[-1] if found else None):
        found += [each.id for each in page]
    assert len(found) == 30
    assert set(found) == names


def test_prune_removes_what_finished_before(store: BatchStore) -> None:
    for name in ("old", "new"):
        opened(store, 3, name, allows=True)
        failed(store, 0, name)
        done(store, 1, name)
        done(store, 2, name)
        store.told(name, "catch", "finally")
        time.sleep(0.02)
    opened(store, 1, "unfinished")
    moment = read(store, "new").finished_at
    assert moment is not None
    assert store.prune(moment - 0.01) == 1
    assert [each.id for each in store.page()] == ["unfinished", "new"]
    assert store.read("old") is None
    assert list(store.failures("old")) == []
    assert not done(store, 0, "old")
    assert list(store.failures("new")) == ["job-0"]
    opened(store, 2, "old")
    assert counts(store, "old") == (0, 0, 2)
    assert not done(store, 1, "old"), "of what was removed no member is left"
    assert counts(store, "old") == (1, 0, 2)


def test_prune_removes_unfinished_and_cancelled_ones_when_asked(store: BatchStore) -> None:
    for name in ("waits", "cancelled", "cancelled and done"):
        opened(store, 1, name)
    store.cancel("cancelled")
    store.cancel("cancelled and done")
    done(store, 0, "cancelled and done")
    now = time.time()
    assert store.prune(now - 100, unfinished=now - 100, cancelled=now - 100) == 0
    assert store.prune(now - 100, cancelled=now + 100) == 2
    assert [each.id for each in store.page()] == ["waits"]
    opened(store, 1, "cancelled")
    store.cancel("cancelled")
    assert store.prune(now + 100) == 0
    assert store.prune(now - 100, unfinished=now + 100) == 2
    assert list(store.page()) == []


def test_prune_leaves_what_is_still_to_be_told(store: BatchStore) -> None:
    said = json.dumps({"chain": {"id": "c"}})
    payload_of_a_link = {"follow": {"then": [{"raw": said}]}}
    of_chain = {**payload_of_a_link, "chain": {"id": "c"}}
    later = time.time() + 100
    for options, failures, cancelled, *told in (
        (payload_of_a_link, 0, False, "then", "finally"),
        (payload_of_a_link, 1, False, "catch", "finally"),
        (payload_of_a_link, 0, True, "finally"),
        (of_chain, 0, False, "then", "finally", "chain"),
        (of_chain, 1, False, "catch", "finally", "broken"),
        (of_chain, 1, False, "catch", "finally", "chain"),
        (of_chain, 0, True, "finally", "broken"),
    ):
        store.create(new(allows=True, options=options))
        store.grow("b", 2)
        if cancelled:
            store.cancel("b")
        store.settle("b", 0, "job-0", failed=bool(failures))
        store.seal("b")
        done(store, 1)
        for word in told:
            assert not read(store).is_told
            assert store.prune(later) == 0, (told, word)
            store.told("b", word)
        assert read(store).is_told
        assert store.prune(0, unfinished=later) == 0
        assert store.prune(later) == 1, told


def test_prune_takes_what_nobody_tells_where_unfinished_ones_are(store: BatchStore) -> None:
    opened(store, 1)
    assert done(store, 0)
    now = time.time()
    assert store.prune(now + 100, unfinished=now - 100) == 0
    assert store.prune(0, unfinished=now + 100) == 1


def test_a_retried_batch_is_not_removed_before_it_is_told_again(store: BatchStore) -> None:
    opened(store, 1, allows=True)
    failed(store, 0)
    store.told("b", "catch", "finally")
    assert done(store, 0)
    later = time.time() + 100
    assert store.prune(later) == 0, "then is due"
    store.told("b", "then")
    assert store.prune(later) == 1


def test_the_first_failure_is_the_first_in_time(store: BatchStore) -> None:
    assert store.first_failure("none") is None
    opened(store, 12, allows=True)
    assert store.first_failure("b") is None
    for number in (10, 1, 0):
        failed(store, number)
        assert store.first_failure("b") == "job-10"
    done(store, 10)
    assert store.first_failure("b") == "job-0", "of those that are left the first in order"
    failed(store, 10)
    for number in (0, 1):
        done(store, number)
    assert store.first_failure("b") is None


def test_prune_of_many_members_leaves_none(store: BatchStore) -> None:
    opened(store, 1201, allows=True)
    for number in (0, 499, 500, 501, 1000, 1200):
        failed(store, number)
    assert store.prune(0, unfinished=time.time() + 100) == 1
    opened(store, 1201, allows=True)
    assert list(store.failures("b")) == []
    for number in range(3):
        failed(store, number)
    assert counts(store) == (0, 3, 1201)


def together(bench: Bench, *acts: Callable[[BatchStore], object]) -> list[object]:
    """Do things on stores of their own at the same moment; gives what each has given."""
    start = threading.Barrier(len(acts))
    given: list[object] = [None] * len(acts)

    def act(place: int) -> None:
        queue = bench.another()
        try:
            store = queue.own_batches()
            assert store is not None
            store.read("b")  # connected
            start.wait(30)
            given[place] = acts[place](store)
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            given[place] = error
            start.abort()
        finally:
            queue.close()

    threads = [threading.Thread(target=act, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return given


def test_of_the_last_two_at_once_one_ends_it(bench_of_store: Bench, store: BatchStore) -> None:
    """And the other one does not: then it is not all that have settled."""
    names = [f"batch-{number}" for number in range(40)]
    for name in names:
        opened(store, 3, name)
        done(store, 0, name)

    def settle(number: int) -> Callable[[BatchStore], object]:
        return lambda own: [done(own, number, name) for name in names]

    first, second = together(bench_of_store, settle(1), settle(2))
    assert isinstance(first, list), first
    assert isinstance(second, list), second
    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * len(names)
    assert all(read(store, name).is_finished for name in names)


def test_a_member_settled_twice_at_once_counts_once(
    bench_of_store: Bench, store: BatchStore
) -> None:
    opened(store, 50, allows=True)
    acts = [lambda own, act=act: [act(own, n) for n in range(49)] for act in (done, failed, done)]
    assert not any(isinstance(each, BaseException) for each in together(bench_of_store, *acts))
    assert counts(store) == (49, 0, 50)
    assert list(store.failures("b")) == []
    assert done(store, 49)


def test_growing_sealing_and_settling_at_once_lose_nothing(
    bench_of_store: Bench, store: BatchStore
) -> None:
    opened(store, 100, sealed=False)

    def grow(own: BatchStore) -> list[int | None]:
        return [own.grow("b", 2) for _ in range(30)]

    def settle(own: BatchStore) -> list[bool]:
        return [done(own, number) for number in range(100)]

    first, second, settled = together(bench_of_store, grow, grow, settle)
    assert isinstance(first, list), first
    assert isinstance(second, list), second
    assert sorted(first + second) == [*range(100, 220, 2)]
    assert settled == [False] * 100
    assert counts(store) == (100, 0, 220)


# -- through a queue ----------------------------------------------------------------------------

jobs = pytest.mark.needs(Capability.RESERVE)
ends: dict[str, Callable[[BaseJob], None]] = {
    "deleted": lambda job: job.delete(),
    "failed": lambda job: job.fail(ValueError("no")),
}


def member(uuid: str, number: int, batch: str = "b", **more: object) -> str:
    """Give the payload of a member."""
    return json.dumps({**json.loads(body(uuid)), "batch": {"id": batch, "n": number}, **more})


def members(bench: Bench, *uuids: str, **more: bool) -> BatchStore:
    """Push these as all members of a batch."""
    store = bench.batches
    opened(store, len(uuids), **more)  # type: ignore[arg-type] # what is asked for
    for number, uuid in enumerate(uuids):
        bench.queue.push_raw(member(uuid, number))
        bench.forward(0.05)
    return store


def begun(where: Bench | BaseQueue, *queues: str) -> BaseJob:
    job = begin(where, *queues)
    assert isinstance(job, BaseJob)
    return job


def started_again(queue: BaseQueue, uuid: str) -> BaseJob:
    """Start a job that is ready again, among others."""
    found: list[Job] = []
    while jobs := queue.reserve(["default"], 10):
        found += jobs
    job = next(each for each in found if each.uuid == uuid)
    assert queue.start(job)
    assert isinstance(job, BaseJob)
    return job


def tellers(bench: Bench) -> list[str]:
    return drain(bench.queue, "tell")


@jobs
def test_members_that_are_deleted_are_done(bench: Bench) -> None:
    store = members(bench, "a", "b")
    first = begun(bench)
    first.delete()
    assert counts(store) == (1, 0, 2)
    assert tellers(bench) == []
    begun(bench).delete()
    assert counts(store) == (2, 0, 2)
    assert read(store).is_finished
    (teller,) = bench.queue.reserve(["tell"])
    assert teller.raw_body == TELLER
    assert bench.queue.start(teller)
    teller.delete()
    assert counts(store) == (2, 0, 2)


@jobs
def test_one_that_failed_is_counted_as_failed(bench: Bench) -> None:
    store = members(bench, "a", "b", allows=True)
    begun(bench).fail(ValueError("no"))
    assert counts(store) == (0, 1, 2)
    assert list(store.failures("b")) == ["a"]
    assert bench.failed.count() == 1
    assert tellers(bench) == ["teller"], "the first failure"
    begun(bench).delete()
    assert counts(store) == (1, 1, 2)
    assert tellers(bench) == ["teller"], "the end"


@jobs
def test_one_that_was_cancelled_is_counted_as_failed(bench: Bench) -> None:
    store = members(bench, "a", "b")
    job = begun(bench)
    job.ends_as(State.CANCELLED, "while it ran")
    job.delete()
    assert counts(store) == (0, 1, 2)
    assert read(store).cancelled_at is not None
    assert tellers(bench) == ["teller"]


@jobs
@pytest.mark.parametrize("how", ["start", "reserve"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_one_that_is_deleted_with_the_next(bench: Bench, how: str, cancelled: bool) -> None:
    store = members(bench, "a", "b", allows=True)
    first = begun(bench)
    if cancelled:
        first.ends_as(State.CANCELLED, "while it ran")
    if not first.defers:  # then nobody does it with the next
        first.delete()
        first_done: BaseJob | None = None
    else:
        first_done = first
    if how == "start":
        second = take(bench)
        assert bench.queue.start(second, finished=first_done)
    else:
        (second,) = bench.queue.reserve(["default"], finished=first_done)
        assert bench.queue.start(second)
    assert first.is_deleted
    assert counts(store) == (0, 1, 2) if cancelled else (1, 0, 2)
    assert bench.queue.reserve(["default"], finished=second if first.defers else None) == []
    if not first.defers:
        second.delete()
    assert read(store).is_finished
    assert tellers(bench) == ["teller"] * (2 if cancelled else 1)


@pytest.mark.needs(Capability.RESERVE | Capability.RENEW)
@pytest.mark.parametrize("end", list(ends))
def test_who_lost_the_lease_counts_nothing(bench: Bench, end: str) -> None:
    store = members(bench, "a", "b")
    late = begun(bench)
    bench.forward(RETRY_AFTER + 1)
    other = started_again(bench.another(), late.uuid)
    with pytest.raises(LeaseLost):
        ends[end](late)
    assert counts(store) == (0, 0, 2)
    assert tellers(bench) == []
    assert bench.failed.count() == 0
    other.delete()
    assert counts(store) == (1, 0, 2)


@jobs
def test_what_comes_again_is_not_counted(bench: Bench) -> None:
    store = members(bench, "a", "b")
    begun(bench).release()
    begun(bench).retry(0, "error", "ValueError: no")
    assert counts(store) == (0, 0, 2)
    assert tellers(bench) == []


@jobs
def test_a_member_retried_by_hand_is_done_in_the_end(bench: Bench) -> None:
    store = members(bench, "a")
    begun(bench).fail(ValueError("no"))
    assert (counts(store), read(store).is_finished) == ((0, 1, 1), True)
    record = bench.failed.find("a")
    assert record is not None
    assert bench.queue.requeue(record, record.payload, bench.failed)
    assert counts(store) == (0, 1, 1)
    tellers(bench)
    begun(bench).delete()
    assert (counts(store), list(store.failures("b"))) == ((1, 0, 1), [])
    assert tellers(bench) == ["teller"]


@pytest.mark.needs(Capability.RESERVE | Capability.CANCEL)
def test_one_removed_while_it_waits_is_counted_as_failed(bench: Bench) -> None:
    store = members(bench, "a", "b", "c")
    assert bench.queue.cancel("a") is Cancelling.REMOVED
    assert counts(store) == (0, 1, 3)
    assert list(store.failures("b")) == ["a"]
    assert tellers(bench) == ["teller"]
    assert bench.queue.cancel("a") is Cancelling.ABSENT
    assert counts(store) == (0, 1, 3)
    job = begun(bench)
    assert bench.queue.cancel(job.uuid) is not Cancelling.REMOVED
    assert counts(store) == (0, 1, 3)


@jobs
@pytest.mark.parametrize("end", list(ends))
def test_a_member_whose_batch_is_gone_is_a_job_like_any_other(bench: Bench, end: str) -> None:
    bench.queue.push_raw(member("a", 0, "none"))
    ends[end](begun(bench))
    assert bench.queue.reserve(["default"]) == []
    assert tellers(bench) == []


@jobs
@pytest.mark.parametrize("said", ["b", {"id": "b"}, {"id": "b", "on": "then"}, {"n": 0}, None])
@pytest.mark.parametrize("end", list(ends))
def test_who_is_no_member_counts_nothing(bench: Bench, said: object, end: str) -> None:
    store = members(bench, "a", "b")
    for job in bench.queue.reserve(["default"], 2):
        job.release(60)
    bench.queue.push_raw(json.dumps({**json.loads(body("c")), "batch": said}))
    ends[end](started_again(bench.queue, "c"))
    assert counts(store) == (0, 0, 2)
    assert tellers(bench) == []


@jobs
def test_two_workers_that_end_the_last_two_at_once(bench: Bench) -> None:
    rounds = 10
    store = bench.batches
    for name in (f"batch-{number}" for number in range(rounds)):
        opened(store, 2, name)
        for number in range(2):
            bench.queue.push_raw(member(f"{name}-{number}", number, name))
    step = threading.Barrier(2)
    errors: list[BaseException] = []

    def work() -> None:
        queue = bench.another()
        try:
            for _ in range(rounds):
                job = begin(queue)
                step.wait(30)
                job.delete()
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            errors.append(error)
            step.abort()
        finally:
            queue.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert errors == []
    assert all(read(store, f"batch-{number}").is_finished for number in range(rounds))
    told = len(tellers(bench))
    assert told == rounds if bench.queue.noting else told >= rounds


# -- where store and jobs are apart -------------------------------------------------------------


@pytest.fixture(params=list(KINDS))
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = KINDS[request.param](tmp_path)
    stored_elsewhere(made)
    yield made
    made.close()


def test_members_are_counted_where_the_store_is(apart: Bench) -> None:
    store = members(apart, "a", "b", "c", allows=True)
    own = apart.queue.own_batches()
    assert own is not None
    assert own.read("b") is None
    assert not apart.queue.noting
    begun(apart).delete()
    begun(apart).fail(ValueError("no"))
    assert tellers(apart) == ["teller"]
    assert apart.queue.cancel("c") is Cancelling.REMOVED
    assert counts(store) == (1, 2, 3)
    assert tellers(apart) == ["teller"]


@pytest.fixture(params=list(KINDS))
def failing_elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A backend whose failed jobs alone are kept elsewhere."""
    made = KINDS[request.param](tmp_path)
    other = {"driver": "database", "url": f"sqlite:///{made.folder / 'other.sqlite3'}"}
    elsewhere = QueueManager({"root": tmp_path, "default": "o", "connections": {"o": other}})
    made.managers.append(elsewhere)
    made.queue.failed_store = elsewhere.connection("o").own_failed_store()
    yield made
    made.close()


def test_a_failure_recorded_elsewhere_is_counted_as_one(failing_elsewhere: Bench) -> None:
    bench = failing_elsewhere
    assert bench.queue.noting
    store = members(bench, "a", "b")
    begun(bench).fail(ValueError("no"))
    assert counts(store) == (0, 1, 2)
    assert tellers(bench) == ["teller"]
    assert bench.failed.count() == 0


@pytest.mark.parametrize("bench", [BeanstalkdBench, MemoryBench], indirect=True)
@pytest.mark.parametrize("end", list(ends))
def test_one_counted_and_not_removed_comes_again_and_counts_once(
    bench: Bench, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died in between, before it had pushed what it was to push."""
    store = members(bench, "a", "b")
    if end == "deleted":
        done(store, 1)

    def dies(_self: object, _teller: object) -> None:
        raise BackendUnavailable("the worker died")

    job = begun(bench)
    with monkeypatch.context() as patched:
        patched.setattr(BaseQueue, "put_teller", dies)
        with pytest.raises(BackendUnavailable):
            ends[end](job)
    before = counts(store)
    assert before == ((2, 0, 2) if end == "deleted" else (0, 1, 2))
    assert not job.is_settled
    bench.forward(RETRY_AFTER + 1)
    ends[end](started_again(bench.queue, job.uuid))
    assert counts(store) == before
    assert tellers(bench) == ["teller"]


# -- in one transaction -------------------------------------------------------------------------


@pytest.mark.parametrize("bench", [SqliteBench], indirect=True)
@pytest.mark.parametrize("end", [*ends, "with the next"])
def test_what_cannot_be_told_of_is_neither_removed_nor_counted(
    bench: Bench, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = members(bench, "a", "b")
    done(store, 1)
    job = begun(bench)

    def act(_job: BaseJob) -> None:
        bench.queue.reserve(["default"], finished=_job)

    def dies(*_arguments: object) -> str:
        raise BackendUnavailable("no")

    with monkeypatch.context() as patched:
        patched.setattr(type(bench.queue), "_insert", dies)
        with pytest.raises(BackendUnavailable):
            ends.get(end, act)(job)
    assert counts(store) == (1, 0, 2)
    assert bench.failed.count() == 0
    ends.get(end, act)(job)
    assert job.is_deleted
    assert read(store).is_finished
    assert tellers(bench) == ["teller"]


@jobs
def test_jobs_of_no_batch_are_none_of_its_business(bench: Bench) -> None:
    push(bench, "a")
    begun(bench).delete()
    assert list(bench.batches.page()) == []
