from __future__ import annotations

import dataclasses
import json
import math
import time

import pytest

from qframe import ConfigurationError, QueueManager, events
from qframe.contracts import FailedJob, History
from qframe.contracts.step import Push, Result, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.failed.retry import renewed, retry

pytestmark = pytest.mark.usefixtures("fresh")


def record(raw: bytes = b'{"uuid": "u-1"}', connection: str = "database") -> FailedJob:
    return FailedJob("u-1", connection, "emails", raw, "error", "name", 3, History(), time.time())


def test_what_needs_no_change_keeps_its_bytes() -> None:
    for raw in (
        b'{"uuid": "u-1", "data": {"a" : 0.10}}',
        b'{"attempts": 0, "retryUntil": null}',
        b'{"retryUntil": 5}',
        b"not JSON",
        b"\xff",
        b"[1]",
        b"",
    ):
        assert renewed(raw) is raw


def test_attempts_begin_anew() -> None:
    assert json.loads(renewed(b'{"uuid": "u", "attempts": 7}')) == {"uuid": "u", "attempts": 0}


def test_deadlines_are_as_far_away_as_they_were_at_dispatch() -> None:
    raw = b'{"createdAt": 1000, "retryUntil": 1060, "expiresAt": 1500.5, "timeout": 5}'
    message = json.loads(renewed(raw))
    now = time.time()
    assert message["retryUntil"] == pytest.approx(now + 60, abs=2)
    assert message["expiresAt"] == pytest.approx(now + 500.5, abs=2)
    assert message["createdAt"] == pytest.approx(now, abs=2)
    assert message["timeout"] == 5


def test_a_deadline_before_its_dispatch_is_now() -> None:
    message = json.loads(renewed(b'{"createdAt": 1000, "retryUntil": 900}'))
    assert message["retryUntil"] == pytest.approx(time.time(), abs=2)


def test_the_rest_arrives_exactly() -> None:
    data = {"i": 2**80, "f": 0.1, "e": [], "m": {}, "t": "ü😀\u2028", "n": None, "z": -0.0}
    message = json.loads(renewed(json.dumps({"attempts": 1, "data": data}).encode()))
    assert message["data"] == data
    assert math.copysign(1, message["data"]["z"]) == -1


def test_retry_moves_a_record_and_tells_the_listeners() -> None:
    heard: list[events.JobRetryRequested] = []
    events.listen(events.JobRetryRequested)(heard.append)
    queues = QueueManager()
    store = queues.failed_store()
    failed = record()
    store.add(failed)
    assert retry(queues, store, failed) is True
    assert retry(queues, store, failed) is False
    assert store.count() == 0
    assert queues.connection().size("emails") == 1
    assert (heard[0].uuid, heard[0].connection, heard[0].queue) == ("u-1", "database", "emails")


def test_a_record_of_a_connection_that_is_gone_stays() -> None:
    queues = QueueManager()
    store = queues.failed_store()
    store.add(record(connection="gone"))
    with pytest.raises(ConfigurationError, match="unknown connection 'gone'"):
        retry(queues, store, record(connection="gone"))
    assert store.count() == 1


def test_a_record_kept_in_another_database_is_pushed_then_removed() -> None:
    queues = QueueManager(
        {
            "connections": {"other": {"driver": "database", "url": "sqlite:///other.sqlite3"}},
            "failed": {"driver": "other"},
        }
    )
    store = queues.failed_store("database")
    failed = record()
    store.add(failed)
    assert retry(queues, store, failed) is True
    assert store.count() == 0
    assert queues.connection("database").size("emails") == 1
    assert queues.connection("other").size("emails") == 0


@pytest.mark.parametrize("apart", ["failed jobs", "messages and facts"])
def test_a_job_that_fails_anew_before_the_retry_ends_stays_in_the_list(
    apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker may be faster than who retries it and then removes the old record."""
    other = {"driver": "database", "url": "sqlite:///other.sqlite3"}
    place = {"failed": {"driver": "other"}}
    if apart == "messages and facts":
        place["store"] = {"driver": "other"}
    queues = QueueManager({"connections": {"other": other}, **place})
    connection = queues.connection("database")
    store = connection.failed
    first = record()
    store.add(first)
    anew = dataclasses.replace(first, failed_at=first.failed_at + 1)
    apply = DatabaseBackend.apply

    def apply_and_fail(backend: DatabaseBackend, *steps: Step) -> list[Result]:
        results = apply(backend, *steps)
        if any(isinstance(each, Push) for step in steps for each in step.operations):
            store.add(anew)
        return results

    monkeypatch.setattr(DatabaseBackend, "apply", apply_and_fail)
    assert retry(queues, store, first) is True
    assert connection.size("emails") == 1
    assert [each.failed_at for each in store.all()] == [pytest.approx(anew.failed_at)]
    assert retry(queues, store, first) is False, "that of the first failure is gone"
    assert connection.size("emails") == 1
