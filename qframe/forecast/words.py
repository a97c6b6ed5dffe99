"""Words: a forecast as a sentence: what comes, what the workers finish, and when it is behind."""

from __future__ import annotations

from datetime import UTC, datetime

from qframe.forecast.course import MINUTE
from qframe.forecast.reading import QueueForecast
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import lasting

_MOSTLY = 0.5
"""Part of what comes that is named alone."""


def sentence(forecast: QueueForecast, limit: float) -> str:
    """Return what comes, and whether a job will have waited for more than `limit` seconds."""
    if forecast.unknown:
        return forecast.unknown
    course = forecast.course
    at = course.crosses(limit)
    if at is None:
        until = clock(forecast.read_at + len(course.behind) * MINUTE)
        if forecast.behind < MINUTE:
            return f"not behind until {until} UTC"
        worst = course.behind.index(forecast.behind)
        most = clock(forecast.read_at + (worst + 1) * MINUTE)
        behind = lasting(round(forecast.behind / MINUTE) * MINUTE)
        return f"{_why(forecast, worst)}: at most {behind} behind, at {most} UTC"
    when = forecast.read_at + (at + 1) * MINUTE
    return f"{_why(forecast, at)}: {lasting(limit)} behind at {clock(when)} UTC"


def clock(moment: float) -> str:
    """Return the time of day in UTC, without the seconds."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M")


def _why(forecast: QueueForecast, upto: int) -> str:
    since = forecast.course.falls_behind(upto)
    return f"{_coming(forecast, since, upto)}, {_finishing(forecast, since, upto)}"


def _coming(forecast: QueueForecast, since: int, upto: int) -> str:
    begins, ends = (forecast.read_at + at * MINUTE for at in (since, upto + 1))
    arrived = forecast.course.arrived[since : upto + 1]
    waiting = forecast.waiting if not since else 0.0
    much = _MOSTLY * (sum(arrived) + waiting)
    surge = max(
        (each for each in forecast.surges if begins - MINUTE <= each.at < ends),
        key=lambda each: each.jobs,
        default=None,
    )
    if surge is not None and surge.jobs >= much:
        jobs = f"about {float(f'{surge.jobs:.2g}'):,.0f} jobs"
        runs = f"as its last {surge.runs} runs did"
        name = one_line(surge.schedule, 80)
        return f"the schedule {name} puts {jobs} there at {clock(surge.at)} ({runs})"
    due = [each for each in forecast.due if begins - MINUTE <= each[0] < ends]
    count = sum(jobs for _, jobs in due)
    if count and count >= much:
        jobs = count_of(count, "delayed job is", "delayed jobs are")
        return f"{jobs} due from {clock(due[0][0])}"
    rate = sum(arrived) / len(arrived)
    arrives = f"arrives {_rate(rate)}"
    if waiting >= max(1.0, much):
        return f"{count_of(round(waiting), 'job waits', 'jobs wait')}, {arrives}"
    return f"{arrives} from {clock(begins)}" if since else arrives


def _finishing(forecast: QueueForecast, since: int, upto: int) -> str:
    if forecast.is_paused:
        return "it is paused"
    if not forecast.workers:
        return "no worker takes it"
    served = forecast.course.served[since : upto + 1]
    rate = _rate(sum(served) / len(served))
    if forecast.workers == 1:
        return f"the worker finishes {rate}"
    return f"the {forecast.workers:,} workers finish {rate}"


def _rate(per_minute: float) -> str:
    """Return a rate, by the hour if less than one a minute."""
    by_minute = round(per_minute)
    return f"{by_minute:,}/min" if by_minute or not per_minute else f"{per_minute * 60:.2g}/h"
