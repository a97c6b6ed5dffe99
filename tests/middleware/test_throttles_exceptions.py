"""ThrottlesExceptions: what counts, what is held back, and what is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from qframe import (
    DontHandle,
    Exponential,
    JobTimedOut,
    LimitReached,
    Queueable,
    dispatch,
    dispatch_sync,
)
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, BackendUnusable, JobInterrupted
from qframe.middleware import ThrottlesExceptions
from tests.middleware.clock import Clock


class Call(Queueable):
    user: int = 1

    def handle(self) -> None: ...


class Reserved:
    """A reserved job that only remembers what is done to it."""

    connection_name = "database"
    uuid = "u"
    has_failed = False

    class history:  # noqa: N801 (an attribute)
        releases = 0

    def __init__(self) -> None:
        self.released: list[float] = []

    @property
    def is_released(self) -> bool:
        return bool(self.released)

    def release(self, delay: float, priority: int | None = None) -> None:
        self.released.append(delay)


def tried(
    throttled: ThrottlesExceptions,
    error: BaseException | None = None,
    act: Callable[[Any], object] = id,
    **fields: Any,
) -> float:
    """Have a job go through that raises `error`; gives 0 where it ran, else how long it waits."""
    job, reserved = Call(**fields), Reserved()
    object.__setattr__(job, "_reserved", reserved)
    ran = False

    def handle(job: Queueable) -> None:
        nonlocal ran
        ran = True
        act(job)
        if error is not None:
            raise error

    raised: BaseException | None = None
    try:
        throttled(job, handle)
    except BaseException as caught:  # noqa: BLE001 (looked at below)
        raised = caught
    if raised is not None and not ran:
        raise raised
    assert raised is (error if ran else None), "nothing is swallowed"
    return 0.0 if ran else reserved.released[0]


DOWN = ConnectionError("down")


def test_after_so_many_exceptions_jobs_wait_until_there_are_fewer(
    store: Store, clock: Clock
) -> None:
    throttled = ThrottlesExceptions(3, per=60)
    for _ in range(3):
        assert tried(throttled, DOWN) == 0
        clock.forward(10)
    assert 30 <= tried(throttled, DOWN) <= 30 + 2.5
    clock.forward(30)
    assert tried(throttled, DOWN) == 0, "one is let through, and shows that it is still down"
    assert 10 <= tried(throttled) <= 10 + 2.5


def test_a_success_forgets_what_was_known_when_it_began(store: Store, clock: Clock) -> None:
    throttled = ThrottlesExceptions(3, per=60)
    assert tried(throttled, DOWN) == tried(throttled, DOWN) == 0
    assert tried(throttled) == 0
    assert list(store.keys("exceptions:")) == []
    assert tried(throttled, DOWN) == tried(throttled, DOWN) == tried(throttled) == 0
    clock.forward(1)
    assert tried(throttled, DOWN) == 0

    def others_fail(_: object) -> None:
        clock.forward(1)
        assert tried(throttled, DOWN) == tried(throttled, DOWN) == 0

    assert tried(throttled, act=others_fail) == 0
    assert tried(throttled, DOWN) == 0, "the two are still known, and this is the third"
    assert tried(throttled) > 0


def test_a_job_that_released_or_failed_itself_is_no_success(store: Store) -> None:
    throttled = ThrottlesExceptions(2, per=60)
    assert tried(throttled, DOWN) == 0
    assert tried(throttled, act=lambda job: job.release(1)) == 0
    assert tried(throttled, DOWN) == 0
    assert tried(throttled) > 0


def test_what_counts(store: Store) -> None:
    def trips(error: BaseException, **options: Any) -> bool:
        throttled = ThrottlesExceptions(1, per=60, name=f"{error!r} {sorted(options)}", **options)
        assert tried(throttled, error) == 0
        return tried(throttled) > 0

    assert trips(ValueError())
    assert trips(JobTimedOut())
    assert not trips(JobInterrupted())
    assert not trips(DontHandle())
    assert not trips(LimitReached("wait", 5))
    assert not trips(KeyboardInterrupt())
    assert trips(ValueError(), when=ValueError)
    assert trips(UnicodeError(), when=(KeyError, ValueError))
    assert not trips(KeyError(), when=ValueError)
    assert trips(KeyError("a"), when=lambda error: "a" in str(error))
    assert not trips(KeyError("b"), when=lambda error: "a" in str(error))


def test_each_name_and_value_is_counted_by_itself(store: Store) -> None:
    throttled = ThrottlesExceptions(1, per=60, by=lambda job: job.user)
    assert tried(throttled, DOWN, user=1) == 0
    assert tried(throttled, user=1) > 0
    assert tried(throttled, user=2) == 0
    assert tried(ThrottlesExceptions(1, per=60, name="other", by=1)) == 0


def test_the_last_straw_is_reported_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    reported: list[BaseException] = []
    throttled = ThrottlesExceptions(2, per=60, report=reported.append)
    last = ConnectionError("last")

    def others_fail(_: object) -> None:
        assert tried(throttled, last) == 0

    assert tried(throttled, DOWN) == 0
    assert tried(throttled, DOWN, act=others_fail) == 0
    assert reported == [last]
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        assert tried(ThrottlesExceptions(1, per=60, name="github"), DOWN) == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "github has raised 1 in 60 s: its jobs wait; the last exception was ConnectionError: down"
    )


def test_what_is_kept_is_bounded_and_is_gone_after_its_time(store: Store, clock: Clock) -> None:
    throttled = ThrottlesExceptions(5, per=60)

    def fail_within(depth: int) -> Callable[[Any], None]:
        def act(_: object) -> None:
            if depth:
                clock.forward(0.01)
                assert tried(throttled, DOWN, act=fail_within(depth - 1)) == 0

        return act

    assert tried(throttled, DOWN, act=fail_within(50)) == 0
    (key,) = store.keys("exceptions:")
    (value,) = store.get(key)
    assert value is not None
    assert len(value) < 100
    assert tried(throttled) > 0


def test_a_clock_that_goes_back_blocks_no_longer_than_the_time(store: Store, clock: Clock) -> None:
    throttled = ThrottlesExceptions(1, per=60)
    assert tried(throttled, DOWN) == 0
    clock.forward(-7 * 24 * 3600)
    assert 0 < tried(throttled) <= 70
    clock.forward(60.1)
    assert tried(throttled) == 0


def test_the_backoff_takes_the_place_of_the_classes(store: Store) -> None:
    class Slow(Queueable):
        backoff = 600

        def handle(self) -> None:
            raise DOWN

    job = Slow()

    def fail(job: Any) -> None:
        job.handle()

    for backoff, seconds in (
        (None, [600]),
        (5, [5]),
        ((1, 2.5), [1, 2.5]),
        (Exponential(3, jitter=0), [3]),
    ):
        with pytest.raises(ConnectionError):
            ThrottlesExceptions(10, per=60, backoff=backoff)(job, fail)
        assert job.backoff_after(1, DOWN) == seconds


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_without_its_store_jobs_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    throttled = ThrottlesExceptions(1, per=60)
    monkeypatch.setattr(type(store), "get", failing(BackendUnavailable("away")))
    assert tried(throttled, DOWN) == tried(throttled) == 0
    assert "cannot be read: away" in caplog.text
    assert "cannot be counted: away" in caplog.text
    monkeypatch.setattr(type(store), "get", failing(BackendUnusable("no such database")))
    with pytest.raises(BackendUnusable):
        tried(throttled)


class Sync(Queueable):
    fails: bool = True
    middleware = (ThrottlesExceptions(1, per=60),)

    def handle(self) -> None:
        if self.fails:
            raise DOWN


@pytest.mark.parametrize(
    "send", [dispatch_sync, lambda job: dispatch(job).on_connection("sync").send()]
)
def test_in_the_callers_process_a_job_that_has_to_wait_raises(
    store: Store, send: Callable[[Queueable], object]
) -> None:
    with pytest.raises(ConnectionError):
        send(Sync())
    with pytest.raises(LimitReached, match="Sync cannot run for another") as caught:
        send(Sync(fails=False))
    assert 60 <= caught.value.retry_after <= 67.5
