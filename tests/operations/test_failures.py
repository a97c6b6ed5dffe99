"""The index of failures: right after any mixture of failing, retrying and forgetting."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qframe import QueueManager
from qframe.contracts import FailedJob, History
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.memory.backend import MemoryBackend
from qframe.failed.filters import Filter
from qframe.failed.retry import retry
from qframe.operations import failures
from qframe.operations.board import Board
from qframe.operations.failures import FailureIndex
from qframe.payload.timing import iso


def record(number: int, kind: int, at: float = 0.0) -> FailedJob:
    return FailedJob(
        uuid=f"u-{number}",
        connection="memory",
        queue=f"q{number % 2}",
        payload=b"{}",
        exception=f"Kind{kind}: {number}",
        name="app.A",
        attempts=1,
        history=History(),
        failed_at=at or 1_000_000.0 + number,
    )


def seen(index: FailureIndex) -> dict[str, int]:
    return {each.cause.error: each.count for each in index.causes()}


def settled(index: FailureIndex) -> None:
    """Refresh until nothing is to be read."""
    for _ in range(50):
        index.refresh()
        if index.is_complete and index.counted == index.total:
            return
    raise AssertionError(f"{index.counted} of {index.total}")


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "own", "refresh"]), st.integers(0, 30)), max_size=40
)


@settings(max_examples=60)
@given(steps=STEPS)
def test_it_knows_what_is_there(steps: list[tuple[str, int]]) -> None:
    store = FailedStore(MemoryBackend())
    index = FailureIndex(store)
    there: dict[str, FailedJob] = {}
    for count, (step, number) in enumerate(steps):
        uuid = f"u-{number}"
        if step == "add" and uuid not in there:
            there[uuid] = record(number, number % 3, 1_000_000.0 + count)
            store.add(there[uuid])
        elif step == "refresh":
            index.refresh()
        elif step in {"remove", "own"}:
            if uuid in there:
                store.forget(there.pop(uuid))
            if step == "own":
                index.forget(uuid)
    settled(index)
    kinds = [int(uuid.removeprefix("u-")) % 3 for uuid in there]
    assert seen(index) == {f"Kind{kind}: *": n for kind, n in Counter(kinds).items()}
    assert {uuid for each in index.causes() for uuid in index.of_cause(each.cause.key)} == {*there}


def test_what_replaces_another_of_its_uuid_is_counted_under_its_own_cause() -> None:
    store = FailedStore(MemoryBackend())
    index = FailureIndex(store)
    store.add(record(1, 0))
    settled(index)
    store.add(record(1, 1, 2_000_000.0))
    settled(index)
    assert seen(index) == {"Kind1: *": 1}


def test_many_are_read_in_steps_and_the_newest_are_kept() -> None:
    store = FailedStore(MemoryBackend())
    for number in range(3000):
        store.add(record(number, number % 2))
    index = FailureIndex(store)
    index.refresh(0)
    assert (index.counted, index.total, index.is_complete) == (100, 3000, False)
    settled(index)
    assert seen(index) == {"Kind0: *": 1500, "Kind1: *": 1500}
    few = FailureIndex(store, most=1000)
    few.refresh(60)
    assert (few.counted, few.total, few.is_complete) == (1000, 3000, True)
    few.refresh(60)
    assert few.counted == 1000
    assert (
        min(int(uuid[2:]) for key in few.causes() for uuid in few.of_cause(key.cause.key)) == 2000
    )


def test_a_filter_is_looked_for_in_pages() -> None:
    store = FailedStore(MemoryBackend())
    for number in range(5000):
        store.add(record(number, number % 2))
    index = FailureIndex(store)
    chosen = Filter("error:Kind1 queue:q1 uuid:u-*7")
    found: list[str] = []
    after, pages = "", 0
    while True:
        page = failures.listing(index, chosen, after, 30)
        assert page.looked_at <= failures.LOOKED_AT
        found += [each.uuid for each in page.found]
        pages += 1
        after = page.after
        if not after:
            break
    assert found == [f"u-{number}" for number in range(4999, -1, -1) if number % 10 == 7]
    assert pages > 10


def test_a_cause_whose_jobs_were_all_retried_is_not_new_when_it_comes_again(
    fresh: Path, backend: dict[str, Any]
) -> None:
    used = {"database": {"driver": "database"}, backend["driver"]: backend}
    name, *_ = reversed(used)
    queues = QueueManager({"default": name, "connections": used, "root": fresh})
    store, now, raw = queues.failed_store(name), time.time(), b'{"uuid": "u-%d"}'
    days = [4, 9, 6]
    for number, ago in enumerate(days):
        old = record(number, 0, now - ago * 86400)
        store.add(dataclasses.replace(old, connection=name, payload=raw % number))
    for each in store.page(9):
        assert retry(queues, store, each)
    assert store.count() == 0
    for number, kind in ((7, 0), (8, 1)):
        store.add(record(number, kind, now))
    causes = {each.error: each for each in Board(queues).failed.summary().causes}
    known, new = causes["Kind0: *"], causes["Kind1: *"]
    assert (known.count, known.first_at) == (1, iso(round(now - 9 * 86400, 3)))
    assert (known.is_new, new.is_new) == (False, True)
