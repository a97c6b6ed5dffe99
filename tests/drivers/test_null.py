"""The null connection, and the failed store of that name."""

from __future__ import annotations

import pytest

from qframe import QueueManager
from qframe.contracts import FailedJob, History
from qframe.contracts.backend import Capability
from qframe.drivers.null import NullBackend
from tests.drivers.jobs import Told


@pytest.mark.usefixtures("own_root")
def test_what_is_pushed_is_dropped() -> None:
    queue = QueueManager({"default": "null"}).connection()
    Told.notes.clear()
    assert queue.capabilities is Capability.NONE
    assert queue.push(Told())
    assert queue.later(30, Told())
    assert queue.push_raw('{"uuid": "a"}') == "a"
    assert len(queue.bulk([Told(), Told()])) == 2
    assert Told.notes == []


@pytest.mark.usefixtures("own_root")
def test_the_null_failed_store_keeps_nothing() -> None:
    manager = QueueManager({"default": "sync", "failed": {"driver": "null"}})
    store = manager.failed_store()
    assert isinstance(store.place, NullBackend)
    store.add(FailedJob("a", "sync", "default", b"{}", "why", "x", 1, History(), 1.0))
    assert store.find("a") is None
    assert list(store.page()) == []
    assert (store.count(), store.flush(), store.forget("a")) == (0, 0, False)
