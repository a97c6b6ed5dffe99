"""RateLimited: what is charged, what waits, and that no more run than may."""

from __future__ import annotations

import asyncio
import itertools
import runpy
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    JobDefinitionError,
    LimitReached,
    Queueable,
    QueueManager,
    SynchronousOnly,
    manager,
)
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, BackendUnusable, LeaseLost
from qframe.middleware import Limit, RateLimited
from qframe.testing import fake, run
from tests.middleware.clock import Clock
from tests.support.pages import docs_page


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


# -- paused ---------------------------------------------------------------------------------------


def test_a_paused_limit_holds_all_its_jobs_back_until_its_end(store: Store, clock: Clock) -> None:
    limited = RateLimited("100/s", name="github")
    limited.pause(30)
    clock.forward(10)
    assert 20 <= tried(limited, user=1) <= 20.1
    assert 20 <= tried(RateLimited("100/s", name="github"), user=2) <= 20.1, (
        "wherever it is written"
    )
    assert tried(RateLimited("100/s", name="other")) == 0
    clock.forward(20)
    assert tried(limited) == 0
    assert len(store.keys("limit:github")) == 1, "a job that was held back was not charged"


def test_a_shorter_pause_leaves_a_longer_one(store: Store, clock: Clock) -> None:
    limited = RateLimited("100/s", name="github")
    limited.pause(60)
    limited.pause(timedelta(seconds=5))
    limited.pause(0)
    assert tried(limited) >= 60
    limited.pause(90)
    assert tried(limited) >= 90


def test_a_running_job_pauses_its_own_limit(store: Store, clock: Clock) -> None:
    limited = RateLimited(Limit(9, 1, by=lambda job: job.user))

    def told_429(job: Any) -> None:
        limited.pause(60)

    limited(Call(user=7), told_429)
    assert tried(limited, user=7) >= 60
    assert tried(limited, user=8) == 0
    with pytest.raises(JobDefinitionError, match="no name: outside of its jobs, name one"):
        limited.pause(60)
    limited.pause(60, Call(user=8))
    assert tried(limited, user=8) >= 60


def test_of_several_limits_those_that_share_one_wait(store: Store, clock: Clock) -> None:
    own, both = Limit(9, 1, by=lambda job: job.user), Limit(9, 60, by=lambda job: job.tenant)
    limited = RateLimited(own, both, name="github")
    with pytest.raises(JobDefinitionError, match=r"has `by`: .* pause\(seconds, job\)"):
        limited.pause(60)
    limited.pause(60, Call(user=7, tenant=3))
    assert tried(limited, user=7, tenant=4) >= 60
    assert tried(limited, user=8, tenant=3) >= 60
    assert tried(limited, user=8, tenant=4) == 0


def test_a_paused_job_is_released_or_skipped_as_a_limited_one(store: Store, clock: Clock) -> None:
    fixed = RateLimited("9/s", name="github", release=5)
    fixed.pause(60)
    assert tried(fixed) == 5
    job, reserved = Call(), Reserved()
    object.__setattr__(job, "_reserved", reserved)
    ran: list[Queueable] = []
    RateLimited("9/s", name="github", dont_release=True)(job, ran.append)
    assert (ran, reserved.released) == ([], [])
    with pytest.raises(LimitReached, match="Call cannot run for another 60"):
        RateLimited("9/s", name="github")(Call(), ran.append)


def test_a_clock_that_goes_back_holds_no_job_for_longer_than_the_pause(
    store: Store, clock: Clock
) -> None:
    limited = RateLimited("9/s", name="github")
    limited.pause(60)
    clock.forward(-7 * 24 * 3600)
    assert 60 <= tried(limited) <= 60.1


def test_a_pause_is_gone_from_the_store_after_its_time(store: Store) -> None:
    RateLimited("9/s", name="github").pause(60)
    ((key, _),) = store.items("paused:")
    store.backend.timing.skew += 60.5
    assert store.get(key) != [None]
    store.backend.timing.skew += 1
    assert store.get(key) == [None]


def test_the_connection_says_whose_workers_wait(fresh: Path, clock: Clock) -> None:
    connections = {name: {"driver": "memory"} for name in ("a", "b", "c")}
    manager.use(QueueManager({"default": "a", "connections": connections}))

    class Elsewhere(Call):
        connection = "b"

    limited = RateLimited("9/s", name="github")
    limited.pause(1)
    limited.pause(2, Elsewhere())
    limited.pause(3, Elsewhere(), connection="c")
    found = [manager.default().connection(name).store.items("paused:") for name in "abc"]
    assert [[text.split()[1] for _, text in each] for each in found] == [
        ["1000"],
        ["2000"],
        ["3000"],
    ]


def test_on_an_event_loop_a_pause_is_awaited(store: Store, clock: Clock) -> None:
    limited = RateLimited("9/s")

    async def told_429() -> None:
        with pytest.raises(SynchronousOnly, match=r"await apause\(\)"):
            limited.pause(60)
        await limited.apause(60)

    limited(Call(), lambda _: asyncio.run(told_429()))
    assert tried(limited) >= 60


@pytest.mark.parametrize("seconds", [-1, "60", None, datetime.now(UTC), float("inf")])
def test_what_is_no_time_is_refused(store: Store, seconds: Any) -> None:
    with pytest.raises(JobDefinitionError, match="the pause of a limit must"):
        RateLimited("9/s", name="github").pause(seconds)


def test_without_its_store_a_pause_raises(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store.backend), "apply", failing(BackendUnavailable("away")))
    with pytest.raises(BackendUnavailable):
        RateLimited("9/s", name="github").pause(60)


def test_the_page_about_pauses_does_what_it_says(tmp_path: Path) -> None:
    page = docs_page("rate-limits.md").read_text()
    code = page.split("## Pausing a limit", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    file = tmp_path / "rates.py"
    file.write_text(code)
    job_class = runpy.run_path(str(file), run_name="rates")["FetchRate"]
    with fake():  # whose store both share
        run(job_class(currency="EUR")).assert_retried(delay=30)
        second = run(job_class(currency="CHF"))
        second.assert_released()
        assert second.delay is not None
        assert 10 < second.delay < 32


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
