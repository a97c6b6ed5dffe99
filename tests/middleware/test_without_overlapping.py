"""What WithoutOverlapping takes, what its locks are called, and how it waits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import JobDefinitionError, Queueable, QueueManager, Secret, manager
from qframe.contracts.history import History, PastAttempt
from qframe.drivers import heartbeat
from qframe.drivers.store import Store
from qframe.exceptions import InvalidJob, LimitReached
from qframe.middleware import WithoutOverlapping, store_of
from qframe.middleware.locks import Lock

UUID = uuid.UUID("00000000-0000-0000-0000-000000000007")


class Plain(Queueable):
    account: int = 7

    def handle(self) -> str:
        return "ran"


class Locked(Plain):
    middleware = (WithoutOverlapping(lambda job: job.account),)


def run(job: Queueable) -> str:
    assert isinstance(job, Plain)
    return job.handle()


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[QueueManager]:
    made = QueueManager(
        {
            "default": "here",
            "store": {"driver": "here"},
            "connections": {
                "here": {"driver": "database", "url": f"sqlite:///{tmp_path}/jobs.sqlite3"}
            },
        }
    )
    manager.use(made)
    yield made
    manager.use(None)
    made.close()


class Reserved:
    """A reserved job, as far as the middleware looks at it."""

    def __init__(self, attempts: int = 1, ended: tuple[str, ...] = (), releases: int = 0) -> None:
        self.uuid = "me"
        self.connection_name = "here"
        self.released: list[float] = []
        self._attempts = attempts
        past = tuple(PastAttempt(n, "host", 1, 0.0, how) for n, how in enumerate(ended, 1))
        self.history = History(past, releases=releases)

    def attempts(self) -> int:
        return self._attempts

    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        self.released.append(delay)


def _reserved(job: Queueable, **facts: Any) -> Reserved:
    reserved = Reserved(**facts)
    object.__setattr__(job, "_reserved", reserved)
    return reserved


def _held(job: Queueable, middleware: WithoutOverlapping, owner: str = "other:1") -> Lock:
    lock = Lock(store_of(job), middleware.name_for(job), owner, 5)
    assert lock.take()
    return lock


@pytest.mark.parametrize(
    ("key", "given", "name"),
    [
        (None, {}, "Plain"),
        ("a", {}, "Plain::a"),
        (7, {}, "Plain::7"),
        (UUID, {}, f"Plain::{UUID}"),
        (lambda job: job.account, {}, "Plain::7"),
    ],
)
def test_a_lock_is_named_by_class_and_key(key: Any, given: dict[str, bool], name: str) -> None:
    found = WithoutOverlapping(key, **given).name_for(Plain())
    assert found.startswith("overlap:")
    assert found.endswith(name)


class Sealed(Plain):
    encrypted = True


class Hidden(Plain):
    word: Secret[str] = Secret("w")
    encrypted = False


@pytest.mark.parametrize("kind", [Sealed, Hidden])
def test_the_key_of_a_job_with_something_to_hide_is_hashed(kind: type[Plain]) -> None:
    names = {WithoutOverlapping(key).name_for(kind()) for key in ("ann@private", "ben@private")}
    assert len(names) == 2
    assert not any("private" in name for name in names)
    assert all(f"{kind.__name__}::" in name for name in names)
    assert WithoutOverlapping(lambda job: job.account).name_for(kind()) == WithoutOverlapping(
        "7"
    ).name_for(kind())
    assert WithoutOverlapping().name_for(kind()).endswith(kind.__name__)


@pytest.mark.parametrize("kind", [Sealed, Hidden])
def test_a_shared_lock_is_the_same_for_all_classes(kind: type[Plain]) -> None:
    shared = WithoutOverlapping("private", shared=True)
    assert shared.name_for(kind()) == shared.name_for(Plain())
    assert "private" not in shared.name_for(Plain())
    assert shared.name_for(kind()) != WithoutOverlapping("b", shared=True).name_for(kind())


def test_what_a_store_may_not_keep_is_hashed() -> None:
    names = {
        WithoutOverlapping(key).name_for(Plain()) for key in ("x" * 500, "x" * 501, "a\0", "é")
    }
    assert len(names) == 4
    assert all(len(name) < 100 and name.isascii() and name.isprintable() for name in names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": 1.5}, "must be text, a number or a UUID"),
        ({"key": True}, "must be text, a number or a UUID"),
        ({"shared": True}, "a shared lock needs a key"),
        ({"release": 1, "dont_release": True}, "not both"),
        ({"release": -1}, "release must not be negative"),
        ({"release": "soon"}, "release must be seconds"),
        ({"lease": 0.5}, "lease must be at least 1 s"),
        ({"lease": float("nan")}, "lease must not be negative or infinite"),
    ],
)
def test_what_it_does_not_take(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(JobDefinitionError, match=said) as error:
        WithoutOverlapping(**arguments)
    assert str(error.value).startswith("WithoutOverlapping")


def _nothing(job: Queueable) -> Any:
    return None


def test_a_function_that_gives_no_key_fails_the_attempt_by_name() -> None:
    with pytest.raises(InvalidJob, match="Plain: the function given to WithoutOverlapping"):
        WithoutOverlapping(_nothing)(Plain(), run)


def test_in_its_caller_it_runs_alone_or_says_so() -> None:
    assert Locked.dispatch_sync() == "ran"
    lock = _held(Locked(), Locked.middleware[0])
    with pytest.raises(LimitReached, match="another job holds the lock overlap:"):
        Locked.dispatch_sync()
    assert Locked.dispatch_sync(account=8) == "ran"
    lock.release()
    assert Locked.dispatch_sync() == "ran"
    assert not heartbeat.current()._beats


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_lock_is_free_after_an_error(error: type[BaseException]) -> None:
    job, once = Plain(), WithoutOverlapping()

    def fails(job: Queueable) -> None:
        raise error

    with pytest.raises(error):
        once(job, fails)
    _held(job, once).release()


class TestTheWait:
    def _delays(self, held_for: float) -> list[float]:
        once, found = WithoutOverlapping(), []
        lock = Lock(store_of(Plain()), once.name_for(Plain()), "other:1", 60)
        began = time.monotonic()
        lock.owner = f"other:1:{time.time() - held_for}-abc"
        assert lock.take()
        for releases in (0, 5, 10, 30, 10_000):
            job = Plain()
            reserved = _reserved(job, releases=releases)
            once(job, run)
            found += reserved.released
        lock.release()
        self.held_longer = time.monotonic() - began
        return found

    def test_the_delays_grow_to_a_bound_and_differ(self) -> None:
        found = self._delays(3600)
        for delay, longest in zip(found, (0.1, 0.76, 5.77, 10, 10), strict=True):
            assert 0.99 * longest / 2 <= delay <= longest
        assert found[-2] != found[-1]

    def test_a_key_with_short_jobs_is_asked_for_often(self) -> None:
        assert max(self._delays(0)) <= 0.5 + self.held_longer

    def test_no_longer_than_the_lock_has_been_held(self) -> None:
        assert 1 <= self._delays(2)[-1] <= 2.1 + self.held_longer

    @pytest.mark.parametrize("release", [7, timedelta(seconds=7)])
    def test_a_delay_of_ones_own_is_kept_and_waits_nowhere(self, release: Any) -> None:
        once, job = WithoutOverlapping(release=release), Plain()
        lock = _held(job, once)
        reserved = _reserved(job, releases=3)
        once(job, run)
        assert reserved.released == [7]
        lock.release()

    def test_one_that_is_not_to_wait_is_left(self) -> None:
        once, job = WithoutOverlapping(dont_release=True), Plain()
        lock = _held(job, once)
        reserved = _reserved(job)
        assert once(job, run) is None
        assert reserved.released == []
        lock.release()


class TestTheJobsOwnEarlierAttempt:
    def _runs(self, store: Store, ended: tuple[str, ...], owner: str = "me:1") -> bool:
        once, job = WithoutOverlapping(), Plain()
        lock = _held(job, once, owner)
        reserved = _reserved(job, attempts=len(ended) + 1, ended=(*ended, ""))
        ran = once(job, run) == "ran"
        assert ran != bool(reserved.released)
        store.delete(lock.name)
        lock.release()
        return bool(ran)

    def test_is_known_to_have_ended(self, here: QueueManager) -> None:
        for how in ("worker died", "timed out", "error", "interrupted"):
            assert self._runs(here.connection().store, (how,)), how

    def test_may_be_running_still(self, here: QueueManager) -> None:
        assert not self._runs(here.connection().store, ("",))
        assert not self._runs(here.connection().store, ("released",))
        assert not self._runs(here.connection().store, ("worker died",), "me:2")

    def test_is_another_jobs(self, here: QueueManager) -> None:
        assert not self._runs(here.connection().store, ("worker died",), "you:1")
        assert not self._runs(here.connection().store, ("worker died",), "me:you:1")
        assert not self._runs(here.connection().store, ("worker died",), "me:x")
