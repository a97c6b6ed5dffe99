"""RateLimited: what is charged, what waits, and that no more run than may."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from qframe import LimitReached, Queueable
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, BackendUnusable, LeaseLost
from qframe.middleware import Limit, RateLimited
from tests.middleware.clock import Clock


class Call(Queueable):
    user: int = 1
    tenant: int = 1

    def handle(self) -> None: ...


class Reserved:
    """A reserved job that only remembers what is done to it."""

    connection_name = "database"
    uuid = "u"

    class history:  # noqa: N801 (an attribute)
        releases = 0

    def __init__(self) -> None:
        self.released: list[float] = []

    def release(self, delay: float, priority: int | None = None) -> None:
        self.released.append(delay)


def tried(limited: RateLimited, **fields: Any) -> float:
    """Have a job go through; gives 0 where it ran, else the seconds it was released for."""
    job, reserved = Call(**fields), Reserved()
    object.__setattr__(job, "_reserved", reserved)
    ran: list[Queueable] = []
    limited(job, ran.append)
    assert bool(ran) is not bool(reserved.released)
    return reserved.released[0] if reserved.released else 0.0


# -- what is charged ------------------------------------------------------------------------------


def test_so_many_run_and_the_next_waits_until_there_is_room(store: Store, clock: Clock) -> None:
    limited = RateLimited("3/minute")
    for _ in range(3):
        assert tried(limited) == 0
        clock.forward(10)
    wait = tried(limited)
    assert 30 <= wait <= 30 + 20 / 8, "until the first one is a minute old, and a little more"
    clock.forward(29.9)
    assert tried(limited) > 0
    clock.forward(0.1)
    assert tried(limited) == 0
    assert tried(limited) > 0


def test_each_value_has_a_count_of_its_own(store: Store, clock: Clock) -> None:
    limited = RateLimited("1/minute", by=lambda job: job.user)
    assert [tried(limited, user=user) > 0 for user in (1, 2, 1, 2, 3)] == [0, 0, 1, 1, 0]


def test_equal_values_of_two_limits_are_not_one(store: Store, clock: Clock) -> None:
    limited = RateLimited(
        Limit(1, 60, by=lambda job: job.user), Limit(2, 60, by=lambda job: job.tenant)
    )
    assert tried(limited, user=7, tenant=3) == 0
    assert tried(limited, user=3, tenant=7) == 0


def test_a_name_is_shared_and_classes_are_not(store: Store, clock: Clock) -> None:
    class Other(Queueable):
        def handle(self) -> None: ...

    def runs(limited: RateLimited, job: Queueable) -> bool:
        object.__setattr__(job, "_reserved", Reserved())
        ran: list[Queueable] = []
        limited(job, ran.append)
        return bool(ran)

    assert runs(RateLimited("1/minute"), Call())
    assert runs(RateLimited("1/minute"), Other())
    assert runs(RateLimited("1/minute", name="api"), Call())
    assert not runs(RateLimited("1/minute", name="api"), Other())


@pytest.mark.parametrize("order", list(itertools.permutations(["2/minute", "5/hour", "9/day"])))
def test_a_job_that_one_limit_holds_back_is_charged_by_none(
    store: Store, clock: Clock, order: tuple[str, ...]
) -> None:
    """Laravel charges those that come before the one that says no."""
    limited = RateLimited(*order)
    for minute in range(3):
        clock.forward(60)
        allowed = 2 if minute < 2 else 1
        assert [tried(limited) > 0 for _ in range(10)] == [False] * allowed + [True] * (
            10 - allowed
        ), minute


def test_the_longest_wait_of_several_counts(store: Store, clock: Clock) -> None:
    limited = RateLimited("1/minute", "1/hour")
    assert tried(limited) == 0
    assert tried(limited) >= 3600


def test_a_fixed_release_is_exact_and_a_limited_job_may_be_skipped(
    store: Store, clock: Clock
) -> None:
    fixed = RateLimited("1/minute", release=5)
    assert [tried(fixed), tried(fixed)] == [0, 5]
    job, reserved = Call(), Reserved()
    object.__setattr__(job, "_reserved", reserved)
    ran: list[Queueable] = []
    RateLimited("1/minute", dont_release=True)(job, ran.append)
    assert (ran, reserved.released) == ([], [])


def test_what_it_gives_is_what_the_job_gave(store: Store, clock: Clock) -> None:
    assert RateLimited("1/minute")(Call(), lambda _: "result") == "result"


def test_a_changed_limit_takes_over_what_was_counted(store: Store, clock: Clock) -> None:
    assert tried(RateLimited("1/minute")) == 0
    assert tried(RateLimited("1/minute")) > 0
    assert tried(RateLimited("2/minute")) == 0
    assert tried(RateLimited("2/minute")) > 0


def test_what_is_kept_is_small_and_is_gone_after_its_time(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = RateLimited("100000/day", "100/hour", "3/s")
    for _ in range(100):
        clock.forward(1)
        assert tried(limited) == 0
    keys = store.keys("limit:")
    assert len(keys) == 3
    assert all(len(value or "") < 2000 for value in store.get(*keys))
    ttls: list[float | None] = []
    swap = type(store).swap

    def noting(self: Store, changes: Any, ttl: float | None) -> bool:
        ttls.append(ttl)
        return swap(self, changes, ttl)

    monkeypatch.setattr(type(store), "swap", noting)
    assert tried(RateLimited("5/minute")) == 0
    assert ttls == [pytest.approx(61, abs=0.1)]


def test_a_clock_that_goes_back_blocks_no_longer_than_the_limit(store: Store, clock: Clock) -> None:
    limited = RateLimited("2/minute")
    assert tried(limited) == tried(limited) == 0
    clock.forward(-7 * 24 * 3600)
    assert 0 < tried(limited) <= 60 + 30
    clock.forward(60.1)
    assert tried(limited) == 0


# -- many at once ---------------------------------------------------------------------------------


def test_threads_that_race_get_as_many_as_there_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = RateLimited("25/hour")
    get = type(store).get

    def slowly(self: Store, *keys: str) -> list[str | None]:
        values = get(self, *keys)
        time.sleep(0.001)  # the others come in between
        return values

    monkeypatch.setattr(type(store), "get", slowly)
    ran: list[Queueable] = []

    def work() -> None:
        for _ in range(10):
            job = Call()
            object.__setattr__(job, "_reserved", Reserved())
            limited(job, ran.append)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 25


def test_who_is_forestalled_again_and_again_waits_for_a_moment(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store), "swap", lambda *_: False)
    assert 0.05 <= tried(RateLimited("1/minute")) <= 0.2


# -- where it cannot be ---------------------------------------------------------------------------


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_without_its_store_a_job_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "get", failing(BackendUnavailable("away")))
    assert tried(RateLimited("1/minute")) == 5
    monkeypatch.setattr(type(store), "get", failing(BackendUnusable("no such database")))
    with pytest.raises(BackendUnusable):
        tried(RateLimited("1/minute"))


def test_in_the_callers_process_a_limited_job_raises(store: Store) -> None:
    limited = RateLimited("1/minute")
    limited(Call(), id)
    with pytest.raises(LimitReached, match=r"Call cannot run for another .* s \(limited to 1 in"):
        limited(Call(), id)


def test_a_lost_lease_is_told_as_what_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reserved, "release", failing(LeaseLost("gone")))
    assert tried(RateLimited("1/minute")) == 0
    with pytest.raises(LeaseLost):
        tried(RateLimited("1/minute"))
