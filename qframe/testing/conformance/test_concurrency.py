"""Threads and processes at once: no message twice, none lost, no step in halves."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

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

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def at_once(do: Callable[[int], Any]) -> list[Any]:
    """Do the same in several threads; gives what each gave."""
    given: list[Any] = [None] * WORKERS
    barrier = threading.Barrier(WORKERS)

    def run(number: int) -> None:
        barrier.wait()
        given[number] = do(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


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


def in_processes(bench: Bench, do: Callable[[Backend, int], list[bytes]]) -> list[list[bytes]]:
    """Do the same in several processes, each with a backend of its own; gives what each gave."""
    answers: Any = FORKS.SimpleQueue()

    def run(number: int) -> None:
        backend = bench.open()
        answers.put(do(backend, number))
        backend.close()

    processes = [FORKS.Process(target=run, args=(number,)) for number in range(WORKERS)]
    for process in processes:
        process.start()
    given = [answers.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return given


def test_threads_get_each_message_once(bench: Bench, backend: Backend) -> None:
    messages = [b"%d" % number for number in range(100)]
    backend.apply(*(Step(None, Push(QUEUE, raw)) for raw in messages))

    def work(number: int) -> list[bytes]:
        try:
            return worked_off(backend)
        finally:
            backend.close()

    done = [raw for given in at_once(work) for raw in given]
    assert Counter(done) == Counter(messages)
    assert not drained(backend)


def test_processes_get_each_message_once(bench: Bench, backend: Backend) -> None:
    if not bench.shared:
        pytest.skip("it is of one process")

    def work(backend: Backend, number: int) -> list[bytes]:
        push(backend, *(b"%d of %d" % (n, number) for n in range(25)))
        return worked_off(backend)

    done = [raw for given in in_processes(bench, work) for raw in given]
    done += drained(backend)
    assert Counter(done) == Counter(b"%d of %d" % (n, m) for n in range(25) for m in range(WORKERS))


def test_a_forked_child_uses_the_backend_of_its_parent(bench: Bench, backend: Backend) -> None:
    if not bench.shared:
        pytest.skip("it is of one process")
    push(backend, b"of the parent")
    ours = started(backend)

    def child() -> None:
        push(backend, b"of the child")
        assert reserve(backend).raw_body == b"of the child"
        os._exit(7)

    process = FORKS.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 7
    apply(backend, ours, Renew(60))
    apply(backend, ours, Delete())
    push(backend, b"more")
    assert reserve(backend).raw_body == b"more"


def test_a_thread_may_settle_what_another_has_reserved(backend: Backend) -> None:
    needs(backend, Capability.AHEAD)
    push(backend, b"1")
    job = reserve(backend)

    def settle(number: int) -> bool:
        try:
            return tried(backend, job, Delete()).applied
        finally:
            backend.close()

    assert sorted(at_once(settle)) == [False, False, False, True]


def test_of_those_who_expect_the_same_one_writes(backend: Backend) -> None:
    needs(backend, Capability.FACTS)

    def lock(number: int) -> bool:
        try:
            result = tried(backend, None, Expect("lock", None), Set("lock", str(number)))
            return result.outcome is Outcome.APPLIED
        finally:
            backend.close()

    won = at_once(lock)
    assert won.count(True) == 1
    assert backend.read("lock") == [str(won.index(True))]


def test_everything_that_is_added_counts(backend: Backend) -> None:
    needs(backend, Capability.FACTS)

    def count(number: int) -> None:
        for _ in range(10):
            apply(backend, None, Add("n", 1), Add("m", 2))
        backend.close()

    at_once(count)
    assert backend.read("n", "m") == [str(10 * WORKERS), str(20 * WORKERS)]


def test_a_latch_is_complete_once(backend: Backend) -> None:
    needs(backend, Capability.FACTS)
    apply(backend, None, Open("latch", Push(QUEUE, b"then")))
    apply(backend, None, Extend("latch", WORKERS))
    apply(backend, None, Close("latch"))

    def arrive(number: int) -> None:
        apply(backend, None, Arrive("latch", number))
        backend.close()

    at_once(arrive)
    assert drained(backend) == [b"then"]


def test_a_failed_job_is_forgotten_by_one(backend: Backend) -> None:
    needs(backend, Capability.FACTS)
    apply(backend, None, Record(failed("u1")))

    def retry(number: int) -> bool:
        try:
            return tried(backend, None, Forget("u1"), Push(QUEUE, b"again")).applied
        finally:
            backend.close()

    won = at_once(retry)
    if Capability.JOINT in backend.capabilities:
        assert won.count(True) == 1
        assert drained(backend) == [b"again"]
    else:
        assert drained(backend)


@pytest.mark.parametrize("before", ["expired", "refused", "removed"])
def test_one_takes_what_nobody_holds_any_more(backend: Backend, before: str) -> None:
    """As locks are taken: where one has run out, was asked for in vain, or is just let go."""
    needs(backend, Capability.FACTS)
    for turn in range(20):
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

        def take(number: int, key: str = key) -> bool:
            try:
                if before == "removed" and not number:
                    backend.apply(Step(None, Unset(key, "old")))
                    return False
                me = str(number)
                for _ in range(50 if before == "removed" else 1):
                    (result,) = backend.apply(Step(None, Expect(key, None), Set(key, me)))
                    if result.applied or result.holds != "old":
                        return result.applied
                return False
            finally:
                backend.close()

        took = [number for number, ours in enumerate(at_once(take)) if ours]
        assert len(took) == 1 or (before == "removed" and not took)
        if took:
            assert backend.read(key) == [str(took[0])]
