"""Unique and debounced jobs: the lock, from the push to each end, on every driver that has jobs."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from qframe import Queueable, events
from qframe.contracts import Capability, Job, Store
from qframe.drivers.base import BaseQueue
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import BackendUnavailable, DuplicateJob
from qframe.failed.retry import retry
from qframe.unique import of_raw
from tests.conformance.drivers import NAME, RETRY_AFTER, Bench
from tests.conformance.steps import begin, take
from tests.conformance.steps import until as wait_until

pytestmark = pytest.mark.needs(Capability.RESERVE)


class Import(Queueable):
    file: str = "a"

    unique = True
    unique_for = 600

    def handle(self) -> None: ...


class UntilStarted(Queueable):
    unique = True
    unique_until = "started"

    def handle(self) -> None: ...


class Tracked(Import):
    track = True


class Index(Queueable):
    page: int = 1
    text: str = ""
    debounce: ClassVar[float] = 30

    def unique_id(self) -> int:
        return self.page

    def handle(self) -> None: ...


class Other(Queueable):
    number: int = 0

    def handle(self) -> None: ...


def store_of(bench: Bench) -> Store:
    return bench.manager.store(NAME)


def locks(bench: Bench) -> list[str | None]:
    store = store_of(bench)
    return store.get(*store.keys("unique:"))


def test_the_first_one_wins_and_the_second_hears_of_it(bench: Bench) -> None:
    heard: list[events.JobDuplicate] = []
    with events.kept():
        events.listen(events.JobDuplicate)(heard.append)
        first = bench.queue.push(Import())
        assert bench.queue.push(Import()) == first
        assert bench.queue.later(5, Import(), "elsewhere") == first
        other = bench.queue.push(Import(file="b"))
    assert other != first
    assert [(e.connection, e.queue, e.id) for e in heard] == [
        (NAME, "default", first),
        (NAME, "elsewhere", first),
    ]
    assert sorted(map(str, locks(bench))) == sorted([first, other])
    assert take(bench).uuid == first


def test_a_duplicate_of_another_process_is_one(bench: Bench) -> None:
    first = bench.queue.push(Import())
    assert bench.another().push(Import()) == first


def test_two_at_once_are_one(bench: Bench) -> None:
    queues = [bench.another() for _ in range(4)]
    start = threading.Barrier(len(queues))
    given: list[str] = []

    def push(queue: BaseQueue) -> None:
        start.wait()
        given.extend(f"{number} {queue.push(Import(file=str(number)))}" for number in range(25))
        queue.close()

    threads = [threading.Thread(target=push, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(given) == 100
    assert len(set(given)) == 25
    count = 0
    while jobs := bench.queue.reserve(["default"], 10):
        for job in jobs:
            assert bench.queue.start(job)
            job.delete()
            count += 1
    assert count == 25


@pytest.mark.parametrize("end", ["delete", "fail", "done with the next", "told", "release", "bury"])
def test_the_lock_is_freed_at_the_end_and_no_sooner(bench: Bench, end: str) -> None:
    first = bench.queue.push(Import())
    job = begin(bench)
    assert bench.queue.push(Import()) == first  # it runs
    if end == "delete":
        job.delete()
    elif end == "fail":
        job.fail(ValueError("no"))
    elif end == "done with the next":
        bench.queue.push(Other())
        (following,) = bench.queue.reserve(["default"], 1, finished=job)
        assert bench.queue.start(following)
    elif end == "told":
        bench.queue.push(Other())
        following = take(bench)
        assert bench.queue.start(following, finished=job)
        following.delete()
    elif end == "release":
        job.retry(0, "error", "ValueError: no")
        assert bench.queue.push(Import()) == first
        begin(bench).delete()
    elif Capability.BURY in bench.kind.capabilities:
        job.bury()
        assert bench.queue.push(Import()) == first
        assert bench.queue.kick() == 1
        begin(bench).delete()
    else:
        job.delete()
    wait_until(lambda: locks(bench) == [], "the lock to be freed", 5)
    assert bench.queue.push(Import()) != first


def test_only_its_owner_frees_a_lock(bench: Bench) -> None:
    """One whose lock had ended frees nothing of the one that has it now."""
    bench.queue.push(Import())
    job = begin(bench)
    (key,) = store_of(bench).keys("unique:")
    store_of(bench).delete(key)
    second = bench.queue.push(Import())
    job.delete()
    assert locks(bench) == [second]


def test_a_lost_lease_frees_nothing(bench: Bench) -> None:
    bench.queue.push(Import())
    job = begin(bench)
    assert isinstance(job, BaseJob)
    job.mark("lost")
    with pytest.raises(Exception, match="lease"):
        job.delete()
    assert len(locks(bench)) == 1


def test_until_started_frees_at_the_start(bench: Bench) -> None:
    first = bench.queue.push(UntilStarted())
    job = take(bench)
    assert bench.queue.push(UntilStarted()) == first  # it is only held
    assert bench.queue.start(job)
    job.note_start()
    job.attempts()
    second = bench.queue.push(UntilStarted())
    assert second != first
    job.delete()
    assert locks(bench) == [second]  # which is not its own


def test_a_lock_ends_in_any_case(bench: Bench) -> None:
    """It is bounded, by the backend's clock: Laravel's are for ever unless somebody says else."""
    first = bench.queue.push(Import())
    take(bench)
    if not bench.own_stores:
        (key,) = store_of(bench).keys("unique:")
        store_of(bench).set(key, first, 0.001)
        wait_until(lambda: locks(bench) == [], "the lock to end")
    bench.forward(601)
    assert bench.queue.push(Import()) != first


@pytest.mark.needs(Capability.DELAY)
def test_the_bound_counts_from_when_a_delayed_job_is_ready(bench: Bench) -> None:
    if not bench.own_stores:
        return  # whose clock cannot be moved; the sum is the same there
    first = bench.queue.later(3000, Import())
    bench.forward(3500)
    assert bench.queue.push(Import()) == first
    bench.forward(101)
    assert bench.queue.push(Import()) != first


def test_the_lock_of_a_job_that_runs_on_is_prolonged(bench: Bench) -> None:
    if not bench.own_stores:
        return
    first = bench.queue.push(Import())
    job = begin(bench)
    for _ in range(4):
        bench.forward(400)
        job_prolonged_at(job, 0)
        job.catch_up()
    assert bench.queue.push(Import()) == first


def job_prolonged_at(job: Job, at: float) -> None:
    assert isinstance(job, BaseJob)
    job._prolonged_at = at


def test_a_push_that_fails_leaves_no_lock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if bench.queue.noting:
        return  # one step: there is no lock without the job

    def fails(*args: object) -> str:
        raise BackendUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.queue, "put", fails)
        with pytest.raises(BackendUnavailable):
            bench.queue.push(Import())
        assert locks(bench) == []
    bench.queue.push(Import())


def test_a_push_that_was_said_again_knows_its_own_lock(bench: Bench) -> None:
    job = Import()
    envelope = bench.queue.envelope(job)
    first = bench.queue.push_envelope(job, envelope, None, 0)
    if bench.queue.noting:
        assert bench.queue.push_envelope(job, envelope, None, 0) == first == envelope.uuid
        assert bench.queue.size() == 1


@pytest.mark.needs(Capability.CANCEL)
def test_cancelling_a_waiting_job_frees_its_lock(bench: Bench) -> None:
    for job in (Import(), Tracked()):
        first = bench.queue.later(30, job)
        assert bench.queue.cancel(first).name == "REMOVED"
        assert locks(bench) == []
        second = bench.queue.push(job)
        assert second != first
        assert bench.queue.cancel(second).name == "REMOVED"


@pytest.mark.needs(Capability.CLEAR)
def test_clearing_a_queue_frees_the_locks_of_what_waited(bench: Bench) -> None:
    running = bench.queue.push(Import(file="runs"))
    job = begin(bench)
    for number in range(5):
        bench.queue.push(Import(file=str(number)))
        bench.queue.later(60, Import(file=f"late {number}"))
        bench.queue.push(Other(number=number))
    bench.queue.push(Import(file="elsewhere"), "elsewhere")
    assert bench.queue.clear() == 15
    assert bench.queue.sizes().total == 1
    assert len(locks(bench)) == 2
    assert running in locks(bench)
    job.delete()


@pytest.mark.needs(Capability.CLEAR)
def test_clearing_a_queue_frees_the_lock_of_one_whose_lease_ran_out(bench: Bench) -> None:
    bench.queue.push(Import())
    begin(bench)
    bench.forward(RETRY_AFTER + 2)
    assert bench.queue.clear() == 1
    assert locks(bench) == []


def test_many_at_once_go_by_the_same_rule(bench: Bench) -> None:
    first = bench.queue.push(Import())
    jobs = [Other(), Import(), Import(file="b"), Import(file="b"), Other()]
    ids = bench.queue.bulk(jobs)
    assert ids[1] == first
    assert ids[2] == ids[3] != first
    assert len(set(ids)) == 4
    taken = 0
    while found := bench.queue.reserve(["default"], 1):
        assert bench.queue.start(found[0])
        found[0].delete()
        taken += 1
    assert taken == 4


def test_a_retried_job_takes_its_lock_again_or_stays_failed(bench: Bench) -> None:
    first = bench.queue.push(Import())
    begin(bench).fail(ValueError("no"))
    store = bench.manager.failed_store(NAME)
    record = store.find(first)
    assert record is not None
    second = bench.queue.push(Import())
    with pytest.raises(DuplicateJob, match=second):
        retry(bench.manager, store, record)
    assert store.find(first) is not None
    begin(bench).delete()
    assert retry(bench.manager, store, record)
    assert store.find(first) is None
    assert bench.queue.push(Import()) == first
    assert begin(bench).uuid == first


def test_a_tracked_unique_job_has_one_status(bench: Bench) -> None:
    first = bench.queue.push(Tracked())
    assert bench.queue.push(Tracked()) == first
    begin(bench).delete()
    statuses = bench.queue.status_store()
    assert statuses is not None
    status = statuses.read(first)
    assert status is not None
    assert status.state.value == "complete".upper()
    assert locks(bench) == []


@pytest.mark.needs(Capability.DELAY)
def test_of_debounced_jobs_the_last_one_runs(bench: Bench) -> None:
    one = bench.queue.push(Index(text="one"))
    other = bench.queue.push(Index(page=2, text="another page"))
    two = bench.queue.push(Index(text="two"))
    assert len({one, other, two}) == 3
    assert not bench.queue.reserve(["default"], 5)  # each waits for a later one
    bench.forward(31)
    last = {}
    while found := bench.queue.reserve(["default"], 1):
        (job,) = found
        last[job.uuid] = not job.is_replaced()
        assert bench.queue.start(job)
        job.delete()
    assert last == {one: False, other: True, two: True}


@pytest.mark.needs(Capability.DELAY)
def test_a_failed_debounced_job_does_not_take_the_place_of_a_later_one(bench: Bench) -> None:
    old = bench.queue.push(Index(text="old"))
    bench.forward(31)
    begin(bench).fail(ValueError("no"))
    new = bench.queue.push(Index(text="new"))
    store = bench.manager.failed_store(NAME)
    record = store.find(old)
    assert record is not None
    with pytest.raises(DuplicateJob, match=f"{old} is debounced and {new}, dispatched later"):
        retry(bench.manager, store, record)
    assert store.find(old) is not None
    bench.forward(31)
    job = begin(bench)
    assert isinstance(job, BaseJob)
    assert job.uuid == new
    assert not job.is_replaced()
    job.delete()
    assert not bench.queue.reserve(["default"])


@pytest.mark.needs(Capability.DELAY)
@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_debounced_job_that_none_has_replaced_runs_again(bench: Bench, kept: bool) -> None:
    old = bench.queue.push(Index())
    bench.forward(31)
    begin(bench).fail(ValueError("no"))
    if not kept:
        (key,) = store_of(bench).keys("debounce:")
        store_of(bench).delete(key)
    store = bench.manager.failed_store(NAME)
    record = store.find(old)
    assert record is not None
    assert retry(bench.manager, store, record)
    assert store.find(old) is None
    job = begin(bench)
    assert isinstance(job, BaseJob)
    assert job.uuid == old
    assert not job.is_replaced()
    assert store_of(bench).get(*store_of(bench).keys("debounce:")) == [old]
    job.delete()


def test_a_payload_that_names_no_lock_of_ours_takes_none() -> None:
    for said in (
        "true", '{"key":"restart","for":5,"until":"handled"}',
        '{"key":"unique:a","for":-5,"until":"handled"}', '{"key":"unique:a","for":5,"until":"x"}',
        '{"key":"unique:a","for":5,"until":"replaced"}',
    ):  # fmt: skip
        assert of_raw(f'{{"uuid":"u","unique":{said}}}'.encode()) is None
    assert of_raw(b'{"uuid":"u","unique":{"key":"unique:a","for":5,"until":"handled"}}') is not None
