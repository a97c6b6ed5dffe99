"""Recording: what the supervisor of a job kept of its last seconds, beside the job's history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MOST_POINTS = 200
_MOST_TEXTS = 100


class SeenStack(NamedTuple):
    """The calls of a job, the innermost first, and the seconds before its end they were seen at."""

    ago: tuple[float, ...]
    calls: tuple[str, ...]
    """Each as `file:line function`."""


class UsedPoint(NamedTuple):
    """What the job's process used, so many seconds before the job's end."""

    ago: float
    megabytes: float
    """Resident memory."""
    processor: float
    """Processor seconds since the point before, for each second: 1.0 is one core."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was kept of an attempt that was killed, timed out or ran out of memory.

    `summary` is one sentence. `log` are its last log lines, the latest last; `stacks` the latest
    first; `curve` the earliest first. `memory_events` are the counts of cgroup's `memory.events`
    that rose while it ran. `limit` is what its cgroup, or else the machine, allows in megabytes;
    0 if unknown.
    """

    attempt: int
    summary: str
    log: tuple[str, ...] = ()
    stacks: tuple[SeenStack, ...] = ()
    curve: tuple[UsedPoint, ...] = ()
    memory_events: Mapping[str, int] = field(default_factory=dict, hash=False)
    limit: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Return it as JSON values; what is empty is left out."""
        found: dict[str, Any] = {
            "attempt": self.attempt,
            "summary": self.summary,
            "log": self.log,
            "stacks": self.stacks,
            "curve": self.curve,
            "memory_events": dict(self.memory_events),
            "limit": self.limit,
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def of(cls, fields: object) -> Recording | None:
        """Read it; None if this is none. Parts that are malformed are left out."""
        if not isinstance(fields, dict) or not isinstance(fields.get("summary"), str):
            return None
        events = fields.get("memory_events")
        return cls(
            attempt=int(_number(fields.get("attempt"))),
            summary=fields["summary"],
            log=_texts(fields.get("log")),
            stacks=tuple(
                SeenStack(tuple(map(_number, _listed(each[0]))), _texts(each[1]))
                for each in _rows(fields.get("stacks"), len(SeenStack._fields))
            ),
            curve=tuple(
                UsedPoint(*map(_number, each))
                for each in _rows(fields.get("curve"), len(UsedPoint._fields))
            ),
            memory_events={
                name: int(_number(count))
                for name, count in (events.items() if isinstance(events, dict) else ())
            },
            limit=_number(fields.get("limit")),
        )


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type] # it is one


def _listed(value: object) -> list[Any]:
    return value[:_MOST_POINTS] if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in _listed(value)[:_MOST_TEXTS] if isinstance(each, str))


def _rows(value: object, width: int) -> list[list[Any]]:
    return [each for each in _listed(value) if isinstance(each, list) and len(each) == width]
