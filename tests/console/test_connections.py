from __future__ import annotations

from typing import Any

import pytest

from qframe import QueueManager
from qframe.console.connections import JobConnections, find_failed
from qframe.contracts import FailedJob, History
from qframe.drivers.failed_store import FailedStore

pytestmark = pytest.mark.usefixtures("fresh")

OTHER = {"other": {"driver": "database", "url": "sqlite:///other.sqlite3"}}


@pytest.fixture
def stores(fresh: Any) -> list[FailedStore]:
    queues = QueueManager({"connections": OTHER})
    return [queues.failed_store("database"), queues.failed_store("other")]


def add(store: FailedStore, uuid: str, queue: str = "default") -> None:
    store.add(FailedJob(uuid, "database", queue, b"{}", "error", "name", 1, History(), 1e9))


def test_a_store_shared_by_connections_is_taken_once() -> None:
    same = {**OTHER["other"], "url": "sqlite:///qframe.sqlite3"}
    queues = QueueManager(
        {"connections": {"database": {}, **OTHER, "same": same}, "failed": {"driver": "database"}}
    )
    (store,) = JobConnections(queues, None).failed_stores()
    assert store.place is queues.failed_store("other").place
    apart = QueueManager({"connections": {"database": {}, **OTHER}})
    assert len(JobConnections(apart, None).failed_stores()) == 2
    assert len(JobConnections(apart, "other").failed_stores()) == 1


def test_everything_is_given_latest_first_over_all_pages(stores: list[FailedStore]) -> None:
    for number in range(401):
        add(stores[0], f"u-{number}", "even" if number % 2 == 0 else "odd")
    found = [record.uuid for record in stores[0].all()]
    assert found == [f"u-{number}" for number in reversed(range(401))]
    odd = [record.uuid for record in stores[0].all("odd")]
    assert odd == [f"u-{number}" for number in reversed(range(1, 401, 2))]
    assert [*stores[1].all()] == []


def test_records_may_be_removed_while_they_are_gone_through(stores: list[FailedStore]) -> None:
    for number in range(250):
        add(stores[0], f"u-{number}")
    seen = []
    for record in stores[0].all():
        seen.append(record.uuid)
        if len(seen) % 50 == 0:
            stores[0].forget(record)
    assert seen == [f"u-{number}" for number in reversed(range(250))]


def test_one_is_found_with_the_store_it_is_in(stores: list[FailedStore]) -> None:
    add(stores[1], "u-1")
    found = find_failed(stores, "u-1")
    assert found is not None
    assert (found[0], found[1].uuid) == (stores[1], "u-1")
    assert find_failed(stores, "u-2") is None
