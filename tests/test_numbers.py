"""Numbers without sense, given to each call and option of Python, are refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qframe import (
    Chunk,
    Exponential,
    Queueable,
    QueueManager,
    RetryLater,
    WorkerOptions,
    bulk,
    chain,
    dispatch,
    foreign,
    manager,
    queueable,
    schedule,
    wait_for,
)
from qframe.celery import Celery
from qframe.config import Settings
from qframe.config.sections import checked_rate
from qframe.drivers.store import Store
from qframe.exceptions import ConfigurationError, InvalidJob, QframeError
from qframe.failed.filters import seconds_of_span
from qframe.middleware import Limit, RateLimited, ThrottlesExceptions, WithoutOverlapping
from qframe.rules import InvalidRule, parse
from qframe.schedules.definition import book
from qframe.schedules.parser import read
from qframe.testing import run, travel

HUGE = 10**400
"""Larger than any float."""
FURTHEST = datetime.max.replace(tzinfo=UTC)
WRONG: dict[str, Any] = {
    "negative": -1,
    "1e308": 1e308,
    "10**30": 10**30,
    "huge": HUGE,
    "inf": math.inf,
    "nan": math.nan,
    "text": "abc",
    "bytes": b"1",
    "timedelta": timedelta.max,
    "naive": datetime(2026, 1, 1),  # noqa: DTZ001 (what is refused)
    "furthest": FURTHEST,
    "list": [HUGE],
}


class Noop(Queueable):
    i: int = 0

    def handle(self) -> None: ...


class UntilThen(Queueable):
    def retry_until(self) -> Any:
        return HUGE

    def handle(self) -> None: ...


class Releases(Queueable):
    def handle(self) -> None:
        self.release(1, priority=HUGE)


class Progresses(Queueable):
    def handle(self) -> None:
        self.progress(HUGE)


def _function() -> None: ...


def _declared(**options: Any) -> object:
    return type("Made", (Queueable,), {"handle": lambda self: None, **options})


def _option(name: str) -> Callable[[Any], object]:
    return lambda value: _declared(**{name: value})


def _of_function(name: str) -> Callable[[Any], object]:
    return lambda value: queueable(**{name: value})(_function)


def _of_schedule(method: str, *before: Any) -> Callable[[Any], object]:
    return lambda value: getattr(schedule(Noop()), method)(*before, value)


def _store() -> Store:
    return manager.default().connection().store


def _traveled(delay: Any) -> None:
    with travel(delay):
        pass


def _of_worker(name: str) -> Callable[[Any], object]:
    return lambda value: WorkerOptions(**{name: value})


def _of_task(name: str) -> Callable[[Any], object]:
    app = Celery("numbers", broker="memory://")
    return lambda value: app.task(name="numbers.a", **{name: value})(_function).apply_async()


CALLS: dict[str, Callable[[Any], object]] = {
    **{
        f"option {name}": _option(name)
        for name in (
            "backoff", "concurrency", "debounce", "delay", "expires", "keep_log", "max_exceptions",
            "once", "priority", "retry_until", "timeout", "track", "tries", "version",
        )
    },
    "option unique_for": lambda value: _declared(unique=True, unique_for=value),
    **{f"@queueable {name}": _of_function(name) for name in ("backoff", "timeout", "tries")},
    "foreign timeout": lambda value: foreign("App.Job", {}, timeout=value),
    "foreign backoff": lambda value: foreign("App.Job", {}, backoff=value),
    "delay": lambda value: dispatch(Noop()).delay(value),
    "track": lambda value: dispatch(Noop()).track(value),
    "priority": lambda value: dispatch(Noop()).priority(value),
    "once": lambda value: dispatch(Noop()).once("key", within=value),
    "chain": lambda value: chain([Noop(), Noop()]).delay(value).dispatch(),
    "bulk": lambda value: bulk([Noop()], spread=value),
    "wait_for": lambda value: wait_for(dispatch(Noop()).track().send(), value),
    "RetryLater": RetryLater,
    "Limit max": lambda value: Limit(value, 1),
    "Limit per": lambda value: Limit(1, value),
    "Limit.parse": lambda value: Limit.parse(f"{value}/s"),
    "Limit.parse per": lambda value: Limit.parse(f"1/{value}d"),
    "RateLimited": lambda value: RateLimited("1/s", release=value),
    "pause": lambda value: RateLimited("1/s", name="api").pause(value),
    "ThrottlesExceptions max": ThrottlesExceptions,
    "ThrottlesExceptions per": lambda value: ThrottlesExceptions(1, value),
    "ThrottlesExceptions backoff": lambda value: ThrottlesExceptions(backoff=[value]),
    "WithoutOverlapping": lambda value: WithoutOverlapping(release=value),
    "WithoutOverlapping lease": lambda value: WithoutOverlapping(lease=value),
    "Chunk": Chunk,
    "Chunk within": lambda value: Chunk(2, value),
    "Exponential": Exponential,
    "Exponential most": lambda value: Exponential(1, most=value),
    "Exponential factor": lambda value: Exponential(1, factor=value),
    "Exponential jitter": lambda value: Exponential(1, jitter=value),
    "Store.set": lambda value: _store().set("key", "value", value),
    "Store.swap": lambda value: _store().swap({"a": (None, "b")}, value),
    "travel": _traveled,
    **{
        f"schedule.{name}": _of_schedule(name)
        for name in (
            "cron", "days", "days_of_month", "every", "every_minutes", "every_odd_hour",
            "every_seconds", "hourly_at", "monthly_on", "quarterly_on", "spread", "timezone",
            "twice_daily", "twice_monthly", "weekly_on", "without_overlapping", "yearly_on",
        )
    },
    "schedule.missed": _of_schedule("missed", "last"),
    **{
        f"WorkerOptions {name}": _of_worker(name)
        for name in (
            "backoff", "concurrency", "grace", "max_jobs", "max_time", "memory", "rest", "sleep",
            "timeout", "tries",
        )
    },
    "WorkerOptions backoffs": lambda value: WorkerOptions(backoff=(value,)),
    "WorkerOptions bounds": lambda value: WorkerOptions(bounds={"mail": value}),
    **{
        f"task {name}": _of_task(name)
        for name in ("default_retry_delay", "max_retries", "priority", "soft_time_limit")
    },
}  # fmt: skip


MEANT = {("task max_retries", "negative")}
"""Celery takes a negative number for none."""


@pytest.fixture(autouse=True)
def _in_memory() -> Iterator[None]:
    manager.use(QueueManager(Settings(default="memory")))
    yield
    book.clear()


@pytest.mark.parametrize("call", CALLS)
def test_what_no_number_can_mean_is_one_line(call: str) -> None:
    for name, value in WRONG.items():
        if (call, name) in MEANT:
            continue
        with pytest.raises((QframeError, ValueError, TypeError)) as raised:
            CALLS[call](value)
        said = str(raised.value)
        assert said, name
        assert "\n" not in said, (name, said)
        assert "argument" not in said, (name, said)  # Python's own words


def test_a_deadline_that_a_method_gives_is_refused_when_it_is_dispatched() -> None:
    with pytest.raises(InvalidJob, match="retry_until must not be longer than 100 years"):
        dispatch(UntilThen())


def test_what_a_job_says_of_itself_is_refused_in_tests_as_in_a_worker() -> None:
    run(Releases()).assert_failed_with(
        InvalidJob, match=r"release\.priority must be a whole number"
    )
    run(Progresses()).assert_failed_with(ValueError, match="progress is a number from 0 to 1")


def test_a_schedule_at_a_moment_that_a_zone_cannot_show_is_refused() -> None:
    """Its worker would have to find out what the clocks show then."""
    for text in ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00Z", "1969-12-31"):
        with pytest.raises(ConfigurationError, match="at takes a moment from 1970 on"):
            read(f"at {text}")
    with pytest.raises(ConfigurationError, match="at must not be further away than 100 years"):
        schedule(Noop()).at(FURTHEST)


def test_a_day_of_the_week_is_no_long_number() -> None:
    for text in ("days", "weekly_on"):
        with pytest.raises(ConfigurationError, match="is no day of the week"):
            read(f"{text} {'9' * 5000}")


def test_a_database_number_of_redis_is_a_number() -> None:
    for url in (f"redis://127.0.0.1/{'9' * 5000}", f"redis://127.0.0.1/0?db={'9' * 30}"):
        settings = Settings(connections={"redis": {"url": url}})
        with pytest.raises(ConfigurationError, match="number of the database"):
            QueueManager(settings).connection("redis")


@pytest.mark.parametrize("rate", ["9" * 400 + "/s", "1000001/s", "0.0009/d"])
def test_a_rate_has_bounds(rate: str) -> None:
    with pytest.raises(ValueError, match=r"takes 0\.001/d to 1000000/s"):
        checked_rate(rate)


def test_a_rule_of_an_alert_has_bounds() -> None:
    with pytest.raises(InvalidRule, match="a number is at most 1,000,000,000,000"):
        parse(f"ready > {'9' * 200}")


def test_a_span_has_bounds() -> None:
    for text in ("9" * 400 + "s", "36501d"):
        with pytest.raises(ConfigurationError, match="older: takes at most 100 years, not"):
            seconds_of_span("older:", text)
