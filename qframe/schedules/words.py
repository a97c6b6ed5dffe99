"""Words: when a schedule runs, as a person says it."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime

from qframe.payload.timing import lasting
from qframe.schedules.calendar import Calendar, DayWindow

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_NUMBERS = re.compile(r"\d+(?:,\d+)*")
_STEP = re.compile(r"\*/(\d+)")
_MOST_TIMES = 4
_WEEKDAYS, _WEEKEND = frozenset({1, 2, 3, 4, 5}), frozenset({0, 6})


def in_words(calendar: Calendar) -> str:
    """Return when a calendar runs, like `daily at 03:30 Europe/Vienna`.

    A cron expression that has no short wording is returned as it is.
    """
    if calendar.at is not None:
        return f"once, at {datetime.fromtimestamp(calendar.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if calendar.every:
        words = [f"every {lasting(calendar.every)}"]
    else:
        words = [_of_cron(calendar.cron, calendar.days) or f"cron {calendar.cron}"]
    is_daily = words[0].startswith("daily")
    if calendar.days is not None and is_daily:
        words[0] = _on_days(calendar.days) + words[0].removeprefix("daily")
    elif calendar.days is not None:
        words.append(_on_days(calendar.days))
    words += [_window(each) for each in calendar.windows]
    is_of_clock = not calendar.every or calendar.windows or calendar.days is not None
    return ", ".join(words) + (f" {calendar.zone}" if is_of_clock else "")


def _window(window: DayWindow) -> str:
    _, begin, end = window.text().split()
    return f"{'' if window.inside else 'not '}between {begin} and {end}"


def _of_cron(cron: str, days: Collection[int] | None) -> str | None:
    """Return the words of an expression of five fields, without its time zone."""
    fields = cron.split()
    if len(fields) != 5:  # noqa: PLR2004 (those without seconds)
        return None
    minute, hour, day, month, weekday = fields
    times = _times(minute, hour)
    if times is None:
        return _often(fields)
    on = _date(day, month) if weekday == "*" else None
    if weekday != "*" and (day, month) == ("*", "*") and days is None:
        on = _cron_days(weekday)
    return None if on is None else f"{on} at {times}"


def _often(fields: list[str]) -> str | None:
    """Return how often it runs within a day, if that is on each day."""
    minute, hour, *rest = fields
    if rest != ["*", "*", "*"]:
        return None
    if (step := _STEP.fullmatch(hour)) and minute.isdecimal():
        return f"every {step[1]} hours at :{int(minute):02}"
    return _of_minutes(minute) if hour == "*" else None


def _of_minutes(minute: str) -> str | None:
    if minute == "*":
        return "every minute"
    if step := _STEP.fullmatch(minute):
        return f"every {step[1]} minutes"
    if not _NUMBERS.fullmatch(minute):
        return None
    return f"hourly at {_and([f':{int(each):02}' for each in minute.split(',')])}"


def _times(minute: str, hour: str) -> str | None:
    if not (_NUMBERS.fullmatch(minute) and _NUMBERS.fullmatch(hour)):
        return None
    found = [f"{int(h):02}:{int(m):02}" for h in hour.split(",") for m in minute.split(",")]
    return _and(found) if len(found) <= _MOST_TIMES else None


def _date(day: str, month: str) -> str | None:
    if (day, month) == ("*", "*"):
        return "daily"
    if month != "*" and not _NUMBERS.fullmatch(month):
        return None
    months = [] if month == "*" else [_MONTHS[int(each) - 1] for each in month.split(",")]
    if day == "L":
        which = "on the last day"
    elif _NUMBERS.fullmatch(day):
        which = f"on day {_and(day.split(','))}"
    else:
        return None
    return f"{which} of {_and(months)}" if months else f"monthly {which}"


def _cron_days(weekday: str) -> str | None:
    if _NUMBERS.fullmatch(weekday):
        return _on_days({int(each) % 7 for each in weekday.split(",")})
    if weekday == "1-5":
        return _on_days(_WEEKDAYS)
    return None


def _on_days(days: Collection[int]) -> str:
    if set(days) == _WEEKDAYS:
        return "on weekdays"
    if set(days) == _WEEKEND:
        return "on weekends"
    return (
        f"on {_and([f'{_DAYS[each]}s' for each in sorted(days, key=lambda each: (each - 1) % 7)])}"
    )


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
