"""crontab, and the entries of `beat_schedule`, as schedules of qframe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from qframe.celery import missing, options
from qframe.celery.exceptions import ImproperlyConfigured
from qframe.celery.jobs import job_of
from qframe.celery.missing import refused
from qframe.schedules.definition import Schedule, book
from qframe.schedules.options import ScheduleOptions

_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ENTRY: Final = {"task", "schedule", "args", "kwargs", "options", "relative"}
_ANY: Final = "*"

Field = int | str | Iterable[Any]


class crontab:  # noqa: N801 (Celery's name)
    """Times by the clock: numbers, lists of them, or cron's text, such as `"*/15"`.

    As in Celery, both `day_of_week` and `day_of_month` must fit where both are given.
    """

    def __init__(
        self,
        minute: Field = _ANY,
        hour: Field = _ANY,
        day_of_week: Field = _ANY,
        day_of_month: Field = _ANY,
        month_of_year: Field = _ANY,
        **given: Any,
    ) -> None:
        for name, value in given.items():
            if value is not None:
                raise refused(f"{name} of crontab", "app.conf.timezone")
        self.minute = _text(minute)
        self.hour = _text(hour)
        self.day_of_week = _text(day_of_week)
        self.day_of_month = _text(day_of_month)
        self.month_of_year = _text(month_of_year)

    @classmethod
    def from_string(cls, text: str) -> crontab:
        """Read a line of five fields, minute first, as cron has them."""
        fields = text.split()
        if len(fields) != 5:  # noqa: PLR2004 (cron's fields)
            raise ValueError(f"{text!r} is no cron expression of five fields")
        minute, hour, day, month, week = fields
        return cls(minute, hour, week, day, month)

    def put_into(self, made: Schedule) -> None:
        """Give a schedule these times."""
        fields = (self.minute, self.hour, self.day_of_month, self.month_of_year)
        made.cron(" ".join((*fields, _ANY)))
        if self.day_of_week != _ANY:
            made.days(*_days(self.day_of_week))

    def _fields(self) -> tuple[str, ...]:
        return (
            self.minute, self.hour, self.day_of_week, self.day_of_month, self.month_of_year,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, crontab) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        minute, hour, week, day, month = self._fields()
        return f"<crontab: {minute} {hour} {day} {month} {week} (m/h/dM/MY/d)>"


class schedule:  # noqa: N801 (Celery's name)
    """Every so many seconds."""

    def __init__(self, run_every: float | timedelta, relative: bool = False) -> None:
        _check_relative(relative)
        self.run_every = run_every


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Refuse Celery's other schedules, by name."""
        raise missing.of_module(__name__, name, {"solar": "crontab", "schedstate": "crontab"})


def _check_relative(relative: object) -> None:
    if relative:
        raise refused("relative schedules", "multiples of the interval, as schedules are here")


def _text(given: Field) -> str:
    if isinstance(given, int):
        return str(given)
    if isinstance(given, str):
        return given
    return ",".join(sorted(map(str, given), key=lambda each: (len(each), each)))


def _days(text: str) -> list[int]:
    """Return the days of the week of a cron field; 0 is Sunday."""
    found: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if first == _ANY:
            low, high = 0, 6
        else:
            low = _day(first)
            high = _day(last) if last else (6 if step else low)
        if high < low:
            high += 7
        found |= {day % 7 for day in range(low, high + 1, int(step or 1))}
    return sorted(found)


def _day(text: str) -> int:
    if text.isdecimal() and int(text) <= len(_DAYS):
        return int(text)
    if text[:3] in _DAYS:
        return _DAYS.index(text[:3])
    raise ImproperlyConfigured(f"crontab: {text!r} is no day of the week")


def planned(app: Any, name: str, entry: Mapping[str, Any]) -> None:
    """Add an entry of `beat_schedule` to qframe's schedules, once.

    Raises `NotSupported` or `ImproperlyConfigured`, naming the entry.
    """
    where = f"beat_schedule[{name!r}]"
    for key in entry:
        if key not in _ENTRY:
            raise refused(f"{key} in {where}", "an option of qframe.schedule")
    if "task" not in entry or "schedule" not in entry:
        raise ImproperlyConfigured(f"{where} needs a task and a schedule")
    _check_relative(entry.get("relative"))
    if book.find(name) is not None:
        return
    given = dict(entry.get("options") or {})
    for key in given:
        if key in {"countdown", "eta", "task_id", "link", "link_error"}:
            raise refused(f"option {key} in {where}", "a task that dispatches the other")
    options.check_call(where, given)
    task = getattr(entry["task"], "name", entry["task"])
    job = job_of(app, task, entry.get("args"), entry.get("kwargs"), given)
    made = Schedule(job, ScheduleOptions(), f"{app.place}, {where}", app.module)
    made.name(name).timezone(str(app.conf.timezone or "UTC"))
    times = entry["schedule"]
    if isinstance(times, schedule):
        times = times.run_every
    if isinstance(times, crontab):
        times.put_into(made)
    elif isinstance(times, int | float | timedelta):
        made.every(times)
    else:
        raise refused(f"schedule {type(times).__name__} in {where}", "crontab, or seconds")
    book.add(made)
