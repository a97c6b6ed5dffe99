"""Failed records: kept with the end of a job, listed, forgotten once."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Delete, Forget, Outcome, Push, Record, Result, Set
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    failed,
    needs,
    needs_lapse,
    push,
    started,
    tried,
)


@pytest.fixture(autouse=True)
def able(backend: Backend) -> None:
    needs(backend, Capability.FACTS)


def test_a_record_is_read_as_it_was_written(backend: Backend, other: Backend) -> None:
    record = failed("u1")
    apply(backend, None, Record(record))
    assert other.find_failed("u1") == record
    assert other.list_failed() == [record]
    assert other.count_failed() == 1
    assert other.find_failed("u2") is None


def test_one_of_the_same_uuid_is_replaced(backend: Backend) -> None:
    apply(backend, None, Record(failed("u1", at=1)))
    apply(backend, None, Record(failed("u2", at=2)))
    again = failed("u1", "other", at=3)
    apply(backend, None, Record(again))
    assert backend.count_failed() == 2
    assert [each.uuid for each in backend.list_failed()] == ["u1", "u2"]
    assert backend.find_failed("u1") == again


def test_the_last_are_listed_first_in_pages(backend: Backend) -> None:
    records = [failed(f"u{n}", "even" if n % 2 == 0 else "odd", at=n + 0.5) for n in range(6)]
    for record in records:
        apply(backend, None, Record(record))
    latest = records[::-1]
    assert backend.list_failed() == latest
    assert backend.list_failed(2) == latest[:2]
    assert backend.list_failed(2, after="u4") == latest[2:4]
    assert backend.list_failed(queue="odd") == [each for each in latest if each.queue == "odd"]
    assert [each.uuid for each in backend.list_failed(1, "u4", "even")] == ["u2"]
    assert backend.list_failed(after="u0") == []
    assert backend.list_failed(after="none") == []


def test_the_record_and_the_end_of_the_job_are_one_step(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    needs_lapse(bench)
    push(backend, b"1")
    late = started(backend, lease=bench.seconds(60))
    bench.pass_time(70)
    job = started(other)
    assert tried(backend, late, Record(failed("u1")), Delete()).lost
    assert backend.count_failed() == 0
    apply(other, job, Record(failed("u1")), Delete())
    assert backend.count_failed() == 1
    bench.pass_time(200)
    assert not drained(backend)


def test_the_record_of_a_later_failure_is_not_forgotten(backend: Backend) -> None:
    apply(backend, None, Record(failed("u1", at=1.25)))
    apply(backend, None, Record(failed("u1", at=2.5)))
    stale = tried(backend, None, Forget("u1", 1.25), Push(QUEUE, b"retried"))
    assert stale == Result(Outcome.REFUSED, "u1")
    assert backend.count_failed() == 1
    apply(backend, None, Forget("u1", 2.5))
    assert (backend.count_failed(), drained(backend)) == (0, [])


def test_a_record_is_forgotten_once(backend: Backend, other: Backend) -> None:
    apply(backend, None, Record(failed("u1")))
    apply(backend, None, Forget("u1"), Push(QUEUE, b"retried"))
    result = tried(other, None, Forget("u1"), Push(QUEUE, b"retried"), Set("key", "value"))
    assert result == Result(Outcome.REFUSED, "u1")
    assert backend.find_failed("u1") is None
    assert backend.read("key") == [None]
    assert drained(backend) == [b"retried"]
