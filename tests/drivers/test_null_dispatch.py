"""The null connection as the caller of dispatch sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qframe import ConfigurationError, Queueable, QueueManager, Unsupported, bulk, dispatch, manager
from qframe.contracts import FailedJob, History
from qframe.contracts.backend import Capability
from qframe.drivers.null import NullBackend

pytestmark = pytest.mark.usefixtures("fresh")


class Job(Queueable):
    connection = "null"

    def handle(self) -> None:
        raise AssertionError("it runs")


def test_what_is_dispatched_is_dropped() -> None:
    assert len(dispatch(Job()).delay(5).send()) == 36
    assert len(bulk([Job(), Job()])) == 2
    queue = manager.default().connection("null")
    assert queue.push_raw("not even JSON") == ""
    assert queue.capabilities is Capability.NONE


def test_what_it_cannot_do_it_says() -> None:
    queue = manager.default().connection("null")
    for call in (queue.size, queue.queues, queue.clear, queue.kick, lambda: queue.reserve(["q"])):
        with pytest.raises(Unsupported, match="the connection 'null'"):
            call()
    with pytest.raises(ConfigurationError, match="keeps no failed jobs"):
        manager.default().failed_store("null")


def test_failed_jobs_may_be_kept_nowhere(fresh: Path) -> None:
    queues = QueueManager({"root": str(fresh), "failed": {"driver": "null"}})
    store = queues.failed_store()
    assert isinstance(store.place, NullBackend)
    record = FailedJob("u", "database", "q", b"{}", "error", "name", 1, History(), 0)
    store.add(record)
    assert (store.find("u"), [*store.page()], store.count()) == (None, [], 0)
    assert (store.forget(record), store.flush()) == (False, 0)
