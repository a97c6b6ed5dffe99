"""Recordings: what was kept of a job's last seconds, as people and programs see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from qframe.contracts.recording import Recording
from qframe.payload.text import count_of, printable

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 60
_LONGEST = 600


class StackState(BaseModel):
    """Calls of the job, the innermost first, each as `file:line function`."""

    seconds_before_end: list[float]
    """When they were seen: the same ones perhaps several times."""
    calls: list[str]


class UseState(BaseModel):
    """What the job's process used at a moment."""

    seconds_before_end: float
    megabytes: float
    processor: float
    """1.0 is one core."""


class RecordingState(BaseModel):
    """What was kept of the last attempt that was killed, timed out or ran out of memory."""

    attempt: int
    summary: str
    log: list[str]
    stacks: list[StackState]
    """The latest first."""
    curve: list[UseState]
    memory_events: dict[str, int]
    """By how much the counts of cgroup's `memory.events` rose while it ran."""
    limit_megabytes: float | None
    """What its cgroup, or else the machine, allows."""

    @classmethod
    def of(cls, found: Recording | None) -> RecordingState | None:
        if found is None:
            return None
        return cls(
            attempt=found.attempt,
            summary=printable(found.summary),
            log=_shown(found.log),
            stacks=[
                StackState(seconds_before_end=list(each.ago), calls=_shown(each.calls))
                for each in found.stacks
                if each.ago
            ],
            curve=[
                UseState(
                    seconds_before_end=each.ago,
                    megabytes=each.megabytes,
                    processor=each.processor,
                )
                for each in found.curve
            ],
            memory_events={
                printable(name, 40): count for name, count in found.memory_events.items()
            },
            limit_megabytes=found.limit or None,
        )


def _shown(texts: Sequence[str]) -> list[str]:
    return [printable(each, _LONGEST) for each in texts]


def events_of(state: RecordingState) -> str:
    """Returns the memory events in one line; "" if there were none."""
    return ", ".join(f"{name} +{count}" for name, count in state.memory_events.items())


def lines_of(state: RecordingState) -> Iterator[str]:
    """Yields a recording as lines for a terminal."""
    yield f"recorded of attempt {state.attempt}: {state.summary}"
    if state.curve:
        first, last = state.curve[0], state.curve[-1]
        sizes = [each.megabytes for each in state.curve]
        yield f"  memory     {bars(sizes)}  {sizes[0]:.0f} to {sizes[-1]:.0f} MB"
        used = [each.processor for each in state.curve]
        yield f"  processor  {bars(used)}  at most {100 * max(used):.0f} %"
        span, left = first.seconds_before_end - last.seconds_before_end, last.seconds_before_end
        yield f"             over {span:.0f} s, until {left:.1f} s before its end"
    if state.memory_events:
        yield f"  memory.events of its cgroup: {events_of(state)}"
    for each in state.stacks:
        times = count_of(len(each.seconds_before_end), "time", "times")
        yield f"  stack {min(each.seconds_before_end):.1f} s before its end, seen {times}"
        yield from (f"    {call}" for call in each.calls)
    if state.log:
        yield f"  last {count_of(len(state.log), 'log line', 'log lines')}"
        yield from (f"    {line}" for line in state.log)


def bars(values: Sequence[float], wide: int = _WIDE) -> str:
    """Returns the latest values as a line of bars from zero to the highest."""
    values = values[-wide:]
    most = max(*values, 1e-9, 0.0)
    return "".join(_BARS[min(7, int(8 * max(0.0, each) / most))] for each in values)
