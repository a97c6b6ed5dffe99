"""Clocks: what the clock of a zone shows, and when it is changed.

What a clock shows is counted like epoch seconds, as if its zone were UTC, so that times of day and
days of the week are plain arithmetic. Here alone it is known that clocks are changed.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import pairwise

DAY = 86400


def offset(moment: int, zone: tzinfo) -> int:
    """Give by how many seconds a zone's clock is ahead of UTC."""
    ahead = datetime.fromtimestamp(moment, zone).utcoffset()
    return 0 if ahead is None else round(ahead.total_seconds())


def same_offset_until(moment: int, zone: tzinfo) -> int:
    """Give a later moment, up to which the clock runs on unchanged.

    At that moment it is changed, or a year begins, so that no search looks too far ahead.
    """
    year = datetime.fromtimestamp(moment, UTC).year
    return next(each for each in _changes(year, zone) if each > moment)


def first_shown(wall: int, zone: tzinfo) -> int:
    """Give when the clock first shows a time or, where that is skipped, goes past it."""
    naive = datetime.fromtimestamp(wall, UTC)
    moment = int(naive.replace(tzinfo=zone).timestamp())
    if moment + offset(moment, zone) == wall:
        return moment
    return _change(int(naive.replace(tzinfo=zone, fold=1).timestamp()), moment, zone)


def first_not_shown(moment: int, zone: tzinfo) -> int:
    """Give the first time that the clock has not shown or passed by a moment."""
    wall = moment + offset(moment, zone)
    first = first_shown(wall, zone)
    if first == moment:
        return wall + 1
    return _change(first, moment, zone) + offset(first, zone)  # an hour that comes twice


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
    """Give the moment between two at which the offset is no longer that of the first."""
    old = offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if offset(middle, zone) == old:
            before = middle
        else:
            after = middle
    return after
