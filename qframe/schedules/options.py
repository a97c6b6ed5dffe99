"""Options: all settings of a schedule except its job, and Laravel's methods that set them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, Self

from qframe.exceptions import ConfigurationError
from qframe.payload.text import one_line, queue_name
from qframe.schedules.calendar import Calendar, checked_interval, zone_of

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
class ScheduleOptions:
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


class OptionMethods:
    """The methods that set options; each returns the object."""

    options: ScheduleOptions

    def timezone(self, name: str) -> Self:
        """Plan in this zone, such as Europe/Vienna; default: the configured one, or UTC."""
        if not isinstance(name, str):
            raise ConfigurationError(f"a time zone is text, not {type(name).__name__}")
        zone_of(name)
        return self._set(zone=name)

    # -- conditions -------------------------------------------------------------------------------

    def when(self, condition: Condition | bool) -> Self:
        """Dispatch only if the function returns something true at the planned time."""
        return self._condition(condition, wanted=True)

    def skip(self, condition: Condition | bool) -> Self:
        """Dispatch only if the function returns nothing true at the planned time."""
        return self._condition(condition, wanted=False)

    def environments(self, *names: str) -> Self:
        """Dispatch only where `[schedule] environment` is one of these."""
        return self._set(environments=names)

    def even_in_maintenance_mode(self) -> Self:
        """Dispatch even while the whole connection is paused (`qframe pause`)."""
        return self._set(in_maintenance=True)

    def without_overlapping(self, expires: float | timedelta = DAY) -> Self:
        """Skip a run while the previous one waits or runs, at most `expires` seconds.

        `expires` is seconds or a timedelta; default: a day.
        """
        return self._set(overlap=float(checked_interval(expires)))

    def missed(self, policy: Missed, within: float | timedelta = HOUR) -> Self:
        """Set which runs to make up for that no worker was there for: `none`, `last` or `all`.

        Runs older than `within` (seconds or a timedelta; default: an hour) are not made up for.
        """
        if policy not in {"none", "last", "all"}:
            raise ConfigurationError(
                f"missed is none, last or all, not {one_line(repr(policy), 40)}"
            )
        return self._set(missed=policy, grace=float(checked_interval(within)))

    def spread(self, seconds: float | timedelta) -> Self:
        """Delay each run by up to `seconds`, always the same for a name and planned time."""
        return self._set(spread=checked_interval(seconds))

    # -- destination ------------------------------------------------------------------------------

    def on_connection(self, name: str) -> Self:
        """Use this connection in place of the job's own."""
        return self._set(connection=name)

    def on_queue(self, name: str) -> Self:
        """Use this queue in place of the job's own."""
        return self._set(queue=queue_name(name))

    # -- hooks ------------------------------------------------------------------------------------

    def before(self, hook: Hook) -> Self:
        """Call a function in the worker before the job's first attempt."""
        return self._hook("before", hook)

    def after(self, hook: Hook) -> Self:
        """Call a function in the worker when the job has ended, done or failed."""
        return self._hook("after", hook)

    def on_success(self, hook: Hook) -> Self:
        """Call a function in the worker when the job is done."""
        return self._hook("on_success", hook)

    def on_failure(self, hook: Hook) -> Self:
        """Call a function in the worker when the job has failed for good."""
        return self._hook("on_failure", hook)

    # -- internal ---------------------------------------------------------------------------------

    def _set(self, **changes: Any) -> Self:  # noqa: ANN401 (the fields of ScheduleOptions)
        self.options = replace(self.options, **changes)
        return self

    def _condition(self, condition: Condition | bool, *, wanted: bool) -> Self:
        if isinstance(condition, bool):
            return self._set(
                conditions=(*self.options.conditions, (partial(bool, condition), wanted))
            )
        if not callable(condition):
            raise ConfigurationError(
                f"a condition is a function, or a bool, not {one_line(repr(condition), 40)}"
            )
        return self._set(conditions=(*self.options.conditions, (condition, wanted)))

    def _hook(self, kind: str, hook: Hook) -> Self:
        if not callable(hook):
            raise ConfigurationError(f"{kind} takes a function, not {one_line(repr(hook), 40)}")
        return self._set(hooks=(*self.options.hooks, (kind, hook)))


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
