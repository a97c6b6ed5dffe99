"""RateLimited: a number of jobs in a number of seconds, over all workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from qframe.exceptions import BackendUnavailable, BackendUnusable, JobDefinitionError
from qframe.jobs.definition import JobDefinition
from qframe.middleware import limits as over_time
from qframe.middleware.base import store_of
from qframe.middleware.limits import By, Limit, LimitWindow

_STORE_IS_AWAY = 5.0
"""Seconds that a job waits if the store does not answer."""
_CONTENDED = (0.05, 0.2)
"""Range of seconds that a job waits after losing against others again and again."""


class RateLimited:
    """Starts only a number of jobs within a period; releases the others until there is room.

    - `limits`: `"10/minute"`, `"5/s"`, `"100/15m"`, or `Limit(10, per=60)`. In any period of that
      length, no more jobs start, however many workers run. With several limits, all must have room;
      otherwise none is charged.
    - `name`: what is limited; default: the job's class. Jobs of all classes with a limit of the
      same name are counted together.
    - `by`: a value, or a function of the job that returns one: each value has its own count. A
      `Limit` may have its own `by`.
    - `release`: seconds (or a timedelta) until a limited job is retried; default: until there is
      room, plus a random time. It does not use up a try.
    - `dont_release`: skip a limited job instead.

    If a job cannot be released (connection `sync`, `dispatch_sync`) it raises `LimitReached`;
    invalid limits raise `JobDefinitionError`.
    """

    def __init__(
        self,
        *limits: Limit | str,
        name: str | None = None,
        by: By = None,
        release: float | timedelta | None = None,
        dont_release: bool = False,
    ) -> None:
        if not limits:
            raise JobDefinitionError('RateLimited takes a limit: RateLimited("10/minute")')
        over_time.check_name(name, "RateLimited")
        self.limits = tuple(
            each if isinstance(each, Limit) else Limit.parse(each) for each in limits
        )
        self._name = name
        self._by = by
        self._release = over_time.release_time("RateLimited", release, dont_release=dont_release)
        self._dont_release = dont_release

    def __repr__(self) -> str:
        return f"RateLimited({', '.join(map(str, self.limits))})"

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job if there is room for it; otherwise release or skip it."""
        try:
            wait = self._take(job)
        except BackendUnusable:
            raise
        except BackendUnavailable:
            wait = _STORE_IS_AWAY
        if not wait:
            return call_next(job)
        if not self._dont_release:
            delay = wait if self._release is None else self._release
            over_time.put_back(job, delay, f"limited to {', '.join(map(str, self.limits))}")
        return None

    def _take(self, job: JobDefinition) -> float:
        """Charge all limits and return 0, or none and return the seconds to wait."""
        store, limits = store_of(job), self._keyed(job)
        for _ in over_time.rounds():
            windows = over_time.read(store, limits)
            fullest = max(windows.values(), key=LimitWindow.wait)
            if wait := fullest.wait():
                if any(window.ahead for window in windows.values()):
                    over_time.write(store, windows)
                return wait + over_time.spread(job, fullest.limit)
            for window in windows.values():
                window.add()
            if over_time.write(store, windows):
                return 0.0
        return random.uniform(*_CONTENDED)  # noqa: S311 (not a secret)

    def _keyed(self, job: JobDefinition) -> dict[str, Limit]:
        """Return the limits by their keys in the store; equal values of two limits are separate."""
        name = over_time.name_of(self._name, job)
        return {
            f"limit:{name}:{place}:{limit.per:g}:"
            + over_time.value_of(self._by if limit.by is None else limit.by, job): limit
            for place, limit in enumerate(self.limits)
        }
