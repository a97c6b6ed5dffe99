"""Threads and processes at once: no message twice, none lost, no step in halves."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import (
    Add,
    Arrive,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Open,
    Outcome,
    Push,
    Record,
    Renew,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    failed,
    needs,
    push,
    reserve,
    started,
    tried,
)

WORKERS = 4
FORKS = multiprocessing.get_context("fork")

Race: TypeAlias = Callable[[Bench, Callable[[Backend, int], Any]], list[Any]]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_threads(bench: Bench, do: Callable[[Backend, int], Any]) -> list[Any]:
    """Do the same in several threads with one backend; gives what each gave."""
    given: list[Any] = [None] * WORKERS
    backend, barrier = bench.open(), threading.Barrier(WORKERS)

    def run(number: int) -> None:
        try:
            barrier.wait()
            given[number] = do(backend, number)
        finally:
            backend.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


def in_processes(bench: Bench, do: Callable[[Backend, int], Any]) -> list[Any]:
    """Do the same in several processes, each with a backend of its own; gives what each gave."""
    answers, barrier = FORKS.SimpleQueue(), FORKS.Barrier(WORKERS)

    def run(number: int) -> None:
        backend = bench.open()
        barrier.wait()
        answers.put((number, do(backend, number)))
        backend.close()

    processes = [FORKS.Process(target=run, args=(number,)) for number in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return [given for _, given in sorted(answers.get() for _ in processes)]


def needs_processes(bench: Bench) -> None:
    """Skip the test where the place is of one process; before anything is opened."""
    if not bench.shared:
        pytest.skip("its place is of one process")
    bench.share_facts()


@pytest.fixture(params=["threads", "processes"])
def race(request: pytest.FixtureRequest, bench: Bench) -> Race:
    if request.param == "threads":
        return in_threads
    needs_processes(bench)
    return in_processes


def worked_off(backend: Backend, limit: int = 2) -> list[bytes]:
    """Run what there is, as a worker does."""
    done: list[bytes] = []
    steps: list[Step] = []
    while True:
        jobs, results = backend.reserve([QUEUE], limit, first=steps)
        assert all(result.applied for result in results)
        steps = []
        if not jobs:
            return done
        for job in jobs:
            apply(backend, job, Start(60))
            done.append(job.raw_body)
            steps.append(job.delete())


def test_each_message_is_given_once(bench: Bench, race: Race) -> None:
    def work(backend: Backend, number: int) -> list[bytes]:
        push(backend, *(b"%d of %d" % (n, number) for n in range(25)))
        return worked_off(backend)

    done = [raw for given in race(bench, work) for raw in given]
    done += drained(bench.open())
    assert Counter(done) == Counter(b"%d of %d" % (n, m) for n in range(25) for m in range(WORKERS))


def test_a_forked_child_uses_the_backend_of_its_parent(bench: Bench) -> None:
    needs_processes(bench)
    backend = bench.open()
    push(backend, b"of the parent")
    ours = started(backend)

    def child() -> None:
        push(backend, b"of the child")
        job = reserve(backend)
        assert job.raw_body == b"of the child"
        apply(backend, job, Delete())
        os._exit(7)

    process = FORKS.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 7
    apply(backend, ours, Renew(60))
    apply(backend, ours, Delete())
    push(backend, b"more")
    assert reserve(backend).raw_body == b"more"


def test_a_thread_may_settle_what_another_has_reserved(bench: Bench) -> None:
    backend = bench.open()
    needs(backend, Capability.AHEAD)
    push(backend, b"1")
    job = reserve(backend)

    def settle(_: Backend, number: int) -> bool:
        try:
            return tried(backend, job, Delete()).applied
        finally:
            backend.close()

    assert sorted(in_threads(bench, settle)) == [False, False, False, True]


def test_of_those_who_expect_the_same_one_writes(bench: Bench, race: Race) -> None:
    def lock(backend: Backend, number: int) -> bool:
        result = tried(backend, None, Expect("lock", None), Set("lock", str(number)))
        return result.outcome is Outcome.APPLIED

    won = race(bench, lock)
    assert won.count(True) == 1
    assert bench.open().read("lock") == [str(won.index(True))]


def test_everything_that_is_added_counts(bench: Bench, race: Race) -> None:
    def count(backend: Backend, number: int) -> None:
        for _ in range(10):
            apply(backend, None, Add("n", 1), Add("m", 2))

    race(bench, count)
    assert bench.open().read("n", "m") == [str(10 * WORKERS), str(20 * WORKERS)]


def test_a_latch_is_complete_once(bench: Bench, race: Race) -> None:
    backend = bench.open()
    apply(backend, None, Open("latch", Push(QUEUE, b"then")))
    apply(backend, None, Extend("latch", WORKERS))
    apply(backend, None, Close("latch"))
    race(bench, lambda backend, number: apply(backend, None, Arrive("latch", number)))
    assert drained(backend) == [b"then"]


def test_a_failed_job_is_forgotten_by_one(bench: Bench, race: Race) -> None:
    backend = bench.open()
    apply(backend, None, Record(failed("u1")))

    def retry(backend: Backend, number: int) -> bool:
        return tried(backend, None, Forget("u1"), Push(QUEUE, b"again")).applied

    won = race(bench, retry)
    if Capability.JOINT in backend.capabilities:
        assert won.count(True) == 1
        assert drained(backend) == [b"again"]
    else:
        assert drained(backend)


@pytest.mark.parametrize("before", ["expired", "refused", "removed"])
def test_one_takes_what_nobody_holds_any_more(bench: Bench, race: Race, before: str) -> None:
    """As locks are taken: where one has run out, was asked for in vain, or is just let go."""
    backend = bench.open()
    for turn in range(20 if race is in_threads else 5):
        key = f"lock{turn}"
        if before == "expired":
            backend.apply(Step(None, Set(key, "old", ttl=0.01)))
            while backend.read(key) != [None]:
                time.sleep(0.01)
        elif before == "refused":
            (result,) = backend.apply(Step(None, Expect(key, "mine"), Set(key, "never")))
            assert result.outcome is Outcome.REFUSED
        else:
            backend.apply(Step(None, Set(key, "old")))

        def take(backend: Backend, number: int, key: str = key) -> bool:
            if before == "removed" and not number:
                backend.apply(Step(None, Unset(key, "old")))
                return False
            me = str(number)
            for _ in range(50 if before == "removed" else 1):
                (result,) = backend.apply(Step(None, Expect(key, None), Set(key, me)))
                if result.applied or result.holds != "old":
                    return result.applied
            return False

        took = [number for number, ours in enumerate(race(bench, take)) if ours]
        assert len(took) == 1 or (before == "removed" and not took)
        if took:
            assert backend.read(key) == [str(took[0])]
