"""A lock is held by one, renewed while it is held, and free soon after its holder has died."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager
from qframe.contracts import Store
from qframe.exceptions import BackendUnavailable
from qframe.middleware.locks import Lock
from qframe.middleware.renewals import Renewals, renewals
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["database", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        settings = {"driver": "redis", "url": server.url}
    else:
        settings = {"driver": "database", "url": f"sqlite:///{tmp_path}/jobs.sqlite3"}
    manager = QueueManager({"default": "here", "connections": {"here": settings}})
    yield manager.store("here")
    manager.close()


class Unreachable:
    """A store that stops answering when told to; counts what it is asked to renew."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = False
        self.swaps = 0

    def get(self, *keys: str) -> list[str | None]:
        return self.store.get(*keys)

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        return self.store.add(key, value, ttl)

    def delete(self, key: str, value: str | None = None) -> bool:
        if self.down:
            raise BackendUnavailable("it is down")
        return self.store.delete(key, value)

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        self.swaps += 1
        if self.down:
            raise BackendUnavailable("it is down")
        return self.store.swap(changes, ttl)


def _lock(store: Any, owner: str = "job:1", lease: float = 1) -> Lock:
    return Lock(store, "overlap:test", owner, lease)


class TestOne:
    def test_is_taken_by_one_and_freed_by_it_alone(self, store: Store) -> None:
        mine, other = _lock(store), _lock(store)
        assert mine.take()
        assert not other.take()
        assert other.holder() == mine.owner != other.owner
        other.release()
        assert other.holder() == mine.owner
        mine.release()
        assert mine.holder() is None
        assert other.take()
        other.release()

    def test_is_taken_over_from_the_holder_it_names(self, store: Store) -> None:
        dead, mine = _lock(store), _lock(store, "job:2")
        dead.take()
        assert not mine.take_over("somebody else")
        assert mine.take_over(dead.owner)
        assert mine.holder() == mine.owner
        dead.release()
        assert mine.holder() == mine.owner
        mine.release()

    def test_is_renewed_far_beyond_its_lease_and_no_more_when_released(self, store: Store) -> None:
        counted = Unreachable(store)
        mine = _lock(counted)
        mine.take()
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert mine.holder() == mine.owner
            time.sleep(0.05)
        mine.release()
        assert mine.holder() is None
        swaps = counted.swaps
        assert 3 <= swaps <= 12
        time.sleep(0.7)
        assert counted.swaps == swaps
        assert not renewals._kept

    def test_of_a_killed_process_is_free_within_its_lease(self, store: Store) -> None:
        process = get_context("fork").Process(target=_hold_for_ever, args=(store,))
        process.start()
        mine = _lock(store)
        try:
            wait_for(lambda: mine.holder() is not None, "the other to hold it")
            time.sleep(1.5)
            assert mine.holder() is not None, "it was not renewed"
        finally:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        died = time.monotonic()
        wait_for(mine.take, "the lock to be free")
        assert time.monotonic() - died < 2
        mine.release()

    def test_a_forked_child_neither_renews_nor_releases_it(self, store: Store) -> None:
        mine = _lock(store)
        mine.take()
        process = get_context("fork").Process(target=_release_in_child, args=(mine,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert mine.holder() == mine.owner
        mine.release()


def _hold_for_ever(store: Store) -> None:
    assert _lock(store).take()
    time.sleep(60)


def _release_in_child(lock: Lock) -> None:
    lock.release()
    os._exit(bool(renewals._kept))


class TestTrouble:
    def test_one_that_was_lost_is_said_once_and_renewed_no_more(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = _lock(store)
        mine.take()
        store.set(mine.name, "a thief")
        wait_for(lambda: "was lost" in caplog.text, "the loss to be said")
        assert not renewals._kept
        assert [r.levelno for r in caplog.records if "was lost" in r.message] == [logging.ERROR]
        mine.release()
        assert mine.holder() == "a thief"

    def test_one_that_ran_out_is_taken_again(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = _lock(store)
        mine.take()
        store.delete(mine.name)
        wait_for(lambda: mine.holder() == mine.owner, "it to be taken again")
        wait_for(lambda: "taken again" in caplog.text, "the log")
        mine.release()
        assert mine.holder() is None

    def test_a_store_that_does_not_answer_is_asked_again(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = Unreachable(store)
        mine = _lock(bad)
        mine.take()
        bad.down = True
        wait_for(lambda: bad.swaps >= 2, "two tries to renew")
        bad.down = False
        swaps = bad.swaps
        wait_for(lambda: bad.swaps > swaps, "another try")
        wait_for(lambda: mine.holder() == mine.owner, "it to be held")
        assert "could not be renewed: it is down" in caplog.text
        bad.down = True
        mine.release()
        assert "is free in 1 s: it is down" in caplog.text
        assert not renewals._kept

    def test_one_whose_taking_failed_half_way_is_freed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = type(store).add

        def lost_answer(*args: Any) -> bool:
            add(*args)
            raise BackendUnavailable("the answer was lost")

        monkeypatch.setattr(type(store), "add", lost_answer)
        mine = _lock(store)
        with pytest.raises(BackendUnavailable):
            mine.take()
        assert mine.holder() == mine.owner
        mine.release()
        assert mine.holder() is None

    def test_a_renewal_under_way_does_not_put_a_released_one_back(self, store: Store) -> None:
        began, go_on = threading.Event(), threading.Event()

        class Slow(Unreachable):
            def swap(self, *args: Any) -> bool:
                began.set()
                go_on.wait(10)
                return super().swap(*args)

        mine = _lock(Slow(store))
        mine.take()
        assert began.wait(10)
        releasing = threading.Thread(target=mine.release)
        releasing.start()
        go_on.set()
        releasing.join()
        assert mine.holder() is None


class Counted:
    """Something to be renewed each 50 ms."""

    def __init__(self, *, raises: bool = False) -> None:
        self.due = time.monotonic() + 0.05
        self.renewed = 0
        self._raises = raises

    def renew(self) -> None:
        self.renewed += 1
        if self._raises:
            raise RuntimeError("a bug")
        self.due = time.monotonic() + 0.05


class TestRenewals:
    def test_one_that_raises_keeps_no_other_from_being_renewed(self) -> None:
        kept, good, bad = Renewals(), Counted(), Counted(raises=True)
        kept.keep(bad)
        kept.keep(good)
        wait_for(lambda: good.renewed >= 5 and bad.renewed, "both to be renewed")
        kept.drop(good)
        kept.drop(bad)

    def test_one_due_sooner_than_the_next_look_wakes_it(self) -> None:
        kept, late = Renewals(), Counted()
        late.due = time.monotonic() + 100
        kept.keep(late)
        wait_for(lambda: kept._next > time.monotonic() + 50, "it to wait for long")
        soon = Counted()
        kept.keep(soon)
        wait_for(lambda: soon.renewed, "the renewal")
        kept.drop(soon)
        kept.drop(late)

    def test_with_nothing_to_renew_it_sleeps_and_holds_nothing(self) -> None:
        kept, one = Renewals(), Counted()
        kept.keep(one)
        kept.drop(one)
        wait_for(lambda: kept._next == float("inf"), "it to wait without end")
        kept.keep(one)
        wait_for(lambda: one.renewed, "it to wake")
        kept.drop(one)
        assert not kept._kept
