"""Cadences: Laravel's methods for when. Each changes its part and keeps the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

from qframe.exceptions import ConfigurationError
from qframe.payload import timing
from qframe.payload.text import one_line
from qframe.schedules.calendar import (
    DayWindow,
    checked_cron,
    checked_interval,
    day_of_week,
    second_of_day,
)
from qframe.schedules.options import ScheduleOptions

_FIELDS = {"minute": 0, "hour": 1, "day": 2, "month": 3}


class Cadences:
    """When a job is planned; each method returns the object."""

    options: ScheduleOptions

    # -- cron, interval, moment -------------------------------------------------------------------

    def cron(self, expression: str) -> Self:
        """Plan by a cron expression of five fields, or of six with seconds first."""
        return self._calendar(cron=checked_cron(expression), every=0, at=None, days=None)

    def every(self, interval: timedelta | float) -> Self:
        """Plan each multiple of an interval since 1970; keeps the chosen days."""
        return self._calendar(every=checked_interval(interval), cron="", at=None)

    def at(self, moment: datetime | str) -> Self:
        """Plan once, at an aware datetime; a time of day is as in `daily_at`."""
        if isinstance(moment, str):
            return self.daily_at(moment)
        if type(moment) is not datetime or moment.utcoffset() is None:
            raise ConfigurationError(
                f"at takes an aware datetime, or a time of day, not {one_line(repr(moment), 60)}"
            )
        try:
            at = timing.moment(moment, "at")
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if at < 0:
            raise ConfigurationError(f"at takes a moment from 1970 on, not {moment}")
        return self._calendar(at=at, cron="", every=0)

    # -- seconds and minutes ----------------------------------------------------------------------

    def every_seconds(self, seconds: int) -> Self:
        """Plan every `seconds` seconds."""
        return self.every(seconds)

    def every_second(self) -> Self:
        """Plan every second."""
        return self.every(1)

    def every_two_seconds(self) -> Self:
        """Plan every two seconds."""
        return self.every(2)

    def every_five_seconds(self) -> Self:
        """Plan every five seconds."""
        return self.every(5)

    def every_ten_seconds(self) -> Self:
        """Plan every 10 seconds."""
        return self.every(10)

    def every_fifteen_seconds(self) -> Self:
        """Plan every 15 seconds."""
        return self.every(15)

    def every_twenty_seconds(self) -> Self:
        """Plan every 20 seconds."""
        return self.every(20)

    def every_thirty_seconds(self) -> Self:
        """Plan every 30 seconds."""
        return self.every(30)

    def every_minutes(self, minutes: int) -> Self:
        """Plan every `minutes` minutes."""
        return self.every(checked_interval(minutes) * 60)

    def every_minute(self) -> Self:
        """Plan every minute."""
        return self._fields(minute="*")

    def every_two_minutes(self) -> Self:
        """Plan every two minutes."""
        return self._fields(minute="*/2")

    def every_three_minutes(self) -> Self:
        """Plan every three minutes."""
        return self._fields(minute="*/3")

    def every_four_minutes(self) -> Self:
        """Plan every four minutes."""
        return self._fields(minute="*/4")

    def every_five_minutes(self) -> Self:
        """Plan every five minutes."""
        return self._fields(minute="*/5")

    def every_ten_minutes(self) -> Self:
        """Plan every ten minutes."""
        return self._fields(minute="*/10")

    def every_fifteen_minutes(self) -> Self:
        """Plan every 15 minutes."""
        return self._fields(minute="*/15")

    def every_thirty_minutes(self) -> Self:
        """Plan every 30 minutes."""
        return self._fields(minute="*/30")

    # -- hours ------------------------------------------------------------------------------------

    def hourly(self) -> Self:
        """Plan every full hour."""
        return self.hourly_at(0)

    def hourly_at(self, *minutes: int | Sequence[int]) -> Self:
        """Plan every hour at these minutes."""
        return self._fields(minute=_listed("minutes", minutes, 0, 59), hour="*")

    def every_odd_hour(self, minute: int = 0) -> Self:
        """Plan the hours 1, 3, 5, ..."""
        return self._fields(minute=minute, hour="1-23/2")

    def every_two_hours(self, minute: int = 0) -> Self:
        """Plan the hours 0, 2, 4, ..."""
        return self._fields(minute=minute, hour="*/2")

    def every_three_hours(self, minute: int = 0) -> Self:
        """Plan the hours 0, 3, 6, ..."""
        return self._fields(minute=minute, hour="*/3")

    def every_four_hours(self, minute: int = 0) -> Self:
        """Plan the hours 0, 4, 8, ..."""
        return self._fields(minute=minute, hour="*/4")

    def every_six_hours(self, minute: int = 0) -> Self:
        """Plan the hours 0, 6, 12, 18."""
        return self._fields(minute=minute, hour="*/6")

    # -- days and longer --------------------------------------------------------------------------

    def daily(self) -> Self:
        """Plan every day at midnight."""
        return self.daily_at("0:00")

    def daily_at(self, time: str) -> Self:
        """Plan a time of day; after `weekly`, `monthly`, ...: on their days."""
        hour, minute = _hour_and_minute(time)
        return self._fields(minute=minute, hour=hour)

    def twice_daily(self, first: int = 1, second: int = 13) -> Self:
        """Plan two hours of each day."""
        return self.twice_daily_at(first, second, 0)

    def twice_daily_at(self, first: int = 1, second: int = 13, minute: int = 0) -> Self:
        """Plan two hours of each day, at a minute."""
        return self._fields(minute=minute, hour=f"{first},{second}")

    def weekly(self) -> Self:
        """Plan every Sunday at midnight."""
        return self.weekly_on(0)

    def weekly_on(self, day: int | str | Sequence[int | str], time: str = "0:00") -> Self:
        """Plan a day of the week (0 is Sunday), or several."""
        days: Any = day if isinstance(day, list | tuple) else [day]
        return self.daily_at(time).days(*days)

    def monthly(self) -> Self:
        """Plan the first day of each month at midnight."""
        return self.monthly_on(1)

    def monthly_on(self, day: int = 1, time: str = "0:00") -> Self:
        """Plan a day of each month."""
        return self.daily_at(time)._fields(day=day)

    def twice_monthly(self, first: int = 1, second: int = 16, time: str = "0:00") -> Self:
        """Plan two days of each month."""
        return self.daily_at(time)._fields(day=f"{first},{second}")

    def days_of_month(self, *days: int | Sequence[int]) -> Self:
        """Plan these days of each month, at midnight unless `at` follows."""
        return self.daily()._fields(day=_listed("days of the month", days, 1, 31))

    def last_day_of_month(self, time: str = "0:00") -> Self:
        """Plan the last day of each month."""
        return self.daily_at(time)._fields(day="L")

    def quarterly(self) -> Self:
        """Plan the first day of each quarter at midnight."""
        return self.quarterly_on(1)

    def quarterly_on(self, day: int = 1, time: str = "0:00") -> Self:
        """Plan a day in the first month of each quarter."""
        return self.daily_at(time)._fields(day=day, month="1,4,7,10")

    def yearly(self) -> Self:
        """Plan the first of January at midnight."""
        return self.yearly_on()

    def yearly_on(self, month: int = 1, day: int = 1, time: str = "0:00") -> Self:
        """Plan a day of each year."""
        return self.daily_at(time)._fields(day=day, month=month)

    # -- days of the week, and windows ------------------------------------------------------------

    def days(self, *days: int | str) -> Self:
        """Plan only these days of the week: 0 is Sunday, or their names."""
        if not days:
            raise ConfigurationError("days needs at least one day of the week")
        return self._calendar(days=frozenset(day_of_week(each) for each in days))

    def weekdays(self) -> Self:
        """Plan only Monday to Friday."""
        return self.days(1, 2, 3, 4, 5)

    def weekends(self) -> Self:
        """Plan only Saturday and Sunday."""
        return self.days(6, 0)

    def sundays(self) -> Self:
        """Plan only on Sundays."""
        return self.days(0)

    def mondays(self) -> Self:
        """Plan only on Mondays."""
        return self.days(1)

    def tuesdays(self) -> Self:
        """Plan only on Tuesdays."""
        return self.days(2)

    def wednesdays(self) -> Self:
        """Plan only on Wednesdays."""
        return self.days(3)

    def thursdays(self) -> Self:
        """Plan only on Thursdays."""
        return self.days(4)

    def fridays(self) -> Self:
        """Plan only on Fridays."""
        return self.days(5)

    def saturdays(self) -> Self:
        """Plan only on Saturdays."""
        return self.days(6)

    def between(self, begin: str, end: str) -> Self:
        """Plan only this part of the day, both ends included; it may go past midnight."""
        return self._window(begin, end, inside=True)

    def unless_between(self, begin: str, end: str) -> Self:
        """Plan only outside of this part of the day."""
        return self._window(begin, end, inside=False)

    # -- internal ---------------------------------------------------------------------------------

    def _calendar(self, **changes: Any) -> Self:  # noqa: ANN401 (the fields of Calendar)
        self.options = replace(self.options, calendar=replace(self.options.calendar, **changes))
        return self

    def _fields(self, **fields: int | str) -> Self:
        written = (self.options.calendar.cron or "* * * * *").split()
        at = len(written) - 5
        for name, value in fields.items():
            written[at + _FIELDS[name]] = str(value)
        cron = checked_cron(" ".join(written))
        return self._calendar(cron=cron, every=0, at=None)

    def _window(self, begin: str, end: str, *, inside: bool) -> Self:
        window = DayWindow(second_of_day(begin), second_of_day(end), inside)
        return self._calendar(windows=(*self.options.calendar.windows, window))


def _hour_and_minute(time: str) -> tuple[int, int]:
    second = second_of_day(time)
    if second % 60:
        raise ConfigurationError(f"{time!r}: a time of day has no seconds here; use cron")
    return second // 3600, second // 60 % 60


def _listed(what: str, numbers: Sequence[int | Sequence[int]], least: int, most: int) -> str:
    flat: list[object] = []
    for each in numbers:
        flat += each if isinstance(each, list | tuple) else [each]
    if not flat or not all(type(each) is int and least <= each <= most for each in flat):
        shown = one_line(", ".join(map(repr, flat)) or "none", 60)
        raise ConfigurationError(f"{what} are {least} to {most}, not {shown}")
    return ",".join(map(str, flat))
