"""Terms: all settings of a schedule except its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Literal

from qframe.schedules.calendar import Calendar

Missed = Literal["none", "last", "all"]
Condition = Callable[..., object]
"""Called without arguments, or with the planned time."""
Hook = Callable[..., object]
"""Called without arguments, or with the reserved job."""

HOUR = 3600.0
DAY = 86400.0
HOOKS = ("before", "after", "on_success", "on_failure")


UNSET = Calendar()


@dataclass(frozen=True, slots=True)
class Terms:
    """When a job is dispatched, where to, and under what conditions."""

    calendar: Calendar = UNSET
    zone: str = ""
    """"" for the configured one."""
    name: str = ""
    connection: str | None = None
    queue: str | None = None
    missed: Missed = "last"
    grace: float = HOUR
    spread: int = 0
    overlap: float = 0.0
    """Seconds after which an unfinished run no longer blocks the next one; 0: it never does."""
    in_maintenance: bool = False
    environments: tuple[str, ...] = ()
    conditions: tuple[tuple[Condition, bool], ...] = ()
    """Each with the result that it must have."""
    hooks: tuple[tuple[str, Hook], ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return what distinguishes them, as JSON values; functions by their names."""
        return {
            "when": self.calendar.text(),
            "zone": self.zone,
            "connection": self.connection,
            "queue": self.queue,
            "missed": [self.missed, self.grace],
            "spread": self.spread,
            "overlap": self.overlap,
            "maintenance": self.in_maintenance,
            "environments": list(self.environments),
            "conditions": [
                [getattr(each, "__qualname__", type(each).__name__), wanted]
                for each, wanted in self.conditions
            ],
        }


def called(function: Callable[..., object], argument: object) -> object:
    """Call a function with the argument if it accepts one."""
    try:
        takes = [
            each
            for each in signature(function).parameters.values()
            if each.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
            and each.default is Parameter.empty
        ]
    except (TypeError, ValueError):
        takes = []
    return function(argument) if takes else function()
