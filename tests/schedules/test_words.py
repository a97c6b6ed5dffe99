"""Words: when a schedule runs, as a person says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qframe.schedules.parser import read
from qframe.schedules.words import in_words


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("daily_at 3:30", "daily at 03:30 Europe/Vienna"),
        ("twice_daily", "daily at 01:00 and 13:00 Europe/Vienna"),
        ("every 30s", "every 30s"),
        ("every_five_minutes", "every 5 minutes Europe/Vienna"),
        ("every_minute", "every minute Europe/Vienna"),
        ("hourly_at 15", "hourly at :15 Europe/Vienna"),
        ("every_two_hours", "every 2 hours at :00 Europe/Vienna"),
        ("weekly_on monday 8:00", "on Mondays at 08:00 Europe/Vienna"),
        ("30 3 * * 1-5", "on weekdays at 03:30 Europe/Vienna"),
        ("0 9 * * 0,6", "on weekends at 09:00 Europe/Vienna"),
        ("monthly_on 1 6:15", "monthly on day 1 at 06:15 Europe/Vienna"),
        ("last_day_of_month 23:00", "monthly on the last day at 23:00 Europe/Vienna"),
        ("yearly_on 12 24 6:00", "on day 24 of December at 06:00 Europe/Vienna"),
        (
            "every_five_minutes; between 8:00 18:00",
            "every 5 minutes, between 08:00 and 18:00 Europe/Vienna",
        ),
        (
            "every 10m; unless_between 1:00 2:00",
            "every 10m, not between 01:00 and 02:00 Europe/Vienna",
        ),
        ("every 10m; weekends", "every 10m, on weekends Europe/Vienna"),
        ("at 2027-01-01T00:00:00+00:00", "once, at 2027-01-01 00:00:00 UTC"),
        ("7,37 8-18/2 * * 1-5", "cron 7,37 8-18/2 * * 1-5 Europe/Vienna"),
        ("5 4 3 * 1", "cron 5 4 3 * 1 Europe/Vienna"),
        ("*/10 * * * * *", "cron */10 * * * * * Europe/Vienna"),
    ],
)
def test_it_is_said_in_words(when: str, words: str) -> None:
    assert in_words(replace(read(when), zone="Europe/Vienna")) == words


def test_the_zone_is_named_where_the_clock_counts() -> None:
    assert in_words(read("daily_at 3:30")) == "daily at 03:30 UTC"
    assert in_words(read("every 30s")) == "every 30s"
