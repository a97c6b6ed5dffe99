"""Words: Laravel's methods for when and how, for schedules and groups of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Self

from qframe.exceptions import ConfigurationError
from qframe.payload.text import one_line, queue_name
from qframe.schedules.cadences import Cadences
from qframe.schedules.calendar import checked_interval, zone_of
from qframe.schedules.terms import DAY, HOUR, Condition, Hook, Missed


class Words(Cadences):
    """The settings of a schedule; each method returns the object."""

    def timezone(self, name: str) -> Self:
        """Plan in this zone, such as Europe/Vienna; default: the configured one, or UTC."""
        zone_of(name)
        return self._told(zone=name)

    # -- conditions -------------------------------------------------------------------------------

    def when(self, condition: Condition | bool) -> Self:
        """Dispatch only if the function returns something true at the planned time."""
        return self._condition(condition, wanted=True)

    def skip(self, condition: Condition | bool) -> Self:
        """Dispatch only if the function returns nothing true at the planned time."""
        return self._condition(condition, wanted=False)

    def environments(self, *names: str) -> Self:
        """Dispatch only where `[schedule] environment` is one of these."""
        return self._told(environments=names)

    def even_in_maintenance_mode(self) -> Self:
        """Dispatch even while the whole connection is paused (`qframe pause`)."""
        return self._told(in_maintenance=True)

    def without_overlapping(self, expires: float | timedelta = DAY) -> Self:
        """Skip a run while the previous one waits or runs, at most `expires` seconds.

        `expires` is seconds or a timedelta; default: a day.
        """
        return self._told(overlap=float(checked_interval(expires)))

    def missed(self, policy: Missed, within: float | timedelta = HOUR) -> Self:
        """Set which runs to make up for that no worker was there for: `none`, `last` or `all`.

        Runs older than `within` (seconds or a timedelta; default: an hour) are not made up for.
        """
        if policy not in {"none", "last", "all"}:
            raise ConfigurationError(
                f"missed is none, last or all, not {one_line(repr(policy), 40)}"
            )
        return self._told(missed=policy, grace=float(checked_interval(within)))

    def spread(self, seconds: float | timedelta) -> Self:
        """Delay each run by up to `seconds`, always the same for a name and planned time."""
        return self._told(spread=checked_interval(seconds))

    # -- destination ------------------------------------------------------------------------------

    def on_connection(self, name: str) -> Self:
        """Use this connection in place of the job's own."""
        return self._told(connection=name)

    def on_queue(self, name: str) -> Self:
        """Use this queue in place of the job's own."""
        return self._told(queue=queue_name(name))

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

    def _told(self, **changes: Any) -> Self:  # noqa: ANN401 (the fields of Terms)
        self.terms = replace(self.terms, **changes)
        return self

    def _condition(self, condition: Condition | bool, *, wanted: bool) -> Self:
        if isinstance(condition, bool):
            return self._told(
                conditions=(*self.terms.conditions, (partial(bool, condition), wanted))
            )
        if not callable(condition):
            raise ConfigurationError(
                f"a condition is a function, or a bool, not {one_line(repr(condition), 40)}"
            )
        return self._told(conditions=(*self.terms.conditions, (condition, wanted)))

    def _hook(self, kind: str, hook: Hook) -> Self:
        if not callable(hook):
            raise ConfigurationError(f"{kind} takes a function, not {one_line(repr(hook), 40)}")
        return self._told(hooks=(*self.terms.hooks, (kind, hook)))
