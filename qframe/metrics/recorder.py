"""Recorder: counts the jobs of this process, by minute, until the counts are written."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from qframe import forks
from qframe.metrics.series import (
    HIGHEST,
    MEASURED,
    MEMORY,
    OTHER,
    PROCESSOR,
    PUSHED,
    RUN,
    RUN_BUT_DONE,
    STARTED,
    TIMED_OUT,
    UNKNOWN,
    WAIT,
    Fields,
    Histogram,
    add,
)

MINUTE = 60
MOST = 300
"""The most separate series in a minute; the others are combined."""
LATE = 60.0
"""Seconds after its end in which a minute is written. Later counts go to a later minute."""
_LONGEST = 150
_MOST_NOTES = 5000
"""Jobs to note before they are counted, if nobody reads the counts."""


@dataclass(slots=True)
class Minute:
    series: dict[tuple[str, str], defaultdict[str, int]] = field(default_factory=dict)
    """Counts by queue and class."""
    changes: int = 0
    """Grows with each change."""
    written: int = 0
    """The value of `changes` at the last write."""
    text: str = "[]"
    """The text of the last write."""

    def encoded(self) -> str:
        rows = [[*pair, fields] for pair, fields in self.series.items()]
        return json.dumps(rows, separators=(",", ":"))


_Note = tuple[float, str, str, str, float | None, bool, float | None, float]
"""When a job started or ended, its class and queue, `STARTED` or its outcome, for how many seconds
it waited or ran, whether it timed out, its processor seconds and its peak of memory. A plain tuple:
each job makes two.
"""


class Recorder:
    """Counts the jobs of one connection. Thread-safe.

    Starts and ends are only noted while jobs run, and counted when somebody reads the counts.
    """

    def __init__(self) -> None:
        self.source = secrets.token_hex(6)
        """A unique id of this recorder."""
        self._outcomes: Counter[str] = Counter()
        self._notes: deque[_Note] = deque()
        self._minutes: dict[int, Minute] = {}
        self._now = Minute()
        self._from = self._until = 0.0
        self._lock = forks.lock()

    def pushed(self, name: str, queue: str, times: int = 1) -> None:
        with self._lock:
            self._count_notes()
            self._fields(name, queue, time.time())[PUSHED] += times

    def started(self, name: str, queue: str, due: float | None) -> None:
        """Count a start; `due` is when the job should have started, if known."""
        now = time.time()
        waited = None if due is None else max(0.0, now - due)
        self._notes.append((now, name, queue, STARTED, waited, False, None, 0.0))

    def ended(
        self,
        name: str,
        queue: str,
        outcome: str,
        seconds: float | None = None,
        *,
        timed_out: bool = False,
        processor: float | None = None,
        memory: float = 0.0,
    ) -> None:
        """Count the end of a reservation; the attempt ran for `seconds`, if it ran.

        `processor` is its seconds of processor time, `memory` its peak of resident megabytes; None
        and 0 if that is not known.
        """
        now = time.time()
        self._notes.append((now, name, queue, outcome, seconds, timed_out, processor, memory))
        if len(self._notes) > _MOST_NOTES:
            with self._lock:
                self._count_notes()

    def lost(self, name: str, queue: str, *, was_done: bool) -> None:
        """Count a lost lease, and take back an outcome that was counted too early."""
        with self._lock:
            self._count_notes()
            fields = self._fields(name, queue, time.time())
            fields["lost"] += 1
            self._outcomes["lost"] += 1
            if was_done:
                fields["done"] -= 1
                self._outcomes["done"] -= 1

    def _count_notes(self) -> None:
        notes = self._notes
        while notes:
            when, name, queue, what, seconds, timed_out, processor, memory = notes.popleft()
            fields = self._fields(name, queue, when)
            fields[what] += 1
            if what != STARTED:
                self._outcomes[what] += 1
            if seconds is not None:
                _measure(fields, WAIT if what == STARTED else RUN, seconds)
                if what in RUN_BUT_DONE:
                    _measure(fields, RUN_BUT_DONE[what], seconds)
            if timed_out:
                fields[TIMED_OUT] += 1
            if processor is not None:
                fields[MEASURED] += 1
                fields[PROCESSOR] += int(processor * 1e6)
            if memory:
                fields[MEMORY] = max(fields[MEMORY], math.ceil(memory))

    def by_outcome(self) -> dict[str, int]:
        """Return the number of each outcome since it began."""
        with self._lock:
            self._count_notes()
            return {outcome: count for outcome, count in self._outcomes.items() if count}

    # -- writing ----------------------------------------------------------------------------------

    def has_unwritten(self) -> bool:
        with self._lock:
            self._count_notes()
            return any(each.changes != each.written for each in self._minutes.values())

    def unwritten(self) -> Iterator[tuple[int, str]]:
        """Iterate over the minutes that changed since their last write, with their texts.

        Asking for the next one confirms that the one before was written.
        """
        now = time.time()
        with self._lock:
            self._count_notes()
            for minute in [*self._minutes]:
                if (minute + 1) * MINUTE + LATE < now:
                    self._make_later(minute)
            changed = [
                (minute, each, each.encoded(), each.changes)
                for minute, each in self._minutes.items()
                if each.changes != each.written
            ]
        for minute, each, text, changes in changed:
            yield minute, text
            each.written, each.text = changes, text
        with self._lock:
            for minute, each in [*self._minutes.items()]:
                if each is not self._now and each.changes == each.written:
                    del self._minutes[minute]

    def _make_later(self, minute: int) -> None:
        """Count the unwritten part of an expired minute in the current one."""
        late = self._minutes.pop(minute)
        if late is self._now:
            self._until = 0.0
        recorded = {(queue, name): fields for queue, name, fields in json.loads(late.text)}
        for pair, fields in late.series.items():
            before: Fields = recorded.get(pair, {})
            later = {
                key: count if key in HIGHEST else count - before.get(key, 0)
                for key, count in fields.items()
                if count != before.get(key, 0)
            }
            if later:
                queue, name = pair
                add(self._fields(name, queue, time.time()), later)

    def _fields(self, name: str, queue: str, when: float) -> defaultdict[str, int]:
        """Return the counts of a class and queue in the minute of `when`, or in a later one.

        A minute that is over may have been written for the last time.
        """
        if when >= self._until or when < self._from - MINUTE:  # or the clock was set back
            minute = int(when // MINUTE)
            self._from, self._until = minute * MINUTE, (minute + 1) * MINUTE
            self._now = self._minutes.setdefault(minute, Minute())
        current = self._now
        current.changes += 1
        fields = current.series.get((queue, name or UNKNOWN))
        if fields is None:
            pair = queue, (name or UNKNOWN)[:_LONGEST]
            if pair not in current.series and len(current.series) >= MOST:
                pair = OTHER, OTHER
            fields = current.series.setdefault(pair, defaultdict(int))
        return fields


def _measure(fields: defaultdict[str, int], histogram: Histogram, seconds: float) -> None:
    fields[histogram.bucket(seconds)] += 1
    fields[histogram.total] += int(seconds * 1e6)
