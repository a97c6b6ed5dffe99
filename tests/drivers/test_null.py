"""The null connection, and the failed store of that name."""

from __future__ import annotations

import fcntl
import os
import resource
import time

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
    record = FailedJob("a", "sync", "default", b"{}", "why", "x", 1, History(), 1.0)
    store.add(record)
    assert store.find("a") is None
    assert list(store.page()) == []
    assert (store.count(), store.flush(), store.forget(record)) == (0, 0, False)


def test_a_wait_is_woken_by_a_descriptor_of_any_number() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
        pytest.skip("this process may not have so many files")
    ours, theirs = os.pipe()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD, 1500)
    os.write(theirs, b"\0")
    began = time.monotonic()
    NullBackend().wait(["q"], 60, high)
    assert time.monotonic() - began < 30
    for each in (ours, theirs, high):
        os.close(each)
