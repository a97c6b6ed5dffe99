"""Catching up: which planned times have a run, and which are missed, after nobody was there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from qframe.schedules.definition import Schedule
from qframe.schedules.track import ScheduleTrack

PROMPT = 10.0
"""Seconds by which a run may be late and is not yet missed."""
_MOST = 500
"""So many runs of a schedule are made in one turn."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What is to be done of a schedule now."""

    runs: tuple[float, ...] = ()
    """The planned times that have a run, in order."""
    missed: tuple[float, float] | None = None
    """The first planned time without, and the moment up to which there are such, before `runs`."""


def catch_up(schedule: Schedule, track: ScheduleTrack, now: float) -> CatchUp:
    """Choose from the planned times since the last one.

    All of the last ten seconds have a run. Of earlier ones it is as the schedule says: none, the
    last, or all within its grace.
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
        if len(earlier) == _MOST:  # the others have their turn after these
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
