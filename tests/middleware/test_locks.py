"""A lock is held by one, renewed while it is held, and free soon after its holder has died."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from qframe import QueueManager
from qframe.contracts.step import Result, Step
from qframe.drivers import heartbeat
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.middleware.locks import Lock, age
from tests.support.process import wait_for


class Flaky(MemoryBackend):
    """A backend that stops answering when told to; counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.cut = False
        self.asked = 0
        self.slow = threading.Event()
        self.slow.set()
        self.began = threading.Event()

    def apply(self, *steps: Step) -> list[Result]:
        self.asked += 1
        self.began.set()
        self.slow.wait(60)
        if self.down:
            raise BackendUnavailable("it is down")
        results = super().apply(*steps)
        if self.cut:
            raise BackendUnavailable("the answer was lost")
        return results


@pytest.fixture
def backend() -> Flaky:
    return Flaky()


@pytest.fixture
def store(backend: Flaky) -> Store:
    return Store(backend)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Store]:
    """Give a store that other processes have, too."""
    settings = {"driver": "database", "url": f"sqlite:///{tmp_path}/jobs.sqlite3"}
    manager = QueueManager({"default": "here", "connections": {"here": settings}})
    yield manager.connection("here").store
    manager.close()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert _renewed() == 0


def _renewed() -> int:
    """Count the locks that are renewed; connections of other tests have beats, too."""
    actions = [beat.action for beat in heartbeat.current()._beats]
    return sum(isinstance(getattr(each, "__self__", None), Lock) for each in actions)


def _holder(lock: Lock) -> str | None:
    return lock._store.get(lock.name)[0]


def _lock(store: Store, owner: str = "job:1", lease: float = 1) -> Lock:
    return Lock(store, "overlap:test", owner, lease)


class TestOne:
    def test_is_taken_by_one_and_freed_by_it_alone(self, store: Store) -> None:
        mine, other = _lock(store), _lock(store)
        assert mine.take()
        assert not other.take()
        assert other.holder == mine.owner != other.owner
        assert 0 <= age(other.holder) < 60
        other.release()
        assert _holder(other) == mine.owner
        mine.release()
        assert _holder(mine) is None
        assert other.take()
        other.release()

    def test_is_taken_over_from_the_holder_it_names(self, store: Store) -> None:
        dead, mine = _lock(store), _lock(store, "job:2")
        dead.take()
        assert not mine.take("somebody else")
        assert mine.take(dead.owner)
        assert _holder(mine) == mine.owner
        dead.release()
        assert _holder(mine) == mine.owner
        mine.release()

    def test_is_renewed_far_beyond_its_lease_and_no_more_when_released(
        self, store: Store, backend: Flaky
    ) -> None:
        mine = _lock(store, lease=3)
        mine.take()
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            assert _holder(mine) == mine.owner
            time.sleep(0.05)
        mine.release()
        assert _holder(mine) is None
        asked = backend.asked
        assert 3 <= asked <= 14
        time.sleep(1.2)
        assert backend.asked == asked

    def test_of_a_killed_process_is_free_within_its_lease(self, shared: Store) -> None:
        process = get_context("fork").Process(target=_hold_for_ever, args=(shared,))
        process.start()
        mine = _lock(shared)
        try:
            wait_for(lambda: _holder(mine) is not None, "the other to hold it")
            time.sleep(4)
            assert _holder(mine) is not None, "it was not renewed"
        finally:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        died = time.monotonic()
        wait_for(mine.take, "the lock to be free")
        assert time.monotonic() - died < 30
        mine.release()

    def test_a_forked_child_neither_renews_nor_releases_it(self, store: Store) -> None:
        mine = _lock(store)
        mine.take()
        process = get_context("fork").Process(target=_release_in_child, args=(mine,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert _holder(mine) == mine.owner
        mine.release()


def _hold_for_ever(store: Store) -> None:
    assert _lock(store, lease=3).take()
    time.sleep(60)


def _release_in_child(lock: Lock) -> None:
    lock.release()
    os._exit(_renewed())


class TestTrouble:
    def test_one_that_was_lost_is_said_once_and_renewed_no_more(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = _lock(store)
        mine.take()
        store.set(mine.name, "a thief")
        wait_for(lambda: "was lost" in caplog.text, "the loss to be said")
        assert [r.levelno for r in caplog.records if "was lost" in r.message] == [logging.ERROR]
        mine.release()
        assert _holder(mine) == "a thief"

    def test_one_that_ran_out_is_taken_again(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = _lock(store)
        mine.take()
        store.delete(mine.name)
        wait_for(lambda: _holder(mine) == mine.owner, "it to be taken again")
        wait_for(lambda: "taken again" in caplog.text, "the log")
        mine.release()
        assert _holder(mine) is None

    def test_a_store_that_does_not_answer_is_asked_again(
        self, store: Store, backend: Flaky, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = backend
        mine = _lock(store)
        mine.take()
        bad.down = True
        wait_for(lambda: bad.asked >= 3, "two tries to renew")
        bad.down = False
        asked = bad.asked
        wait_for(lambda: bad.asked > asked, "another try")
        wait_for(lambda: _holder(mine) == mine.owner, "it to be held")
        assert "could not be renewed: it is down" in caplog.text
        bad.down = True
        mine.release()
        assert "is free in 1 s: it is down" in caplog.text

    def test_one_whose_taking_failed_half_way_is_freed(self, store: Store, backend: Flaky) -> None:
        mine = _lock(store)
        backend.cut = True
        with pytest.raises(BackendUnavailable):
            mine.take()
        backend.cut = False
        assert _holder(mine) == mine.owner
        mine.release()
        assert _holder(mine) is None

    def test_a_renewal_under_way_does_not_put_a_released_one_back(
        self, store: Store, backend: Flaky
    ) -> None:
        mine = _lock(store)
        mine.take()
        backend.began.clear()
        backend.slow.clear()
        assert backend.began.wait(60)
        releasing = threading.Thread(target=mine.release)
        releasing.start()
        backend.slow.set()
        releasing.join()
        assert _holder(mine) is None


@pytest.mark.parametrize("holder", ["", "somebody", "me:1:x-y", "me:1:nan-1", "me:1:9e99-1"])
def test_an_owner_that_does_not_say_since_when_has_it_since_now(holder: str) -> None:
    assert age(holder) == 0
