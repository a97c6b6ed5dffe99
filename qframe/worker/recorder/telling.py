"""Telling: makes a recording, and the sentence that says in short how a job ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from qframe.contracts.recording import Recording, SeenStack, UsedPoint
from qframe.payload.text import one_line
from qframe.worker.recorder import stacks
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import STACKS
from qframe.worker.recorder.use import ProcessUse

_LARGEST = 16 * 1024
"""Characters of a recording: it is kept with the job until its next failure."""
_LARGEST_TOGETHER, _LEAST = 1024 * 1024, 4 * 1024
"""Characters of the recordings of a chunk, which all its jobs have, and those of one at least."""
_CALLS = 30
_LONGEST_CALL, _LONGEST_LINE = 300, 500
_GIGABYTE = 1000.0
"""Megabytes from which a size is told in gigabytes."""
_RISES = 1.0
"""Megabytes a second from which a rise is told."""
_FRESH = 2.5
"""Seconds for which a stack counts as the one at the end."""

Seen = tuple[float, Sequence[str]]
"""A stack, and its moment."""


class Used(NamedTuple):
    """What the job's process used: its curve, megabytes a second of its rise, and its cgroup."""

    curve: Sequence[UsedPoint] = ()
    rise: float = 0.0
    events: Mapping[str, int] = {}
    limit: float = 0.0

    @classmethod
    def between(cls, use: ProcessUse, events: MemoryEvents, began: float, end: float) -> Used:
        """Returns what was used from `began` to `end`, by the monotonic clock."""
        rise, counts = use.rise(began), events.since(began, end)
        return cls(use.curve(began, end), rise, counts, events.limit())


def told(
    attempt: int,
    how: str,
    end: float,
    lines: Iterable[tuple[float, str]],
    seen: Sequence[Seen],
    used: Used,
    together: int = 1,
) -> Recording:
    """Returns the recording of an attempt that ended at `end`: `how`, in a few words.

    `together`: of how many jobs the chunk was.
    """
    if together > 1:
        how = f"{how} in a chunk of {together:,} jobs"
    folded = _folded(seen, end)
    facts = (how, *_facts(folded, used))
    found = Recording(
        attempt=attempt,
        summary=one_line(", ".join(filter(None, facts))),
        log=tuple(_line(created, text) for created, text in lines),
        stacks=folded,
        curve=tuple(used.curve),
        memory_events=dict(used.events),
        limit=round(used.limit, 1),
    )
    return _bounded(found, max(_LEAST, min(_LARGEST, _LARGEST_TOGETHER // together)))


def _facts(folded: Sequence[SeenStack], used: Used) -> list[str]:
    facts = []
    if used.events.get("oom_kill"):
        facts.append("while its cgroup ran out of memory")
    if used.curve:
        size = _size(used.curve[-1].megabytes)
        size += f" of {_size(used.limit)}" if used.limit else ""
        facts.append(size + (f" and rising {_size(used.rise)}/s" if used.rise >= _RISES else ""))
    if folded:
        place, ago = stacks.place_of(list(folded[0].calls)), folded[0].ago[0]
        facts.append(place if ago <= _FRESH else f"{ago:.0f} s before {place}" if place else "")
    return facts


def _size(megabytes: float) -> str:
    if megabytes < _GIGABYTE:
        return f"{megabytes:.0f} MB"
    return f"{megabytes / 1024:.1f}".removesuffix(".0") + " GB"


def _line(created: float, text: str) -> str:
    try:
        at = f"{time.strftime('%H:%M:%S', time.gmtime(created))}.{int(created % 1 * 1000):03}"
    except (ValueError, OverflowError, OSError):  # the job's clock may be anything
        at = "?"
    return one_line(f"{at} {text}", _LONGEST_LINE)


def _folded(seen: Sequence[Seen], end: float) -> tuple[SeenStack, ...]:
    """Returns the latest stacks first, equal ones that follow each other as one."""
    found: list[SeenStack] = []
    for moment, calls in sorted(seen, reverse=True)[:STACKS]:
        shown = tuple(one_line(each, _LONGEST_CALL) for each in calls[:_CALLS])
        ago = round(max(0.0, end - moment), 1)
        if not shown:
            continue
        if found and found[-1].calls == shown:
            found[-1] = SeenStack((*found[-1].ago, ago), shown)
        else:
            found.append(SeenStack((ago,), shown))
    return tuple(found)


def _bounded(found: Recording, largest: int) -> Recording:
    """Leaves out the earliest stacks, then log lines, then outer calls, while it is too large."""
    while len(json.dumps(found.fields(), ensure_ascii=False)) > largest:
        if len(found.stacks) > 1:
            found = replace(found, stacks=found.stacks[:-1])
        elif found.log:
            found = replace(found, log=found.log[1:])
        elif found.stacks and len(found.stacks[0].calls) > 1:
            ago, calls = found.stacks[0]
            found = replace(found, stacks=(SeenStack(ago, calls[: len(calls) // 2]),))
        else:
            break
    return found
