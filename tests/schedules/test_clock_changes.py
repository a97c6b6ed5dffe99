"""Planned times where the clocks are changed, against a model that walks minute by minute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from qframe import manager, schedule
from qframe.schedules.calendar import Calendar
from qframe.schedules.parser import read
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from tests.schedules.conftest import Bench, Send

Wall = datetime
"""What the clock on the wall shows: a naive datetime."""
Minute = tuple[int, Wall]

ZONES = {
    "Europe/Vienna": 2027,
    "America/New_York": 2027,
    "Australia/Lord_Howe": 2027,  # by half an hour
    "Africa/Casablanca": 2027,  # back for Ramadan
    "America/Santiago": 2027,  # in the south, at midnight
    "America/Nuuk": 2027,  # from Saturday 23:00 to Sunday
    "Asia/Kolkata": 2027,  # never
    "America/Sao_Paulo": 2018,  # midnight is skipped, the hour before comes twice
    "Asia/Tehran": 2021,
    "America/St_Johns": 2006,  # at a minute past midnight, back into the day before
}


def between(begin: str, end: str) -> Callable[[Wall], bool]:
    first, last = (int(each[:2]) * 60 + int(each[3:]) for each in (begin, end))
    if first <= last:
        return lambda wall: first <= wall.hour * 60 + wall.minute <= last
    return lambda wall: not last < wall.hour * 60 + wall.minute < first


def unless(begin: str, end: str) -> Callable[[Wall], bool]:
    within = between(begin, end)
    return lambda wall: not within(wall)


BY_CLOCK: dict[str, Callable[[Wall], bool]] = {
    "hourly": lambda wall: wall.minute == 0,
    "hourly_at 30": lambda wall: wall.minute == 30,
    "hourly_at 45": lambda wall: wall.minute == 45,
    "every_fifteen_minutes": lambda wall: wall.minute % 15 == 0,
    "17 */2 * * *": lambda wall: wall.minute == 17 and wall.hour % 2 == 0,
    "0 */20 1-3 * * *": lambda wall: wall.minute % 20 == 0 and 1 <= wall.hour <= 3,
}
FIXED: dict[str, Callable[[Wall], bool]] = {
    "daily": lambda wall: (wall.hour, wall.minute) == (0, 0),
    "daily_at 2:30": lambda wall: (wall.hour, wall.minute) == (2, 30),
    "daily_at 23:30": lambda wall: (wall.hour, wall.minute) == (23, 30),
    "15,45 1-3 * * *": lambda wall: wall.minute in {15, 45} and 1 <= wall.hour <= 3,
    "0 30 2 * * *": lambda wall: (wall.hour, wall.minute) == (2, 30),
}
EVERY = {"every 15m": 15, "every 7m": 7, "every 90m": 90}
LIMITS: dict[str, Callable[[Wall], bool]] = {
    "": lambda _: True,
    "between 02:30 23:59": between("02:30", "23:59"),
    "between 02:00 02:20": between("02:00", "02:20"),
    "between 23:00 23:20": between("23:00", "23:20"),
    "between 22:30 02:10": between("22:30", "02:10"),
    "unless_between 02:30 04:00": unless("02:30", "04:00"),
    "unless_between 23:15 00:45": unless("23:15", "00:45"),
    "between 01:00 05:00; unless_between 02:15 02:45": lambda wall: (
        between("01:00", "05:00")(wall) and unless("02:15", "02:45")(wall)
    ),
    "sundays": lambda wall: wall.weekday() == 6,
    "saturdays; between 23:00 23:59": lambda wall: (
        wall.weekday() == 5 and between("23:00", "23:59")(wall)
    ),
}


WEEKEND = [
    datetime.combine(date(2027, 6, 12), time()) + timedelta(minutes=each)
    for each in range(2 * 24 * 60)
]
SOMETIMES = [
    (cadence, text)
    for text, limit in LIMITS.items()
    for allowed in [[*filter(limit, WEEKEND)]]
    for cadence, at in {**BY_CLOCK, **FIXED, **dict.fromkeys(EVERY, limit)}.items()
    if any(map(at, allowed))
]
"""That something is never due is found out at some length."""


class Walk:
    """The minutes of a time in a zone, one after the other, and what the clock shows at each."""

    def __init__(self, zone: str, begin: datetime, end: datetime) -> None:
        self.zone, self.begin, self.end = zone, begin, end
        shown: list[Minute] = []
        reached: list[Minute] = []
        """When the clock first showed a time of day, or went past it."""
        first, last = int(begin.timestamp()) + 60, int(end.timestamp())
        furthest = self._wall(first - 60)
        for moment in range(first, last + 1, 60):
            wall = self._wall(moment)
            shown.append((moment, wall))
            while furthest < wall:
                furthest += timedelta(minutes=1)
                reached.append((moment, furthest))
        self._at = {
            **{name: [each for each in shown if at(each[1])] for name, at in BY_CLOCK.items()},
            **{name: [each for each in reached if at(each[1])] for name, at in FIXED.items()},
            **{
                name: [each for each in shown if each[0] % (minutes * 60) == 0]
                for name, minutes in EVERY.items()
            },
        }
        walls = {wall for _, wall in (*shown, *reached)}
        self._allowed = {text: {*filter(limit, walls)} for text, limit in LIMITS.items()}

    def _wall(self, moment: int) -> Wall:
        return datetime.fromtimestamp(moment, ZoneInfo(self.zone)).replace(tzinfo=None)

    def wanted(self, cadence: str, text: str) -> list[int]:
        """Give when it is planned, by the sentences of the page."""
        allowed = self._allowed[text]
        return sorted({moment for moment, wall in self._at[cadence] if wall in allowed})

    def check(self, most: float = math.inf) -> int:
        """Compare the pairs that are planned at most so many times; give how many these are."""
        pairs = [
            (cadence, text, wanted)
            for cadence, text in SOMETIMES
            if len(wanted := self.wanted(cadence, text)) <= most
        ]
        for cadence, text, wanted in pairs:
            words = f"{cadence}; {text}"
            calendar = replace(read(words), zone=self.zone)
            found = planned(calendar, self.begin, self.end)
            assert found == wanted, (words, *self._difference(found, wanted))
        return len(pairs)

    def _difference(self, found: Iterable[float], wanted: Iterable[float]) -> list[str]:
        return [
            f"{'too many' if moment in found else 'left out'}: "
            f"{datetime.fromtimestamp(moment, ZoneInfo(self.zone))}"
            for moment in sorted(set(found) ^ set(wanted))
        ]


def planned(calendar: Calendar, begin: datetime, end: datetime) -> list[float]:
    return list(calendar.upto(begin.timestamp(), end.timestamp()))


def changes(zone: str, year: int) -> list[datetime]:
    """Give the hours in which a zone's clocks are changed; one that is like any, without such."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=each) for each in range(365 * 24)]
    offsets = [each.astimezone(ZoneInfo(zone)).utcoffset() for each in hours]
    found = [
        hour
        for hour, offset, after in zip(hours, offsets, offsets[1:], strict=False)
        if offset != after
    ]
    return found or [datetime(year, 6, 12, 20, tzinfo=UTC)]


@pytest.mark.parametrize("zone", ZONES)
def test_around_a_clock_change_windows_go_by_the_clock(zone: str) -> None:
    for hour in changes(zone, ZONES[zone]):
        walk = Walk(zone, hour - timedelta(days=1), hour + timedelta(days=2))
        assert walk.check() == len(SOMETIMES)


@pytest.mark.slow
@pytest.mark.parametrize("zone", [*ZONES][:6])
def test_a_year_with_windows(zone: str) -> None:
    """Those that are planned up to ten times a day; the others are compared around the changes."""
    begin = datetime(ZONES[zone], 1, 1, tzinfo=UTC)
    assert Walk(zone, begin, begin + timedelta(days=365)).check(most=3650) > len(SOMETIMES) / 2


def local(words: str, zone: str, day: date) -> list[str]:
    calendar = replace(read(words), zone=zone)
    begin = datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)
    found = planned(calendar, begin - timedelta(seconds=1), begin + timedelta(hours=6))
    return [f"{calendar.local(each):%H:%M%z}" for each in found]


SPRING, AUTUMN = date(2027, 3, 28), date(2027, 10, 31)


def test_a_window_that_begins_in_the_skipped_hour_is_open_right_after_it() -> None:
    found = local("hourly; between 2:30 23:59", "Europe/Vienna", SPRING)
    assert found[:2] == ["03:00+0200", "04:00+0200"]


def test_a_window_in_the_hour_that_comes_twice_is_open_twice() -> None:
    for words in ("every_fifteen_minutes", "every 15m"):
        found = local(f"{words}; between 2:00 2:20", "Europe/Vienna", AUTUMN)
        assert found == ["02:00+0200", "02:15+0200", "02:00+0100", "02:15+0100"]


def test_a_fixed_time_is_asked_of_its_window_as_it_was_planned() -> None:
    moved = ["03:00+0200"]
    assert local("daily_at 2:30; between 2:00 2:45", "Europe/Vienna", SPRING) == moved
    assert local("daily_at 2:30; unless_between 3:00 4:00", "Europe/Vienna", SPRING) == moved
    assert local("daily_at 2:30; unless_between 2:00 2:45", "Europe/Vienna", SPRING) == []
    assert local("daily_at 2:30; between 2:00 2:45", "Europe/Vienna", AUTUMN) == ["02:30+0200"]


def test_a_fixed_time_stays_on_its_day_where_the_skipped_hour_ends_one() -> None:
    sunday = date(2027, 3, 28)
    assert local("daily_at 23:30; saturdays", "America/Nuuk", sunday) == ["00:00-0100"]
    assert local("daily_at 23:30; sundays", "America/Nuuk", sunday) == []


def test_a_fixed_time_with_seconds_runs_once_like_one_without() -> None:
    assert local("15 30 2 * * *", "Europe/Vienna", SPRING) == ["03:00+0200"]
    assert local("15 30 2 * * *", "Europe/Vienna", AUTUMN) == ["02:30+0200"]


def test_each_second_written_out_stands_still_in_the_hour_that_comes_twice() -> None:
    calendar = replace(read("0-59 0-59 0-23 * * *"), zone="Europe/Vienna")
    change = datetime(2027, 10, 31, 1, tzinfo=UTC).timestamp()
    assert calendar.next(change - 2) == change - 1
    assert calendar.next(change - 1) == calendar.next(change + 7) == change + 3600


def test_a_day_that_a_zone_left_out() -> None:
    calendar = replace(read("daily_at 12:00; fridays"), zone="Pacific/Apia")
    begin = datetime(2011, 12, 27, tzinfo=UTC)
    found = planned(calendar, begin, begin + timedelta(days=12))
    assert [str(calendar.local(each)) for each in found] == [
        "2011-12-31 00:00:00+14:00",
        "2012-01-06 12:00:00+14:00",
    ]


def test_the_end_of_a_window_is_in_it_to_the_second() -> None:
    for end in ("02:00:30", "23:59:59"):
        calendar = replace(read(f"every_second; between 2:00 {end}"), zone="Europe/Vienna")
        vienna = ZoneInfo("Europe/Vienna")
        moment = datetime.combine(date(2027, 6, 1), time.fromisoformat(end), vienna)
        at = moment.timestamp()
        assert calendar.next(at - 1) == at
        tomorrow = moment.replace(hour=2, minute=0, second=0) + timedelta(days=1)
        assert calendar.next(at) == tomorrow.timestamp()


def test_code_and_rows_dispatch_both_passes(bench: Bench) -> None:
    when = "every_fifteen_minutes; between 2:00 2:20"
    row = ScheduleRow(job="App.Sync", foreign=True, when=when, timezone="Europe/Vienna")
    ScheduleRows(manager.default()).add(bench.queue, "row", row)
    zoned = schedule(Send()).name("code").timezone("Europe/Vienna")
    zoned.every_fifteen_minutes().between("2:00", "2:20")
    begin = datetime(2027, 10, 30, 22, tzinfo=UTC)
    bench.clock.now = begin.timestamp()
    bench.pass_(bench.host(), seconds=6 * 3600, step=300)
    for name in ("row", "code"):
        runs = [each["schedule"] for each in bench.payloads()]
        at = [each["at"] for each in runs if each["name"] == name]
        clock = [datetime.fromtimestamp(each, ZoneInfo("Europe/Vienna")) for each in sorted(at)]
        assert [f"{each:%H:%M%z}" for each in clock] == [
            "02:00+0200", "02:15+0200", "02:00+0100", "02:15+0100",
        ]  # fmt: skip
