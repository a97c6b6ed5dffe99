"""Scheduler: dispatches due jobs of one connection's schedules; any number may run at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from qframe import events
from qframe.connection import Connection
from qframe.contracts.step import Expect, Operation, Result, Unset
from qframe.drivers.store import pause_key
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.features.once import is_once
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule, in_zone
from qframe.schedules.options import called
from qframe.schedules.releases import Releases
from qframe.schedules.runs import RunPlan
from qframe.schedules.state import ScheduleKeys, ScheduleProgress
from qframe.schedules.timetable import Timetable, catch_up

log = logging.getLogger("qframe")

LOOK_EVERY = 2.0
"""Seconds between two checks for changes."""
_UNDONE = 5.0
"""Seconds that a process has to push its stored message, before another does."""
_HELD_UP = 1.0
"""Seconds after which a run blocked by maintenance is retried."""
OVERLAPS = "the run before has not ended"
PAUSED = "paused"


class Scheduler:
    """Makes the runs of a connection's schedules when they are due.

    One thread calls `turn`, which makes due runs and returns the seconds until the next. `clock`
    returns epoch seconds. Raises `BackendUnavailable`; what was not done is still due.
    """

    def __init__(
        self,
        connection: Connection,
        schedules: Sequence[Schedule],
        releases: Releases,
        keys: ScheduleKeys,
        *,
        rows: Callable[[Connection], list[Schedule]],
        environment: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.connection = connection
        self.table = Timetable(connection, schedules, releases, keys, rows)
        self.dispatched = 0
        self._clock = clock
        self._keys = keys
        self._make = self.table.make
        self._environment = environment
        self._looked_at = 0.0
        self._must_look = True
        self._held_up: set[str] = set()
        self._undone: dict[str, tuple[str, float]] = {}
        """Tracks with a stored message, and when that was first seen."""

    def turn(self) -> float:
        """Make the due runs. Returns the seconds until there may be more."""
        now = self._clock()
        if self._must_look or not 0 <= now - self._looked_at < LOOK_EVERY:
            self._must_look = True
            self.table.look(now)
            self._push_undone(now)
            self._run_asked(now)
            self._must_look, self._looked_at = False, now
        due = self.table.due(now)
        self._held_up.clear()
        try:
            self._do(due, now)
        finally:
            for each in due:
                held_up = each.title in self._held_up
                self.table.plan_next(each, now + _HELD_UP if held_up else 0.0)
        now, coming = self._clock(), self.table.next_due()
        look = 0.0 if self._must_look else max(0.0, self._looked_at + LOOK_EVERY - now)
        return look if coming is None else min(look, max(0.0, coming - now))

    def look_again(self) -> None:
        """Let the next turn check for changes."""
        self._must_look = True

    # -- making runs ------------------------------------------------------------------------------

    def _do(self, due: Sequence[Schedule], now: float) -> None:
        """Make the runs of due schedules, in one exchange."""
        plans: list[RunPlan] = []
        in_maintenance, paused = self._closed() if due else (False, False)
        for schedule in due:
            if self._is_open(schedule, now):
                continue
            if in_maintenance and not schedule.options.in_maintenance:
                self._held_up.add(schedule.title)
                continue
            if paused or self.table.progress[schedule.title].paused:
                self._go_past(schedule, now)
                continue
            chosen = catch_up(schedule, self.table.progress[schedule.title], now)
            if chosen.missed is not None and not self._miss(schedule, *chosen.missed):
                continue
            runs = chosen.runs if self._make.joint else chosen.runs[:1]
            plans += self._planned(schedule, runs)
        if not plans:
            return
        refused: set[str] = set()
        results = self.connection.backend.apply(*(each.plan for each in plans))
        for plan, result in zip(plans, results, strict=True):
            name = plan.schedule.title
            if name not in refused and not self._on_result(plan, result):
                refused.add(name)  # its other runs depend on this one

    def _closed(self) -> tuple[bool, bool]:
        """Return whether the connection is paused, and whether all its schedules are."""
        held = self.connection.store.get(pause_key(self.connection.name), self._keys.paused())
        return held[0] is not None, held[1] is not None

    def _go_past(self, schedule: Schedule, now: float) -> None:
        """Pass the planned times of a paused schedule."""
        last = schedule.options.calendar.last(self.table.progress[schedule.title].at, now)
        if last is not None:
            self._pass(schedule, last, PAUSED)

    def _run_asked(self, now: float) -> None:
        """Make the runs that somebody requested, each once."""
        while self.table.asked:
            name, text = next(iter(self.table.asked.items()))
            schedule, progress = self.table.known.get(name), self.table.progress.get(name)
            if schedule is not None and progress is not None and not self._is_open(schedule, now):
                key = self._keys.requested(name)
                guards: list[Operation] = [Expect(key, text), Unset(key)]
                at = round(now, 3)
                run = self._make.run(schedule, self.table.progress[name], at, guards, manual=True)
                (result,) = self.connection.backend.apply(run.plan)
                if result.key == self._keys.progress(name) and result.holds is not None:
                    self._take_track(schedule, result)
                    continue
                if result.applied:
                    self._on_result(run, result)
                self.table.plan_next(schedule)
            del self.table.asked[name]

    def _is_open(self, schedule: Schedule, now: float) -> bool:
        """Whether the previous run must still be pushed, if that is a separate step."""
        name = schedule.title
        if self.table.progress[name].pending is None:
            return False
        self.table.begin([schedule], now)
        if self.table.progress[name].pending is None:
            return False
        self._held_up.add(name)
        return True

    def _planned(self, schedule: Schedule, times: Sequence[float]) -> list[RunPlan]:
        """Plan the runs of a schedule, one after the other."""
        plans: list[RunPlan] = []
        progress = self.table.progress[schedule.title]
        for at in times:
            why = self._unwanted(schedule, at)
            if why:
                if plans:  # these first; this one in the next turn
                    return plans
                if not self._pass(schedule, at, why):
                    return plans
                progress = self.table.progress[schedule.title]
                continue
            try:
                plan = self._make.run(schedule, progress, at, self.table.guards(schedule))
            except BackendUnavailable:
                raise
            except QframeError as error:
                self._fail(schedule, at, error)
                return plans
            plans.append(plan)
            progress = plan.after
        return plans

    def _unwanted(self, schedule: Schedule, at: float) -> str:
        """Return why a planned time has no run; "" if it has one."""
        wanted = schedule.options.environments
        if wanted and self._environment not in wanted:
            return f"not for the environment {one_line(self._environment or '(none)', 40)}"
        for condition, expected in schedule.options.conditions:
            try:
                given = called(condition, in_zone(at, schedule))
            except Exception as error:  # the program's own code
                log.exception("a condition of the schedule %s raised", schedule.title)
                return f"its condition raised {tracebacks.brief(error, 100)}"
            if bool(given) is not expected:
                return "its condition says so"
        return ""

    # -- results ----------------------------------------------------------------------------------

    def _on_result(self, run: RunPlan, result: Result) -> bool:
        """Handle the result of a run. Returns whether the next one may follow."""
        schedule, name = run.schedule, run.schedule.title
        if result.applied:
            run.plan.applied()
            progress = run.after if self._make.joint else self._make.push_pending(run)
            self.table.progress[name] = progress
            self.dispatched += 1
            self.connection.fire_dispatched(schedule.job, run.pushing, "")
            self._fire(events.ScheduledJobDispatched, schedule, run.at, run.pushing.uuid)
            return self._make.joint
        if result.key == self._keys.progress(name):
            self._take_track(schedule, result)
        elif result.key == run.named.lock_key:
            self._pass(schedule, run.at, OVERLAPS)
        elif any(result.key == each.key for each in self.table.guards(schedule)):
            self.table.forget()
            self._held_up.add(name)
            self.look_again()
        else:
            holder = self.connection.context.holder(run.pushing, result)
            before = is_once(result.key)
            why = f"once: {holder} was before" if before else f"unique: {holder} waits or runs"
            self._pass(schedule, run.at, why)
            self.connection.fire_dispatched(schedule.job, run.pushing, holder)
        return False

    def _take_track(self, schedule: Schedule, result: Result) -> None:
        """Use the progress that another process wrote; start again if it was removed."""
        if result.holds is None:
            self.table.begin([schedule], self._clock())
        else:
            self.table.progress[schedule.title] = ScheduleProgress.read(result.holds)

    def _pass(self, schedule: Schedule, at: float, why: str) -> bool:
        """Pass a planned time without a run. Returns whether this process did."""
        before = self.table.progress[schedule.title]
        after = before.after_skip(at, why)
        guards = self.table.guards(schedule)
        step = self._make.skip_step(schedule, before.text(), after, guards)
        (result,) = self.connection.backend.apply(step)
        if result.applied:
            self.table.progress[schedule.title] = after
            self._fire(events.ScheduleSkipped, schedule, at, why)
        elif result.key == self._keys.progress(schedule.title):
            self._take_track(schedule, result)
        else:
            self._held_up.add(schedule.title)
            self.table.forget()
            self.look_again()
        return result.applied

    def _miss(self, schedule: Schedule, first: float, until: float) -> bool:
        """Pass the planned times without a worker. Returns whether to continue."""
        name, before = schedule.title, self.table.progress[schedule.title]
        after = before.after_skip(until, "missed")
        guards = self.table.guards(schedule)
        step = self._make.skip_step(schedule, before.text(), after, guards)
        (result,) = self.connection.backend.apply(step)
        if result.applied:
            self.table.progress[name] = after
            log.warning("the schedule %s missed runs from %s", name, in_zone(first, schedule))
            self._fire(events.ScheduleMissed, schedule, first, in_zone(until, schedule))
            return True
        if result.key == self._keys.progress(name):
            self._take_track(schedule, result)
        else:
            self._held_up.add(name)
            self.table.forget()
            self.look_again()
        return False

    def _fail(self, schedule: Schedule, at: float, error: QframeError) -> None:
        """Report a job that cannot be dispatched, and pass its planned time."""
        log.error("the schedule %s cannot dispatch its job: %s", schedule.title, error)
        self._fire(events.ScheduleFailed, schedule, at, error)
        self._pass(schedule, at, tracebacks.brief(error, 160))

    def _fire(self, kind: type[events.Event], schedule: Schedule, at: float, *more: object) -> None:
        if kind.listeners:
            moment = in_zone(at, schedule)
            events.fire(kind, self.connection.name, schedule.title, moment, *more)

    # -- stored messages that may not have been pushed --------------------------------------------

    def _push_undone(self, now: float) -> None:
        """Push messages that another process stored and did not push, probably because it died."""
        if self._make.joint:
            return
        for name, progress in [*self.table.progress.items(), *self.table.left.items()]:
            if progress.pending is None:
                self._undone.pop(name, None)
                continue
            text, since = self._undone.get(name, ("", now))
            if text != progress.text() or now < since:
                self._undone[name] = (progress.text(), now)
            elif now - since >= _UNDONE:
                del self._undone[name]
                self._repush(name, progress, now)

    def _repush(self, name: str, progress: ScheduleProgress, now: float) -> None:
        schedule = self.table.known.get(name)
        if schedule is None:
            self._make.repush(name, progress)
            self.table.read_left(name)
            return
        done = self._make.repush(name, progress, self._make.ttl(schedule, progress.at))
        if done is None:
            self.table.begin([schedule], now)
        else:
            self.table.progress[name] = done
