"""Catching up: which planned times run and which are missed, after no worker ran."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from qframe.schedules.definition import Schedule
from qframe.schedules.track import ScheduleTrack

PROMPT = 10.0
"""Seconds by which a run may be late without being missed."""
_MOST = 500
"""The most runs of a schedule in one turn."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What to do for a schedule now."""

    runs: tuple[float, ...] = ()
    """The planned times to run, in order."""
    missed: tuple[float, float] | None = None
    """The first missed time, and the last moment of those before `runs`."""


def catch_up(schedule: Schedule, track: ScheduleTrack, now: float) -> CatchUp:
    """Choose from the planned times since the last one.

    All times of the last ten seconds run. For earlier ones the schedule decides: none, the last, or
    all within its grace.
    """
    calendar, terms = schedule.terms.calendar, schedule.terms
    first = calendar.next(track.at)
    if first is None or first > now:
        return CatchUp()
    late = now - PROMPT
    recent = tuple(islice(calendar.upto(max(track.at, late), now), _MOST))
    if first > late:
        return CatchUp(recent)
    earlier: tuple[float, ...] = ()
    reach = max(track.at, now - terms.grace)
    if terms.missed == "all":
        earlier = tuple(islice(calendar.upto(reach, late), _MOST))
        if len(earlier) == _MOST:  # the others follow in the next turn
            recent = ()
    elif terms.missed == "last" and not recent:
        last = calendar.last(reach, late)
        earlier = () if last is None else (last,)
    runs = earlier + recent
    if runs and runs[0] == first:
        return CatchUp(runs)
    return CatchUp(runs, (first, _before(runs, late)))


def _before(runs: tuple[float, ...], late: float) -> float:
    return min(late, runs[0] - 0.001) if runs else late
