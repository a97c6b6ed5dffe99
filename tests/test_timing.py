from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from qframe.payload.timing import iso, moment, seconds_until


def test_numbers_and_timedeltas_count_from_now() -> None:
    assert seconds_until(0) == 0.0
    assert seconds_until(10) == 10.0
    assert seconds_until(0.25) == 0.25
    assert seconds_until(timedelta(minutes=5, milliseconds=1)) == 300.001
    assert isinstance(seconds_until(10), float)


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-9))]
)
def test_an_aware_datetime_is_a_moment_whatever_its_zone(zone: timezone) -> None:
    assert seconds_until(datetime.now(zone) + timedelta(seconds=90)) == pytest.approx(90, abs=1)


@pytest.mark.parametrize(
    "past",
    [
        datetime.now(UTC) - timedelta(days=3),
        datetime(1969, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_a_past_aware_datetime_means_now(past: datetime) -> None:
    assert seconds_until(past) == 0.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        (math.nan, "infinite"),
        (math.inf, "infinite"),
        (-math.inf, "negative or infinite"),
        (datetime(2026, 1, 1), "without a time zone"),  # noqa: DTZ001 (the point)
        (10**10, "100 years"),
        (10**400, "100 years"),
        (timedelta.max, "100 years"),
        (datetime.max.replace(tzinfo=UTC), "100 years"),
    ],
)
def test_what_is_no_time_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        seconds_until(value)


@pytest.mark.parametrize("value", [True, False, None, "10", b"1", Decimal(1), Fraction(1), [1], 1j])
def test_what_is_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="seconds, a timedelta or an aware datetime"):
        seconds_until(value)


def test_the_message_names_what_was_wrong() -> None:
    with pytest.raises(ValueError, match=r"^retry_until must not be negative.*-3"):
        moment(-3, "retry_until")


def test_a_moment_is_an_epoch_time_also_in_the_past() -> None:
    assert moment(60, "x") == pytest.approx(time.time() + 60, abs=1)
    assert moment(timedelta(hours=1), "x") == pytest.approx(time.time() + 3600, abs=1)
    assert moment(datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), "x") == 1e9


def test_a_moment_is_shown_in_utc() -> None:
    assert iso(1e9) == "2001-09-09 01:46:40"


@pytest.mark.parametrize("epoch", [-1e12, -62135596801, 1e12, 253402300800])
def test_a_moment_in_no_year_is_shown_in_seconds(epoch: float) -> None:
    assert iso(epoch) == f"1970-01-01 00:00:00 {epoch:+.0f} s"
