"""schedule: the fluent call that plans a job, groups of schedules, and the book of all."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from qframe import events
from qframe.contracts.job import Job
from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.pending import check_job
from qframe.exceptions import ConfigurationError, InvalidJob
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.payload.scheduled import SCHEDULE, named_run
from qframe.payload.text import one_line
from qframe.schedules.cadences import Cadences
from qframe.schedules.options import OptionMethods, ScheduleOptions, called

LONGEST_NAME = 150
_OWN = "qframe.schedules."


class Schedule(Cadences, OptionMethods):
    """A job and its planned times: `schedule(SendReport()).daily_at("13:00").weekdays()`."""

    def __init__(
        self, job: Dispatchable, options: ScheduleOptions, place: str, module: str
    ) -> None:
        self.job = job
        self.options = options
        self.place = place
        """The file and line of its definition, or the origin of its row."""
        self.module = module
        self.row: str | None = None
        """The fact with its row, if it was added at run time."""
        self.forwarded_to: str | None = None
        """The queue of another connection to which the pushes for its own queue go."""

    def name(self, name: str) -> Self:
        """Sets its unique name; by default it is made of the job and its times."""
        return self._set(name=checked_name(name))

    # -- internal ---------------------------------------------------------------------------------

    def finished(self, zone: str) -> Self:
        """Fill in the configured defaults. Raises `ConfigurationError`."""
        options = self.options
        calendar = replace(options.calendar, zone=options.zone or zone)
        if not calendar.is_set:
            raise ConfigurationError(
                f"{self.place}: the schedule of {self._shown()} does not say when; "
                'add .daily_at("13:00"), .every_minute() or the like'
            )
        if options.overlap and isinstance(self.job, Foreign):
            raise ConfigurationError(
                f"{self.place}: {self._shown()} is run by another program, which would not free "
                "the lock of without_overlapping"
            )
        named = options.name or f"{self._shown()}: {calendar.shown()}"
        if len(named) > LONGEST_NAME:
            raise ConfigurationError(
                f"{self.place}: the schedule of {self._shown()} needs a name: its own has more "
                f"than {LONGEST_NAME} characters; add .name(...)"
            )
        self.options = replace(options, calendar=calendar, zone=calendar.zone, name=named)
        return self

    @property
    def queue(self) -> str | None:
        """The queue to push to; None for that of its job, or the default one."""
        return self.forwarded_to or self.options.queue

    @property
    def title(self) -> str:
        """Its name, after `finished`."""
        return self.options.name

    def facts(self) -> dict[str, Any]:
        """Return what distinguishes it from others, as JSON values."""
        data = "" if isinstance(self.job, Foreign) else self.job.to_data()
        data = self.job.data if isinstance(self.job, Foreign) else data
        return {"job": self._shown(), "data": data, **self.options.facts()}

    @property
    def job_name(self) -> str:
        """The job's name on the wire."""
        return self._shown()

    def _shown(self) -> str:
        try:
            return one_line(self.job.wire_name(), 120)
        except InvalidJob as error:
            raise ConfigurationError(f"{self.place}: {error}") from None

    def __repr__(self) -> str:
        return f"<schedule {self.options.name or self.options.calendar.text()}>"


class ScheduleGroup(Cadences, OptionMethods):
    """What all schedules in its `with` block share."""

    def __init__(self, options: ScheduleOptions) -> None:
        self.options = options

    def __enter__(self) -> Self:
        _groups.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _groups.remove(self)


_groups: list[ScheduleGroup] = []


class ScheduleCall:
    """`schedule(job)` plans a job; `schedule.group()` begins a group."""

    def __call__(self, job: Dispatchable | QueueableFunction[[], Any]) -> Schedule:
        """Plan a job; call methods of the returned schedule to say when.

        `job` is a `Queueable`, a call of a `@queueable` function (`add.job(1, 2)`), or
        `foreign(...)`. List the module under `jobs`, or under `modules` of `[schedule]`. Raises
        `InvalidJob`.
        """
        if isinstance(job, QueueableFunction):
            job = job.job()
        check_job(job)
        place, module = _caller()
        made = Schedule(job, _groups[-1].options if _groups else ScheduleOptions(), place, module)
        book.add(made)
        return made

    def group(self) -> ScheduleGroup:
        """Begin a group: `with schedule.group().daily().timezone("Europe/Vienna"):`."""
        return ScheduleGroup(_groups[-1].options if _groups else ScheduleOptions())


schedule = ScheduleCall()


class ScheduleBook:
    """The schedules that this process's code has defined."""

    def __init__(self) -> None:
        self._all: list[Schedule] = []
        self.sources: list[Callable[[], None]] = []
        """Functions that add schedules which are known once all modules are imported."""

    def add(self, made: Schedule) -> None:
        """Add a schedule."""
        self._all.append(made)

    def clear(self) -> None:
        """Remove all schedules."""
        self._all.clear()

    def find(self, name: str) -> Schedule | None:
        """Return the schedule with a name, without checking the others."""
        return next((each for each in self._all if each.options.name == name), None)

    def finished(self, zone: str) -> list[Schedule]:
        """Return all, by name. Raises `ConfigurationError` for a duplicate name."""
        for source in self.sources:
            source()
        found: dict[str, Schedule] = {}
        for each in self._all:
            each.finished(zone)
            other = found.get(each.title)
            if other is not None and (other.place, other.facts()) != (each.place, each.facts()):
                raise ConfigurationError(
                    f"two schedules are named {each.title!r}: at {other.place} and at "
                    f"{each.place}; give each a name with .name(...)"
                )
            found[each.title] = each  # the same place again: its module was reloaded
        if any(each.options.hooks for each in found.values()):
            for kind in (events.JobProcessing, events.JobProcessed, events.JobFailed):
                if self._on_event not in kind.listeners:
                    events.listen(kind)(self._on_event)
        return sorted(found.values(), key=lambda each: each.title)

    def _on_event(self, event: events.JobEvent) -> None:
        """Call the hooks of the schedule that a job comes from."""
        if event.job.payload.get(SCHEDULE) is None:
            return
        named = named_run(event.job.payload)
        found = None if named is None else self.find(named.name)
        if found is None:
            return
        kinds: Sequence[str] = {
            events.JobProcessing: ("before",) if event.job.attempts() == 1 else (),
            events.JobProcessed: ("on_success", "after"),
            events.JobFailed: ("on_failure", "after"),
        }.get(type(event), ())
        for kind, hook in found.options.hooks:
            if kind in kinds:
                _call_hook(hook, event.job)


def _call_hook(hook: Any, job: Job) -> None:  # noqa: ANN401 (a function)
    called(hook, job)


book = ScheduleBook()


def fingerprint(schedules: Sequence[Schedule]) -> str:
    """Return a text that differs if any schedule does."""
    facts = {each.title: each.facts() for each in schedules}
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def checked_name(name: str) -> str:
    """Return a valid name. Raises `ConfigurationError`."""
    if type(name) is not str or not name.strip() or one_line(name, 1000) != name:
        raise ConfigurationError(f"{one_line(repr(name), 60)} is no name for a schedule")
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(f"the name of a schedule has at most {LONGEST_NAME} characters")
    return name


def _caller() -> tuple[str, str]:
    """Return the file and line that called `schedule`, and the module's name."""
    frame = sys._getframe(2)  # noqa: SLF001 (what `inspect` stands on, without its cost)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", str(frame.f_globals.get("__name__", ""))


def in_zone(moment: float, schedule_: Schedule) -> datetime:
    """Convert a planned time to the zone of its schedule."""
    return schedule_.options.calendar.local(moment)
