"""Calendar: the planned times of a schedule, computed without memory.

Times are planned in the schedule's own zone and returned as epoch seconds. Two rules apply to clock
changes, as in Debian's cron. A schedule with fixed times of day runs once for each: right after a
skipped hour, and in the first of a repeated hour. All others follow the clock. Days and windows
belong to the plan, so they are checked before a time is moved. Intervals count from 1970, so they
do not drift.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line
from qframe.payload.timing import iso
from qframe.schedules.clocks import DAY, first_not_shown, first_shown, offset, same_offset_until

_JUMPS = 3000
"""The most excluded times to skip before nothing is planned at all."""
_FIRST_DAY = 4
"""1970 began on a Thursday."""
_LONGEST = 366 * DAY
_SHORTCUTS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


@dataclass(frozen=True, slots=True)
class DayWindow:
    """A part of the day in seconds since midnight, both ends included; it may go past midnight."""

    begin: int
    end: int
    inside: bool = True
    """Whether times inside or outside of it are planned."""

    def allows(self, second: int) -> bool:
        """Whether it allows a second of the day."""
        if self.begin <= self.end:
            within = self.begin <= second <= self.end
        else:
            within = second >= self.begin or second <= self.end
        return within is self.inside

    def text(self) -> str:
        """Return its text."""
        word = "between" if self.inside else "unless_between"
        return f"{word} {_clock(self.begin)} {_clock(self.end)}"


@dataclass(frozen=True, slots=True)
class Calendar:
    """When a job is planned: by `cron`, `every` so many seconds, or once `at` an epoch time."""

    cron: str = ""
    every: int = 0
    at: float | None = None
    days: frozenset[int] | None = None
    """The days of the week (0 is Sunday); None for all."""
    windows: tuple[DayWindow, ...] = ()
    zone: str = "UTC"

    @property
    def is_set(self) -> bool:
        """Whether it has any planned time."""
        return bool(self.cron or self.every or self.at is not None)

    def next(self, after: float) -> float | None:
        """Return the first planned time after a moment; None if there is none."""
        return _next(self, after)

    def upto(self, after: float, until: float) -> Iterator[float]:
        """Iterate over the planned times after a moment, up to and including another."""
        found = self.next(after)
        while found is not None and found <= until:
            yield found
            found = self.next(found)

    def last(self, after: float, until: float) -> float | None:
        """Return the last of `upto`, without going through all of them."""
        reach = 120.0
        while True:
            begin = max(after, until - reach)
            found = None
            for found in self.upto(begin, until):  # noqa: B007 (the last one)
                pass
            if found is not None or begin <= after:
                return found
            reach *= 8

    def local(self, moment: float) -> datetime:
        """Convert a moment to its zone."""
        return datetime.fromtimestamp(moment, zone_of(self.zone))

    def text(self) -> str:
        """Return the text that `qframe.schedules.parser.read` parses, without the zone."""
        if self.at is not None:
            first = f"at {datetime.fromtimestamp(self.at, UTC).isoformat()}"
        elif self.every:
            first = f"every {_lasting(self.every)}"
        else:
            first = self.cron
        rest = [] if self.days is None else [_days_text(self.days)]
        return "; ".join([first, *rest, *(each.text() for each in self.windows)])

    def shown(self) -> str:
        """Return the text with the zone."""
        return self.text() if self.zone == "UTC" else f"{self.text()} ({self.zone})"

    # -- computation ------------------------------------------------------------------------------

    def find(self, after: float) -> float | None:
        """Compute `next`."""
        zone = zone_of(self.zone)
        if self.at is not None:
            second = math.floor(self.at)
            wall = second + offset(second, zone)
            return self.at if self.at > after and self._allowed_from(wall) == wall else None
        last = math.floor(after)
        found = self._fixed(last, zone) if self._is_fixed() else self._by_clock(last, zone)
        return None if found is None else float(found)

    def _is_fixed(self) -> bool:
        """Whether it has fixed times of day, with one run for each, whatever the clock does."""
        return bool(self.cron) and not any(
            field.startswith("*") for field in self.cron.split()[-5:-3]
        )

    def _fixed(self, last: int, zone: tzinfo) -> int | None:
        """Return the moment of the first fixed time of day that is planned."""
        wall = first_not_shown(last, zone)
        for _ in range(_JUMPS):
            found = self._by_cron(wall)
            if found is None:
                return None
            wall = self._allowed_from(found)
            if wall == found:
                return first_shown(found, zone)
        return None

    def _by_clock(self, last: int, zone: tzinfo) -> int | None:
        """Return the first moment at which the clock shows a planned time."""
        begin = last + 1
        for _ in range(_JUMPS):
            ahead = offset(begin, zone)
            found = self._by_interval(begin, ahead) if self.every else self._by_cron(begin + ahead)
            if found is None:
                return None
            wall = self._allowed_from(found)
            changed = same_offset_until(begin, zone)
            if wall - ahead >= changed:
                begin = changed
            elif wall > found:
                begin = wall - ahead
            else:
                return wall - ahead
        return None

    def _by_interval(self, begin: int, ahead: int) -> int:
        return -(-begin // self.every) * self.every + ahead

    def _by_cron(self, wall: int) -> int | None:
        """Return the first time of the expression, from `wall` on."""
        before = datetime.fromtimestamp(wall - 1, UTC)
        found = next(CronSim(self.cron, before), None)
        return None if found is None else int(found.timestamp())

    def _allowed_from(self, wall: int) -> int:
        """Return `wall` if its day and windows allow it; otherwise when that may change."""
        midnight = wall - wall % DAY
        if self.days is not None and (wall // DAY + _FIRST_DAY) % 7 not in self.days:
            return midnight + DAY
        second = wall - midnight
        if all(each.allows(second) for each in self.windows):
            return wall
        edges = {edge for each in self.windows for edge in (each.begin, each.end + 1)}
        return midnight + min([DAY, *(edge for edge in edges if edge > second)])


@lru_cache(maxsize=8192)
def _next(calendar: Calendar, after: float) -> float | None:
    return calendar.find(after)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """Return a time zone. Raises `ConfigurationError` for an unknown name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"unknown time zone {one_line(name, 60)!r}{nearest(name, available_timezones())}"
        ) from None


def checked_cron(text: str) -> str:
    """Return an expression in a normalized form. Raises `ConfigurationError`."""
    if not isinstance(text, str):
        raise ConfigurationError(f"a cron expression is text, not {type(text).__name__}")
    words = " ".join(_SHORTCUTS.get(text.strip().lower(), text).split())
    try:
        CronSim(words, datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError, IndexError) as error:
        why = one_line(str(error), 60)
        raise ConfigurationError(
            f"{one_line(text, 80)!r} is no cron expression ({why}): five fields, minute first, or "
            "six, second first"
        ) from None
    return words


def checked_interval(value: timedelta | float) -> int:
    """Return an interval in seconds. Raises `ConfigurationError`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigurationError(
            f"an interval is seconds or a timedelta, not {one_line(repr(value), 40)}"
        )
    if not 1 <= seconds <= _LONGEST or seconds != int(seconds):
        raise ConfigurationError(
            "an interval is a whole number of seconds, from 1 to 366 days, not "
            f"{one_line(f'{seconds:,}', 40)}"
        )
    return int(seconds)


def second_of_day(text: str) -> int:
    """Parse `13:00` or `13:00:30`. Raises `ConfigurationError`."""
    found = re.fullmatch(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?", str(text))
    hour, minute, second = (int(each or 0) for each in found.groups()) if found else (24, 0, 0)
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 (a clock)
        raise ConfigurationError(f"{one_line(str(text), 40)!r} is no time of day, like 13:00")
    return hour * 3600 + minute * 60 + second


def day_of_week(given: int | str) -> int:
    """Parse a day of the week: 0 or 7 is Sunday, or its name. Raises `ConfigurationError`."""
    if isinstance(given, str) and re.fullmatch("0*[0-7]", given):
        given = int(given)
    if isinstance(given, int) and 0 <= given <= 7:  # noqa: PLR2004 (days)
        return given % 7
    text = str(given).lower()
    for number, name in enumerate(_NAMES):
        if len(text) > 2 and name.startswith(text.removesuffix("s")):  # noqa: PLR2004 (a short name)
            return number
    raise ConfigurationError(f"{one_line(str(given), 40)!r} is no day of the week")


def _days_text(days: frozenset[int]) -> str:
    if days == {1, 2, 3, 4, 5}:
        return "weekdays"
    if days == {0, 6}:
        return "weekends"
    return "days " + " ".join(_NAMES[each] for each in sorted(days))


def _clock(second: int) -> str:
    hour, minute, second = second // 3600, second // 60 % 60, second % 60
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def _lasting(seconds: int) -> str:
    for unit, size in (("d", DAY), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def shown(moment: float | None, zone: str = "UTC") -> str:
    """Format a planned time in its zone, to the second."""
    if moment is None:
        return ""
    if zone == "UTC":
        return iso(moment)
    return datetime.fromtimestamp(moment, zone_of(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")
