"""The sync connection: jobs run in the caller, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from qframe import QueueManager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError, JobFailedByHand, Unsupported
from tests.drivers.jobs import Broken, Curious, Settling, Skipped, Told


@pytest.fixture
def queue(own_root: None) -> Iterator[Connection]:
    Told.notes.clear()
    yield QueueManager({"default": "sync"}).connection()
    Told.notes.clear()


def test_nothing_waits_on_it(queue: Connection) -> None:
    assert queue.capabilities == Capability.FACTS


def test_a_push_runs_the_job_and_gives_its_id(queue: Connection) -> None:
    assert queue.push(Told(number=1))
    assert Told.notes == [1]
    assert len(queue.bulk([Told(number=2), Told(number=3)])) == 2
    assert Told.notes == [1, 2, 3]


def test_the_job_knows_where_it_runs(queue: Connection) -> None:
    queue.push(Curious(), "emails")
    assert Told.notes == [("emails", "sync", 1)]


def test_an_exception_reaches_the_caller_after_failed(queue: Connection) -> None:
    with pytest.raises(ValueError, match="broken") as caught:
        queue.push(Broken())
    assert Told.notes == [caught.value]


def test_a_skipped_job_is_no_failure(queue: Connection) -> None:
    assert queue.push(Skipped())
    assert Told.notes == []


def test_a_delay_is_ignored_with_one_warning(
    queue: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "qframe"):
        queue.later(30, Told(number=1))
        queue.later(30, Told(number=2))
    assert Told.notes == [1, 2]
    assert [record.message for record in caplog.records if "delay" in record.message] == [
        "the connection 'sync' keeps no jobs: a delay is ignored"
    ]


@pytest.mark.parametrize("method", ["release", "bury"])
def test_it_cannot_come_back(queue: Connection, method: str) -> None:
    with pytest.raises(Unsupported):
        queue.push(Settling(method=method))


@pytest.mark.parametrize("method", ["delete", "renew"])
def test_it_can_be_deleted_and_renewed(queue: Connection, method: str) -> None:
    queue.push(Settling(method=method))
    assert Told.notes == [method]


def test_failed_by_hand_the_error_reaches_the_caller(queue: Connection) -> None:
    with pytest.raises(JobFailedByHand):
        queue.push(Settling(method="fail"))


def test_bytes_cannot_be_run(queue: Connection) -> None:
    with pytest.raises(Unsupported, match="raw payloads"):
        queue.push_raw("{}")


def test_nothing_is_recorded(queue: Connection) -> None:
    assert queue.failed.count() == 0
    with pytest.raises(ConfigurationError, match="keeps no failed jobs"):
        QueueManager({"default": "sync"}).failed_store()
