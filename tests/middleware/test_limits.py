"""Limits over time, by themselves: how they are written, and what their windows let through."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe import JobDefinitionError, Queueable
from qframe.middleware import (
    Limit,
    RateLimited,
    ThrottlesExceptions,
    WithoutOverlapping,
    limits,
)
from qframe.middleware.limits import LimitWindow, value_of

DAY = 86400


class Fetch(Queueable):
    user: int = 7

    def handle(self) -> None: ...


# -- how a limit is written -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most", "per"),
    [
        ("10/minute", 10, 60),
        ("10/m", 10, 60),
        ("5/s", 5, 1),
        ("1 / hour", 1, 3600),
        ("1000/Day", 1000, DAY),
        ("100/15m", 100, 900),
        ("3/2 hours", 3, 7200),
    ],
)
def test_a_limit_is_read(text: str, most: int, per: float) -> None:
    assert Limit.parse(text) == Limit(most, per)


def test_a_limit_is_written_out() -> None:
    assert Limit(10, timedelta(minutes=1)) == Limit.per_minute(10) == Limit(10, 60)
    assert [Limit.per_second(1).per, Limit.per_hour(1).per, Limit.per_day(1).per] == [1, 3600, DAY]
    assert Limit.per_minute(3, by="a").by == "a"
    assert str(Limit(10, 0.5)) == "10 in 0.5 s"


wrong: list[tuple[Any, str]] = [
    (lambda: Limit.parse("ten/minute"), "'ten/minute' is no limit: write 10/minute"),
    (lambda: Limit.parse("10/fortnight"), "is no limit"),
    (lambda: Limit.parse("10/0s"), "the time of a limit must be at least 0.01 s, not 0"),
    (lambda: RateLimited("0/s"), "a limit must allow 1 to 1,000,000,000 jobs, not 0"),
    (lambda: Limit(True, 1), "a limit must allow 1 to 1,000,000,000 jobs, not True"),
    (lambda: Limit(1, -1), "the time of a limit must not be negative"),
    (lambda: Limit(1, datetime.now(UTC)), "must be seconds or a timedelta, not a datetime"),  # type: ignore[arg-type] # the point
    (RateLimited, "RateLimited takes a limit"),
    (lambda: RateLimited("1/s", name=" "), "RateLimited: name must be a text"),
    (lambda: RateLimited("1/s", release=-1), "release must not be negative"),
    (
        lambda: RateLimited("1/s", release=1, dont_release=True),
        "give release or dont_release, not both",
    ),
    (lambda: ThrottlesExceptions(0), "a limit must allow 1 to 1,000,000,000 jobs, not 0"),
    (lambda: ThrottlesExceptions(when=5), "ThrottlesExceptions takes kinds of errors"),  # type: ignore[arg-type] # the point
    (lambda: ThrottlesExceptions(when=int), "ThrottlesExceptions takes kinds of errors"),  # type: ignore[arg-type] # the point
    (lambda: ThrottlesExceptions(when=()), "ThrottlesExceptions takes kinds of errors"),
    (lambda: ThrottlesExceptions(backoff=()), "backoff must not be empty"),
    (lambda: ThrottlesExceptions(backoff="5"), "backoff must be seconds"),  # type: ignore[arg-type] # the point
    (lambda: ThrottlesExceptions(report="log"), "report must be a function"),  # type: ignore[arg-type] # the point
]


@pytest.mark.parametrize(("make", "told"), wrong)
def test_what_is_no_limit_is_refused_in_one_line(make: Any, told: str) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        make()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


class Sealed(Fetch):
    encrypted = True


class Color(Enum):
    RED = "red"


def test_by_is_a_value_or_a_function_of_the_job() -> None:
    job = Fetch()
    identity = uuid.uuid4()
    assert value_of(None, job) == value_of(lambda _: None, job) == ""
    assert value_of("a", job) == "a"
    assert value_of(lambda each: each.user, job) == value_of(7, job) == "7"
    assert value_of(Color.RED, job) == "red"
    assert value_of(identity, job) == str(identity)
    for odd in ("Ä", "x" * 300, ("a", 1), "a b"):
        assert len(value_of(odd, job)) == 32
    assert value_of(("a", "b"), job) != value_of(("b", "a"), job)
    assert value_of("A", job) != value_of("a", job), "also where a database does not tell them"
    assert value_of("ada@example.org", job) == "ada@example.org"
    assert len(value_of("ada@example.org", Sealed())) == 32
    with pytest.raises(JobDefinitionError, match="by must be, or give, a text"):
        Limit(1, 1, by=b"a")  # type: ignore[arg-type] # is the point
    with pytest.raises(JobDefinitionError, match="by must be, or give, a text"):
        value_of(lambda _: 1.5, job)  # type: ignore[arg-type, return-value] # the point


def test_keys_fit_a_database_column(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = RateLimited("1/s", name="n" * 1000, by="b" * 1000)
    (key,) = limited._keyed(Fetch())
    assert len(key) <= 120


# -- what a window lets through -------------------------------------------------------------------


def passed(limit: Limit, moments: list[int]) -> list[int]:
    """Give the moments at which there was room, each look by way of the text, as in a store."""
    text = None
    through = []
    for moment in moments:
        window = LimitWindow(limit, text, moment)
        if window.wait() == 0:
            window.add()
            text = window.text()
            assert text is not None
            assert len(text) < 2000
            through.append(moment)
    return through


def most_within(moments: list[int], length: int) -> int:
    """Count the most moments that lie within any such time."""
    return max((sum(a <= b < a + length for b in moments) for a in moments), default=0)


gaps = st.lists(st.integers(0, 400), max_size=120)


@given(gaps=gaps, most=st.integers(1, 12), per=st.sampled_from([0.05, 0.3, 1, 2.5]))
def test_as_many_as_allowed_pass_and_no_more(gaps: list[int], most: int, per: float) -> None:
    now, moments = 1_700_000_000_000, []
    for gap in gaps:
        now += gap
        moments.append(now)
    expected: list[int] = []
    for moment in moments:  # the same with every moment kept
        if sum(moment - each < int(per * 1000) for each in expected) < most:
            expected.append(moment)
    assert passed(Limit(most, per), moments) == expected


def test_of_many_no_more_pass_and_nearly_as_many() -> None:
    limit = Limit(1000, 1)
    moments = [1_700_000_000_000 + step for step in range(5000) for _ in range(2)]
    through = passed(limit, moments)
    assert most_within(through, 1000) <= 1000
    assert len(through) >= 4900


def test_the_wait_is_exact() -> None:
    limit, now = Limit(2, 10), 1_700_000_000_000
    window = LimitWindow(limit, None, now)
    window.add()
    later = LimitWindow(limit, window.text(), now + 3000)
    later.add()
    text = later.text()
    assert LimitWindow(limit, text, now + 4000).wait() == 6
    assert LimitWindow(limit, text, now + 9999).wait() == 0.001
    assert LimitWindow(limit, text, now + 10_000).wait() == 0


@pytest.mark.parametrize("most", [3, 500])
def test_a_clock_that_goes_back_blocks_no_longer_than_the_limit(most: int) -> None:
    limit, now = Limit(most, 60), 1_700_000_000_000
    window = LimitWindow(limit, None, now)
    for _ in range(most):
        window.add()
    back = now - 3_600_000
    seen = LimitWindow(limit, window.text(), back)
    assert seen.ahead
    assert 0 < seen.wait() <= 60.6
    again = LimitWindow(limit, seen.text(), back + 60_600)
    assert not again.ahead
    assert again.wait() == 0


def test_clocks_a_little_apart_are_no_matter() -> None:
    window = LimitWindow(Limit(1, 60), None, 1_700_000_000_500)
    window.add()
    assert not LimitWindow(Limit(1, 60), window.text(), 1_700_000_000_000).ahead


@pytest.mark.parametrize("text", ["", "x", "1", "1 2", "1 2 3 4 x", "1.5 0 1"])
def test_what_is_not_ours_in_the_store_counts_as_nothing(text: str) -> None:
    assert LimitWindow(Limit(1, 60), text, 1_700_000_000_000).wait() == 0


def test_more_than_the_limit_is_trimmed_to_what_decides() -> None:
    window = LimitWindow(Limit(3, 60), None, 1_700_000_000_000)
    for _ in range(3):
        window.add()
    for second in range(1, 5):
        window = LimitWindow(Limit(3, 60), window.text(), 1_700_000_000_000 + second * 1000)
        window.add()
    assert window.count == 3
    assert window.wait() == 58


def test_the_spread_grows_with_each_release_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    job = Fetch()

    def after(releases: int, limit: Limit) -> float:
        class Reserved:
            class history:  # noqa: N801 (an attribute)
                pass

        Reserved.history.releases = releases  # type: ignore[attr-defined] # a double
        object.__setattr__(job, "_reserved", Reserved)
        return limits.spread(job, limit)

    assert after(0, Limit(10, 10)) == 1 / 8
    assert after(4, Limit(10, 10)) == pytest.approx(1.25**4 / 8)
    assert after(10_000, Limit(10, 10)) == 60
    assert after(10_000, Limit(10, 3600)) == 3600


@pytest.mark.parametrize("name", ["a\x00b", "\ud800"])
def test_a_name_that_no_store_takes_is_refused_when_it_is_written(name: str) -> None:
    for make in (lambda: RateLimited("1/s", name=name), lambda: ThrottlesExceptions(name=name)):
        with pytest.raises(JobDefinitionError, match="no NUL and no lone surrogate"):
            make()
    with pytest.raises(JobDefinitionError, match="printable"):
        type("Odd", (Queueable,), {"handle": lambda self: None, "job_name": name})
    WithoutOverlapping(name)  # such a key is hashed
    RateLimited("1/s", by=name)  # as is such a value
