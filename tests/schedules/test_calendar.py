"""Planned times: a year in six zones against cronsim, and what Laravel's words mean."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from qframe import schedule
from qframe.exceptions import ConfigurationError
from qframe.schedules.calendar import Calendar
from qframe.schedules.parser import read
from qframe.schedules.scheduler import Scheduler
from tests.schedules.conftest import Bench, Send

ZONES = [
    "Europe/Vienna",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "America/Santiago",  # at midnight, in the south
    "Africa/Casablanca",  # backwards for Ramadan
    "Asia/Kathmandu",  # never, and 5:45 from UTC
]
DAILY = ["30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "45 23 * * 1-5", "5 0 1 * *", "0 12 L * *"]
OFTEN = ["*/15 * * * *", "30 * * * *", "17 */2 * * *", "*/20 1-3 * * *"]
BEGIN, END = datetime(2026, 11, 25, 7, 3, tzinfo=UTC), datetime(2027, 11, 26, tzinfo=UTC)


def planned(calendar: Calendar, begin: datetime, end: datetime) -> list[float]:
    return list(calendar.upto(begin.timestamp(), end.timestamp()))


def by_cronsim(expression: str, zone: str, begin: datetime, end: datetime) -> list[float]:
    """Give what cronsim gives in one go, each moment once."""
    found: list[float] = []
    for each in CronSim(expression, begin.astimezone(ZoneInfo(zone))):
        moment = each.timestamp()
        if moment > end.timestamp():
            return found
        if moment > max(found[-1:], default=begin.timestamp()):
            found.append(moment)
    return found


def changes(zone: str) -> list[datetime]:
    """Give the days in which a zone's clocks are changed, and one more."""
    days = (BEGIN + timedelta(days=number) for number in range(366))
    found = [
        day
        for day in days
        if day.astimezone(ZoneInfo(zone)).utcoffset()
        != (day + timedelta(days=1)).astimezone(ZoneInfo(zone)).utcoffset()
    ]
    return [*found, BEGIN]


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_is_as_cronsim_has_it(zone: str) -> None:
    for expression in DAILY:
        calendar = Calendar(cron=expression, zone=zone)
        wanted = by_cronsim(expression, zone, BEGIN, END)
        assert planned(calendar, BEGIN, END) == wanted, expression
        for moment in random.Random(7).sample(range(int(wanted[0]), int(wanted[-1])), 20):
            coming = next(each for each in wanted if each > moment)
            assert calendar.next(moment) == coming, "also for whoever begins amid the year"
            before = max((each for each in wanted if each <= moment), default=None)
            assert calendar.last(wanted[0] - 1, moment) == before
    if zone == "Australia/Lord_Howe":
        return  # cronsim leaves out minutes there: see test_clock_changes.py
    for day in changes(zone):
        begin, end = day - timedelta(days=1), day + timedelta(days=2)
        for expression in OFTEN:
            calendar = Calendar(cron=expression, zone=zone)
            wanted = by_cronsim(expression, zone, begin, end)
            assert planned(calendar, begin, end) == wanted, (expression, day)


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_job_runs_once_each_day_of_the_year(zone: str) -> None:
    for hour in range(5):
        calendar = Calendar(cron=f"30 {hour} * * *", zone=zone)
        days = Counter(calendar.local(each).date() for each in planned(calendar, BEGIN, END))
        assert set(days.values()) == {1}
        ordered = sorted(days)
        assert len(days) == (ordered[-1] - ordered[0]).days + 1, "none is left out"


def test_a_daily_job_is_dispatched_once_in_the_skipped_and_in_the_doubled_hour(
    bench: Bench,
) -> None:
    schedule(Send()).daily_at("2:30").timezone("Europe/Vienna")
    for begin, hours in ((datetime(2027, 3, 27, 20, tzinfo=UTC), 27), (
        datetime(2027, 10, 30, 20, tzinfo=UTC), 27),
    ):  # fmt: skip
        bench.clock.now = begin.timestamp()
        bench.queue.backend.apply()
        host: Scheduler = bench.host()
        before = len(bench.payloads())
        bench.pass_(host, seconds=hours * 3600, step=600)
        new = sorted(each["schedule"]["at"] for each in bench.payloads())[before:]
        local = [str(datetime.fromtimestamp(each, ZoneInfo("Europe/Vienna"))) for each in new]
        if begin.month == 3:
            assert local == ["2027-03-28 03:00:00+02:00"]
        else:
            assert local[-1] == "2027-10-31 02:30:00+02:00"
            assert sum(each.startswith("2027-10-31") for each in local) == 1


def test_intervals_do_not_drift() -> None:
    calendar = read("every 7s")
    times = list(islice(calendar.upto(1_800_000_003.7, 2e9), 1000))
    assert all(second - first == 7 for first, second in pairwise(times))
    assert {each % 7 for each in times} == {0}


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("every_minute", "2026-11-25 12:01:00"),
        ("every_five_minutes", "2026-11-25 12:05:00"),
        ("hourly_at 17", "2026-11-25 12:17:00"),
        ("daily", "2026-11-26 00:00:00"),
        ("daily_at 13:00; weekends", "2026-11-28 13:00:00"),
        ("twice_daily 1 13", "2026-11-25 13:00:00"),
        ("weekly_on monday 8:00", "2026-11-30 08:00:00"),
        ("weekly; mondays; at 13:00", "2026-11-30 13:00:00"),
        ("monthly_on 4 15:00", "2026-12-04 15:00:00"),
        ("twice_monthly 1 16", "2026-12-01 00:00:00"),
        ("days_of_month 1 15", "2026-12-01 00:00:00"),
        ("days_of_month 28 25; at 13:00", "2026-11-25 13:00:00"),
        ("last_day_of_month 23:00", "2026-11-30 23:00:00"),
        ("quarterly", "2027-01-01 00:00:00"),
        ("yearly_on 6 1 17:00", "2027-06-01 17:00:00"),
        ("every 10m; between 22:00 6:00", "2026-11-25 22:00:00"),
        ("hourly; unless_between 12:00 20:30", "2026-11-25 21:00:00"),
        ("every 30s; mondays", "2026-11-30 00:00:00"),
        ("*/20 3-4 * * *", "2026-11-26 03:00:00"),
        ("@hourly", "2026-11-25 13:00:00"),
        ("at 2026-12-01T10:00+01:00", "2026-12-01 09:00:00"),
    ],
)
def test_words_mean_what_they_mean_to_laravel(words: str, first: str) -> None:
    start = datetime(2026, 11, 25, 12, 0, 30, tzinfo=UTC).timestamp()
    calendar = read(words)
    moment = calendar.next(start)
    assert moment is not None
    assert str(datetime.fromtimestamp(moment, UTC))[:19] == first
    again = read(calendar.text())
    assert again.next(start) == moment, "and it is written as it is read"


@pytest.mark.parametrize(
    "words",
    [
        "", "nix", "* * * *", "61 * * * *", "every 0s", "every 1.5s", "every x", "daily_at 24:00",
        "daily_at", "days", "days someday; daily", "at 2026-13-01T00:00Z", "hourly_at 60",
        "days_of_month", "days_of_month 0", "days_of_month 32",
        "weekdays", "between 1 2",
    ],
)  # fmt: skip
def test_what_says_no_time_is_refused_in_a_line(words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(words)
    assert "\n" not in str(raised.value)


def test_what_is_never_due_is_found_out() -> None:
    assert read("daily_at 3:00; between 8:00 9:00").next(1.8e9) is None


def test_days_of_the_month_are_given_singly_or_together() -> None:
    assert schedule(Send()).days_of_month(1, 15).options.calendar.cron == "0 0 1,15 * *"
    assert (
        schedule(Send()).days_of_month([1, 15]).at("13:00").options.calendar.cron == "0 13 1,15 * *"
    )


def test_groups_share_what_they_are_told() -> None:
    with schedule.group().daily_at("4:00").timezone("Asia/Kathmandu").on_queue("night"):
        first = schedule(Send())
        with schedule.group().on_queue("other"):
            second = schedule(Send()).hourly_at(5)
    third = schedule(Send()).daily()
    assert (first.options.calendar.cron, first.options.queue) == ("0 4 * * *", "night")
    assert (second.options.zone, second.options.queue) == ("Asia/Kathmandu", "other")
    assert (third.options.zone, third.options.queue) == ("", None)
