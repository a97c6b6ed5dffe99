"""Clocks: what the clock of a zone shows, and when it changes.

Times shown by a clock are counted like epoch seconds, as if its zone were UTC, so that times of day
and days of the week are plain arithmetic. Only this module knows about clock changes.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import pairwise

DAY = 86400


def offset(moment: int, zone: tzinfo) -> int:
    """Return the seconds by which a zone's clock is ahead of UTC."""
    ahead = datetime.fromtimestamp(moment, zone).utcoffset()
    return 0 if ahead is None else round(ahead.total_seconds())


def same_offset_until(moment: int, zone: tzinfo) -> int:
    """Return a later moment, up to which the clock runs without a change.

    At that moment it changes, or a year begins, so that no search looks too far ahead.
    """
    year = datetime.fromtimestamp(moment, UTC).year
    return next(each for each in _changes(year, zone) if each > moment)


def first_shown(wall: int, zone: tzinfo) -> int:
    """Return when the clock first shows a time, or skips it."""
    naive = datetime.fromtimestamp(wall, UTC)
    moment = int(naive.replace(tzinfo=zone).timestamp())
    if moment + offset(moment, zone) == wall:
        return moment
    return _change(int(naive.replace(tzinfo=zone, fold=1).timestamp()), moment, zone)


def first_not_shown(moment: int, zone: tzinfo) -> int:
    """Return the first time that the clock has not shown or skipped by a moment."""
    wall = moment + offset(moment, zone)
    first = first_shown(wall, zone)
    if first == moment:
        return wall + 1
    return _change(first, moment, zone) + offset(first, zone)  # a repeated hour


@lru_cache(maxsize=1024)
def _changes(year: int, zone: tzinfo) -> tuple[int, ...]:
    begin, end = (int(datetime(each, 1, 1, tzinfo=UTC).timestamp()) for each in (year, year + 1))
    days = [*range(begin, end + 1, DAY)]
    offsets = [offset(each, zone) for each in days]
    found = [
        _change(day, day + DAY, zone)
        for day, (before, after) in zip(days, pairwise(offsets), strict=False)
        if before != after
    ]
    return (*found, end)


def _change(before: int, after: int, zone: tzinfo) -> int:
    """Return the moment, between two, at which the offset changes."""
    old = offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if offset(middle, zone) == old:
            before = middle
        else:
            after = middle
    return after
