"""Metrics: parts that processes write, merged into spans of minutes, and totals.

Each process writes its counts of a minute under its own key, as a whole, so they count once however
often they are written. A worker merges the parts of past minutes: by minute for a day, by ten
minutes for two days, by two hours for two weeks, and in total. The step expects everything it
replaces, so of two concurrent workers one does nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qframe.contracts.step import Expect, Operation, Set, Step, Unset
from qframe.drivers.store import Store
from qframe.metrics.recorder import LATE, MINUTE, Recorder
from qframe.metrics.series import HIGHEST, MEMORY, OTHER, Fields, Pair, add

PREFIX = "metric:"
PART_TTL = 14 * 86400.0
"""Seconds that an unmerged part is kept, if no worker runs."""
SETTLED = 2 * LATE
"""Seconds after its end at which the parts of a minute are merged."""
MOST = 300
"""The most separate series; beyond, there is one for each queue, up to twice as many."""
_AT_ONCE = 200
_TRIES = 5


class Resolution(NamedTuple):
    """The resolution and life of stored metrics, in seconds."""

    step: int
    span: int
    """The time under one key."""
    keep: int


BY_MINUTE = Resolution(MINUTE, 3600, 86400)
BY_TEN_MINUTES = Resolution(600, 6 * 3600, 2 * 86400)
BY_TWO_HOURS = Resolution(2 * 3600, 86400, 14 * 86400)
RESOLUTIONS = (BY_MINUTE, BY_TEN_MINUTES, BY_TWO_HOURS)

Slots = dict[int, int]
"""Counts, by number of the step since 1970."""
Series = dict[Pair, dict[str, Slots]]


@dataclass(frozen=True, slots=True)
class Gauge:
    """The sizes of a queue at one moment."""

    queue: str
    fields: Fields


class Metrics:
    """The metrics of one connection. Raises `BackendUnavailable`."""

    def __init__(self, store: Store, connection: str) -> None:
        self.store = store
        self.connection = connection
        name = connection.replace("|", "/")[:100]
        self._parts = f"{PREFIX}part:{name}|"
        self._total = f"{PREFIX}total:{name}"
        self._turn = f"{PREFIX}turn:{name}"
        self._spans = {each: f"{PREFIX}{each.step}:{name}|" for each in RESOLUTIONS}

    # -- writing ----------------------------------------------------------------------------------

    def write(self, recorder: Recorder, ttl: float = PART_TTL) -> bool:
        """Write what changed since the last call. Returns whether there was anything."""
        written = False
        for minute, text in recorder.unwritten():
            self.store.set(f"{self._parts}{minute:010d}|{recorder.source}", text, ttl)
            written = True
        return written

    def takes_turn(self, who: str, seconds: float) -> bool:
        """Take the turn to merge parts and to look at queues, for `seconds`.

        Returns whether it was free.
        """
        return self.store.takes_turn(self._turn, who, seconds)

    def put_together(self, gauges: Iterable[Gauge] = ()) -> int:
        """Merge the parts of past minutes. Returns the number of parts.

        `gauges` count as of now; of several looks in one step of time the highest numbers are kept.
        """
        now = time.time()
        waiting = [
            (key, text)
            for key, text in self.store.items(self._parts)
            if (self._minute(key) + 1) * MINUTE + SETTLED <= now
        ]
        looked = [(int(now // MINUTE), Pair(each.queue, ""), each.fields) for each in gauges]
        for first in range(0, max(1, len(waiting)), _AT_ONCE):
            parts = waiting[first : first + _AT_ONCE]
            counted = [
                (self._minute(key), pair, fields)
                for key, text in parts
                for pair, fields in _read(text)
            ]
            self._add(parts, [*looked, *counted])
            looked = []
        return len(waiting)

    def _add(
        self,
        parts: Sequence[tuple[str, str]],
        counted: Sequence[tuple[int, Pair, Fields]],
    ) -> None:
        """Add parts to spans and totals, and remove the parts, in one step."""
        if not counted and not parts:
            return
        wanted = {
            self._span_key(each, minute * MINUTE): each
            for each in RESOLUTIONS
            for minute, _, _ in counted
        }
        keys = [*wanted, self._total]
        *spans, total = self.store.get(*keys)
        operations: list[Operation] = [Expect(*each) for each in parts]
        for (key, kind), before in zip(wanted.items(), spans, strict=True):
            series = _series(before)
            for minute, pair, fields in counted:
                if self._span_key(kind, minute * MINUTE) == key:
                    _count(series, pair, minute * MINUTE // kind.step, fields)
            ttl = float(kind.keep + kind.span)
            operations += [Expect(key, before), Set(key, _text(series), ttl)]
        totals = _totals(total)
        for _, pair, fields in counted:
            if pair.job:
                add(totals.setdefault(_capped(totals, pair), {}), fields)
        text = json.dumps([[*pair, fields] for pair, fields in totals.items()])
        operations += [Expect(self._total, total), Set(self._total, text)]
        operations += [Unset(key) for key, _ in parts]
        self.store.backend.apply(Step(None, *operations))

    def reset(self) -> None:
        for key in [key for key, _ in self._everything()]:
            self.store.delete(key)

    def _everything(self) -> Iterator[tuple[str, str]]:
        for prefix in (self._parts, *self._spans.values()):
            yield from self.store.items(prefix)
        (total,) = self.store.get(self._total)
        if total is not None:
            yield self._total, total

    # -- reading ----------------------------------------------------------------------------------

    def totals(self) -> dict[Pair, dict[str, int]]:
        """Return the counts since the beginning."""
        parts, (total,) = self._together([self._total])
        found = _totals(total)
        for _, pair, fields in parts:
            add(found.setdefault(pair, {}), fields)
        return found

    def series(
        self, kind: Resolution, since: float, until: float, only: Collection[str] = ()
    ) -> Series:
        """Return the counts from `since` to `until` (epoch times), in steps of `kind`.

        With `only`, the counts of these names, which is faster: most names are of histograms.
        """
        first, last = int(since // kind.step), int(until // kind.step)
        starts = range(first * kind.step // kind.span, last * kind.step // kind.span + 1)
        keys = [self._span_key(kind, start * kind.span) for start in starts]
        parts, texts = self._together(keys)
        found: Series = {}
        for text in texts:
            for pair, fields in _series(text, only, first, last).items():
                for field, slots in fields.items():
                    if slots:
                        found.setdefault(pair, {}).setdefault(field, {}).update(slots)
        for minute, pair, counted in parts:
            slot = minute * MINUTE // kind.step
            if first <= slot <= last:
                wanted = {name: counted[name] for name in only if name in counted}
                _count(found, pair, slot, wanted if only else counted)
        return found

    def _together(
        self, keys: Sequence[str]
    ) -> tuple[list[tuple[int, Pair, Fields]], list[str | None]]:
        """Read parts, and the values of keys, as of one moment."""
        before, parts = self.store.get(self._total, *keys), list[tuple[str, str]]()
        for _ in range(_TRIES):
            parts = [*self.store.items(self._parts)]
            after = self.store.get(self._total, *keys)
            if after == before:
                break
            before = after  # parts were merged meanwhile
        counted = [
            (self._minute(key), pair, fields) for key, text in parts for pair, fields in _read(text)
        ]
        return counted, before[1:]

    def _minute(self, key: str) -> int:
        return int(key.removeprefix(self._parts).partition("|")[0])

    def _span_key(self, kind: Resolution, moment: float) -> str:
        return f"{self._spans[kind]}{int(moment // kind.span):010d}"


def added_up(fields: Mapping[str, Slots]) -> dict[str, int]:
    return {
        field: (max if field == MEMORY else sum)(slots.values()) for field, slots in fields.items()
    }


def _read(text: str) -> Iterator[tuple[Pair, Fields]]:
    for queue, job, fields in json.loads(text):
        yield Pair(queue, job), fields


def _totals(text: str | None) -> dict[Pair, dict[str, int]]:
    return {pair: dict(fields) for pair, fields in _read(text or "[]")}


def _series(
    text: str | None, only: Collection[str] = (), since: float = 0, until: float = math.inf
) -> Series:
    first, *rows = json.loads(text or "[0]") or [0]
    if not isinstance(first, int):  # of an earlier version, with other buckets
        return {}
    return {
        Pair(queue, job): {
            field: {
                slot: number
                for relative, number in slots.items()
                if since <= (slot := first + int(relative)) <= until
            }
            for field, slots in fields.items()
            if not only or field in only
        }
        for queue, job, fields in rows
    }


def _text(series: Series) -> str:
    """Encode a series, with slots relative to the first one, which is shorter."""
    used = [slot for fields in series.values() for slots in fields.values() for slot in slots]
    first = min(used, default=0)
    rows = [
        [
            *pair,
            {
                field: {slot - first: number for slot, number in slots.items()}
                for field, slots in fields.items()
            },
        ]
        for pair, fields in series.items()
    ]
    return json.dumps([first, *rows], separators=(",", ":"))


def _count(series: Series, pair: Pair, slot: int, fields: Fields) -> None:
    """Add to a slot, or keep the highest number."""
    kept = series.setdefault(_capped(series, pair), {})
    for field, number in fields.items():
        slots = kept.setdefault(field, {})
        before = slots.get(slot, 0)
        slots[slot] = max(before, number) if field in HIGHEST else before + number


def _capped(known: Mapping[Pair, object], pair: Pair) -> Pair:
    """Return the series under which a pair counts, limited in number."""
    if pair in known or len(known) < MOST:
        return pair
    if not pair.job:
        return Pair(OTHER, "")
    of_queue = Pair(pair.queue, OTHER)
    return of_queue if of_queue in known or len(known) < 2 * MOST else Pair(OTHER, OTHER)
