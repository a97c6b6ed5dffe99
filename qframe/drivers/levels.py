"""Levels: what a priority is worth on backends whose queues are in order of readiness.

A level is worth seconds of waiting. Whatever its level, a message is overtaken only by those that
became ready less than these seconds behind it, so none waits for ever.
"""

from __future__ import annotations

from bisect import bisect_right

FIRST = (0, 1, 10, 100, 1000, 1024, 1025, 1049, 2000, 10_000)
"""The first priority of each level; the level in the middle is the default's alone."""
MIDDLE = FIRST.index(1024)
"""The level of messages without a priority."""
AGING = 600
"""Seconds that a level is worth, unless a connection says otherwise."""
LONGEST_AGING = 7 * 86400


def level_of(priority: int | None) -> int:
    """Return the level of a priority, 0 the first; a larger number is no error."""
    return MIDDLE if priority is None else bisect_right(FIRST, max(0, priority)) - 1


def behind(level: int, aging: float) -> float:
    """Return by how many seconds a level comes behind the default's; negative if before it."""
    return (level - MIDDLE) * aging
