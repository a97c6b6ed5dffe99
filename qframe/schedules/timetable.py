"""Timetable: which schedules of a connection are current, and when each is due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.step import Expect, Set, Step
from qframe.exceptions import InvalidPayload, InvalidSignature
from qframe.features.refused import RefusedText, log_refused
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule
from qframe.schedules.releases import Releases
from qframe.schedules.runs import RunMaker
from qframe.schedules.state import ScheduleKeys, ScheduleProgress, ScheduleSummary

TOGETHER = 500
"""The most facts or steps in one exchange."""
_SUMMARY_TTL = 400 * 86400.0
ASKED = 60.0
"""Seconds that a requested run waits for a worker to make it."""
PROMPT = 10.0
"""Seconds by which a run may be late without being missed."""
_MOST_RUNS = 500
"""The most runs of a schedule in one turn."""
_CLOCKS = 600.0
"""Seconds by which the clock of whoever requests a run may differ from this one."""


class Watched(NamedTuple):
    """The next planned time of a schedule, ordered by time."""

    due: float
    turn: int
    name: str


class Timetable:
    """The schedules of code whose version is current, and those added as rows."""

    def __init__(
        self,
        connection: Connection,
        schedules: Sequence[Schedule],
        releases: Releases,
        keys: ScheduleKeys,
        rows: Callable[[Connection], list[Schedule]],
    ) -> None:
        self.make = RunMaker(connection, keys)
        self.progress: dict[str, ScheduleProgress] = {}
        self.known: dict[str, Schedule] = {}
        """The current schedules, by name."""
        self.left: dict[str, ScheduleProgress] = {}
        """The progress of schedules that are gone, whose last message may not have been pushed."""
        self.asked: dict[str, str] = {}
        """The requested runs, by name, with their facts."""
        self._connection = connection
        self._keys = keys
        self._releases = releases
        self._own = {each.title: each for each in schedules}
        self._read_rows = rows
        self._changed: str | None = None
        self._is_read = False
        self._heap: list[Watched] = []
        self._watched: dict[str, int] = {}
        """The number of the valid entry in the heap, by name."""
        self._turn = itertools.count(1)

    # -- current schedules ------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Read changes of versions and rows; mostly a single read."""
        store, releases = self._connection.store, self._releases
        changed, *versions = store.get(self._keys.changed(), *releases.keys())
        before = releases.current
        releases.look(versions, now)
        if self._is_read and changed == self._changed and releases.current.keys() == before.keys():
            return
        self._take(self._read_rows(self._connection), now)
        prefix = self._keys.requested()
        asked = store.items(prefix) if changed != self._changed else ()
        self.asked |= {
            key.removeprefix(prefix): text for key, text in asked if self._is_asked(key, text, now)
        }
        self._changed, self._is_read = changed, True

    def _is_asked(self, key: str, text: str, now: float) -> bool:
        """Whether the request of a run has a valid signature and is recent."""
        context = self._connection.context
        try:
            kept = context.opened(key, text)
            if context.signer is not None and abs(float(kept.text) - now) > ASKED + _CLOCKS:
                raise InvalidSignature("it was signed at another time")
        except (InvalidSignature, ValueError) as error:
            refusal = error if isinstance(error, InvalidSignature) else InvalidPayload(str(error))
            name = one_line(key.removeprefix(self._keys.requested()))
            what = f"a request to run the schedule {name}"
            log_refused(self._connection.name, RefusedText(key, text, what, refusal))
            return False
        return True

    def forget(self) -> None:
        """Let the next look read everything."""
        self._is_read = False

    def _take(self, rows: Iterable[Schedule], now: float) -> None:
        current = self._releases.current
        found = {each.title: each for each in rows}
        found |= {name: each for name, each in self._own.items() if each.module in current}
        before, self.known = self.known, found
        new = [
            each
            for name, each in found.items()
            if name not in before or before[name].row != each.row or name not in self.progress
        ]
        for name in self.progress.keys() - found.keys():
            del self.progress[name]
            self._watched.pop(name, None)
        for begin in range(0, len(new), TOGETHER):
            self.begin(new[begin : begin + TOGETHER], now)
            self._write_summaries(new[begin : begin + TOGETHER])
        if not self.make.joint:
            self._find_left()

    def _find_left(self) -> None:
        """Find messages whose schedule is gone: it ran for the last time, or its code is gone."""
        prefix = self._keys.progress()
        self.left = {
            name: progress
            for key, text in self._connection.store.items(prefix)
            if '"open"' in text
            and (name := key.removeprefix(prefix)) not in self.known
            and (progress := ScheduleProgress.read(text)).pending is not None
        }

    def read_left(self, name: str) -> None:
        """Read the progress of a schedule that is gone, which another process has changed."""
        (text,) = self._connection.store.get(self._keys.progress(name))
        progress = None if text is None else ScheduleProgress.read(text)
        if progress is None or progress.pending is None:
            self.left.pop(name, None)
        else:
            self.left[name] = progress

    def _write_summaries(self, schedules: Sequence[Schedule]) -> None:
        """Write changed descriptions of schedules in code, for programs without the code."""
        summaries = {
            self._keys.summary(each.title): ScheduleSummary.of(
                each,
                self._connection.queue_for(each.job, each.queue),
                self._releases.current[each.module],
            ).text()
            for each in schedules
            if each.row is None
        }
        held = self._connection.store.get(*summaries)
        steps = [
            Step(None, Set(key, text, _SUMMARY_TTL))
            for (key, text), before in zip(summaries.items(), held, strict=True)
            if text != before
        ]
        if steps:
            self._connection.backend.apply(*steps)

    def guards(self, schedule: Schedule) -> list[Expect]:
        """Return the expectations of a run: the definition as known here."""
        if schedule.row is not None:
            return [Expect(self._keys.row(schedule.title), schedule.row)]
        key = self._keys.release(schedule.module)
        return [Expect(key, self._releases.current.get(schedule.module))]

    # -- tracks -----------------------------------------------------------------------------------

    def begin(self, schedules: Sequence[Schedule], now: float) -> None:
        """Read the tracks of schedules; a new one begins now."""
        texts = self._connection.store.get(*(self._keys.progress(each.title) for each in schedules))
        fresh = [each for each, text in zip(schedules, texts, strict=True) if text is None]
        for each, text in zip(schedules, texts, strict=True):
            if text is not None:
                self.progress[each.title] = ScheduleProgress.read(text)
        if fresh:
            begun = ScheduleProgress(round(now, 3))
            steps = [self.make.create_step(each, begun) for each in fresh]
            for each, result in zip(fresh, self._connection.backend.apply(*steps), strict=True):
                held = None if result.applied else result.holds
                self.progress[each.title] = begun if held is None else ScheduleProgress.read(held)
        for each in schedules:
            self.plan_next(each)

    # -- due times --------------------------------------------------------------------------------

    def due(self, now: float) -> list[Schedule]:
        """Remove and return the due schedules, by name; plan each again afterwards.

        All processes use the same order, in which a server locks their facts.
        """
        found: list[Schedule] = []
        while self._heap and self._heap[0].due <= now and len(found) < TOGETHER:
            entry = heapq.heappop(self._heap)
            if self._watched.get(entry.name) == entry.turn:
                found.append(self.known[entry.name])
        return sorted(found, key=lambda each: each.title)

    def plan_next(self, schedule: Schedule, not_before: float = 0.0) -> None:
        """Plan it for its next time, not before a moment."""
        name = schedule.title
        progress = self.progress.get(name)
        if progress is None:
            return
        coming = schedule.options.calendar.next(progress.at)
        if coming is None:
            self._watched.pop(name, None)
            return
        self._watched[name] = number = next(self._turn)
        heapq.heappush(self._heap, Watched(max(coming, not_before), number, name))

    def next_due(self) -> float | None:
        """Return when the next one is due."""
        return self._heap[0].due if self._heap else None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What to do for a schedule now."""

    runs: tuple[float, ...] = ()
    """The planned times to run, in order."""
    missed: tuple[float, float] | None = None
    """The first missed time, and the last moment of those before `runs`."""


def catch_up(schedule: Schedule, progress: ScheduleProgress, now: float) -> CatchUp:
    """Choose from the planned times since the last one.

    All times of the last ten seconds run. For earlier ones the schedule decides: none, the last, or
    all within its grace.
    """
    calendar, options = schedule.options.calendar, schedule.options
    first = calendar.next(progress.at)
    if first is None or first > now:
        return CatchUp()
    late = now - PROMPT
    recent = tuple(islice(calendar.upto(max(progress.at, late), now), _MOST_RUNS))
    if first > late:
        return CatchUp(recent)
    earlier: tuple[float, ...] = ()
    reach = max(progress.at, now - options.grace)
    if options.missed == "all":
        earlier = tuple(islice(calendar.upto(reach, late), _MOST_RUNS))
        if len(earlier) == _MOST_RUNS:  # the others follow in the next turn
            recent = ()
    elif options.missed == "last" and not recent:
        last = calendar.last(reach, late)
        earlier = () if last is None else (last,)
    runs = earlier + recent
    if runs and runs[0] == first:
        return CatchUp(runs)
    return CatchUp(runs, (first, _before(runs, late)))


def _before(runs: tuple[float, ...], late: float) -> float:
    return min(late, runs[0] - 0.001) if runs else late
