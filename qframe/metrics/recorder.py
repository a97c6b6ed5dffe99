"""Recorder: counts the jobs of this process, by minute, until the counts are written."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from qframe import forks
from qframe.metrics.series import (
    OTHER,
    PUSHED,
    RUN,
    RUN_BUT_DONE,
    STARTED,
    TIMED_OUT,
    UNKNOWN,
    WAIT,
    Fields,
    Histogram,
    Pair,
)

MINUTE = 60
MOST = 300
"""The most separate series in a minute; the others are combined."""
LATE = 60.0
"""Seconds after its end in which a minute is written. Later counts go to a later minute."""
_LONGEST = 150


@dataclass(slots=True)
class Minute:
    """The counts of a minute."""

    series: dict[Pair, defaultdict[str, int]] = field(default_factory=dict)
    changes: int = 0
    """Grows with each change."""
    written: int = 0
    """The value of `changes` at the last write."""
    text: str = "[]"
    """The text of the last write."""

    def encoded(self) -> str:
        """Return the counts as JSON."""
        told = [[*pair, fields] for pair, fields in self.series.items()]
        return json.dumps(told, separators=(",", ":"))


class Recorder:
    """Counts the jobs of one connection. Thread-safe."""

    def __init__(self) -> None:
        self.source = secrets.token_hex(6)
        """A unique id of this recorder."""
        self.outcomes: Counter[str] = Counter()
        """The number of each outcome since it began."""
        self._minutes: dict[int, Minute] = {}
        self._now = Minute()
        self._from = self._until = 0.0
        self._lock = forks.lock()

    def pushed(self, name: str, queue: str, times: int = 1) -> None:
        """Count pushes."""
        with self._lock:
            self._fields(name, queue)[PUSHED] += times

    def started(self, name: str, queue: str, due: float | None) -> None:
        """Count a start; `due` is when the job should have started, if known."""
        with self._lock:
            fields = self._fields(name, queue)
            fields[STARTED] += 1
            if due is not None:
                waited = max(0.0, time.time() - due)
                _measure(fields, WAIT, waited)

    def ended(
        self,
        name: str,
        queue: str,
        outcome: str,
        seconds: float | None = None,
        *,
        timed_out: bool = False,
    ) -> None:
        """Count the end of a reservation; the attempt ran for `seconds`, if it ran."""
        with self._lock:
            fields = self._fields(name, queue)
            fields[outcome] += 1
            self.outcomes[outcome] += 1
            if seconds is not None:
                _measure(fields, RUN, seconds)
                if outcome != "done":
                    _measure(fields, RUN_BUT_DONE[outcome], seconds)
            if timed_out:
                fields[TIMED_OUT] += 1

    def lost(self, name: str, queue: str, *, was_done: bool) -> None:
        """Count a lost lease, and take back an outcome that was counted too early."""
        with self._lock:
            fields = self._fields(name, queue)
            fields["lost"] += 1
            self.outcomes["lost"] += 1
            if was_done:
                fields["done"] -= 1
                self.outcomes["done"] -= 1

    def by_outcome(self) -> dict[str, int]:
        """Return the number of each outcome since it began."""
        return {outcome: count for outcome, count in self.outcomes.copy().items() if count}

    # -- writing ----------------------------------------------------------------------------------

    def has_unwritten(self) -> bool:
        """Whether a count has changed since its last write."""
        with self._lock:
            return any(each.changes != each.written for each in self._minutes.values())

    def unwritten(self) -> Iterator[tuple[int, str]]:
        """Iterate over the minutes that changed since their last write, with their texts.

        Asking for the next one confirms that the one before was written.
        """
        now = time.time()
        with self._lock:
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
        said = {(queue, name): fields for queue, name, fields in json.loads(late.text)}
        for pair, fields in late.series.items():
            before: Fields = said.get(pair, {})
            later = {key: count - before.get(key, 0) for key, count in fields.items()}
            if any(later.values()):
                counted = self._fields(pair.job, pair.queue)
                for key, count in later.items():
                    counted[key] += count

    def _fields(self, name: str, queue: str) -> defaultdict[str, int]:
        """Return the counts of a class and queue in this minute."""
        now = time.time()
        if not self._from <= now < self._until:
            minute = int(now // MINUTE)
            self._from, self._until = minute * MINUTE, (minute + 1) * MINUTE
            self._now = self._minutes.setdefault(minute, Minute())
        current = self._now
        current.changes += 1
        pair = Pair(queue, name or UNKNOWN)
        fields = current.series.get(pair)
        if fields is None:
            pair = Pair(queue, pair.job[:_LONGEST])
            if pair not in current.series and len(current.series) >= MOST:
                pair = Pair(OTHER, OTHER)
            fields = current.series.setdefault(pair, defaultdict(int))
        return fields


def _measure(fields: defaultdict[str, int], histogram: Histogram, seconds: float) -> None:
    fields[histogram.bucket(seconds)] += 1
    fields[histogram.total] += int(seconds * 1e6)
