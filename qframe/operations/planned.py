"""Planned: a program's schedules in code and in the store, for the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import merge

from qframe import events
from qframe.connection import Connection
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.features.once import is_once
from qframe.manager import QueueManager
from qframe.operations.schedules import ScheduleState, states
from qframe.payload.scheduled import SCHEDULE, NamedRun
from qframe.payload.text import nearest, one_line
from qframe.schedules.definition import Schedule, in_zone
from qframe.schedules.rows import ScheduleRows, keys_of
from qframe.schedules.runs import RunMaker
from qframe.schedules.schedulers import able, connection_of, load
from qframe.schedules.state import ScheduleProgress, ScheduleSummary

_TRIES = 20


class PlannedSchedules:
    """The schedules of a program, each with the connection it dispatches to.

    Raises `ConfigurationError` if one is wrong. A connection that does not answer is in `silent`,
    and has no rows. With `only`, those of this connection.
    """

    def __init__(self, queues: QueueManager, only: str | None = None) -> None:
        if only is not None:
            queues.connection(only)  # raises for an unknown one
        self.queues = queues
        self.rows = ScheduleRows(queues)
        self.silent: list[BackendUnavailable] = []
        self.refused: dict[Connection, list[ScheduleSummary]] = {}
        """The rows that are not run, since no key of ours has signed them."""
        in_code = [(connection_of(queues, each), each) for each in load(queues)]
        self.all: list[tuple[Connection, Schedule]] = [
            pair for pair in in_code if only in {None, pair[0].name}
        ]
        taken = {each.title for _, each in in_code}
        for connection in able(queues):
            if only not in {None, connection.name}:
                continue
            try:
                rows = self.rows.read(connection)
                summaries = self.rows.summaries(connection) if queues.signer is not None else ()
            except BackendUnavailable as error:
                self.silent.append(error)
                continue
            self.all += [(connection, each) for each in rows if each.title not in taken]
            if refused := [each for each in summaries if each.refused and each.name not in taken]:
                self.refused[connection] = refused
        self.all.sort(key=lambda each: each[1].title)

    def find(self, name: str) -> tuple[Connection, Schedule]:
        """Returns a schedule by its name, the name's beginning, or its job's name; else raises."""
        names = [each.title for _, each in self.all]
        rules: list[Callable[[Schedule], bool]] = [
            lambda each: each.title == name,
            lambda each: each.job_name == name or each.job_name.endswith(f".{name}"),
            lambda each: each.title.startswith(name),
        ]
        for fits in rules:
            found = [pair for pair in self.all if fits(pair[1])]
            if len(found) == 1:
                return found[0]
            if found:
                several = ", ".join(repr(each.title) for _, each in found[:5])
                raise ConfigurationError(f"{one_line(name, 80)!r} may be any of {several}")
        for about in (each for refused in self.refused.values() for each in refused):
            if about.name == name:
                raise ConfigurationError(f"{one_line(name, 150)!r} is refused: {about.refused}")
        raise ConfigurationError(
            f"there is no schedule {one_line(name, 150)!r}{nearest(name, names)}"
        )

    def states(self) -> list[ScheduleState]:
        found: list[ScheduleState] = []
        for connection in dict.fromkeys([*(each for each, _ in self.all), *self.refused]):
            abouts = [
                ScheduleSummary.of(each, connection.queue_for(each.job, each.queue))
                for of, each in self.all
                if of is connection
            ]
            abouts += self.refused.get(connection, ())
            try:
                found += states(self.queues, connection, abouts)
            except BackendUnavailable as error:
                self.silent.append(error)
        return sorted(found, key=lambda each: (each.next_at or "9999", each.name))

    def coming(self, name: str = "") -> Iterator[tuple[float, Connection, Schedule]]:
        """Yields the planned times from now on, in order, of one schedule or all."""
        chosen = [self.find(name)] if name else self.all

        def times(
            place: int, connection: Connection, schedule: Schedule
        ) -> Iterator[tuple[float, int, Connection, Schedule]]:
            for moment in schedule.options.calendar.upto(time.time(), float("inf")):
                yield moment, place, connection, schedule

        ordered = merge(
            *(times(place, *pair) for place, pair in enumerate(chosen)), key=lambda each: each[:2]
        )
        for moment, _, connection, schedule in ordered:
            yield moment, connection, schedule

    def run(self, name: str) -> tuple[Connection, Schedule, str]:
        """Dispatches a schedule's job now, whatever its conditions say; returns the job's id."""
        connection, schedule = self.find(name)
        keys = keys_of(self.queues, connection)
        make = RunMaker(connection, keys)
        key = keys.progress(schedule.title)
        for _ in range(_TRIES):
            (text,) = connection.store.get(key)
            now = round(time.time(), 3)
            if text is None:
                connection.backend.apply(make.create_step(schedule, ScheduleProgress(now)))
                continue
            progress = ScheduleProgress.read(text)
            if progress.pending is not None:
                time.sleep(0.1)
                continue
            run = make.run(schedule, progress, now, (), manual=True)
            (result,) = connection.backend.apply(run.plan)
            if result.applied:
                run.plan.applied()
                if not make.joint:
                    make.push_pending(run)
                connection.fire_dispatched(schedule.job, run.pushing, "")
                moment = in_zone(now, schedule)
                events.fire(
                    events.ScheduledJobDispatched, connection.name, schedule.title, moment,
                    run.pushing.uuid,
                )  # fmt: skip
                return connection, schedule, run.pushing.uuid
            if result.key == run.named.lock_key:
                raise ConfigurationError(
                    f"{schedule.title!r} waits or runs still (without_overlapping): {result.holds}"
                )
            if result.key != key:
                holder = connection.context.holder(run.pushing, result)
                if is_once(result.key):
                    raise ConfigurationError(f"its job runs once, and {holder} was before")
                raise ConfigurationError(f"its job is unique, and {holder} waits or runs")
        raise BackendUnavailable(f"the schedule {schedule.title!r} is changed again and again")


def payload_of(schedule: Schedule) -> dict[str, object]:
    """Returns the extra fields in the payload of a manual run."""
    named = NamedRun(schedule.title, round(time.time(), 3), 0, zone=schedule.options.calendar.zone)
    return {SCHEDULE: named.wire()}
