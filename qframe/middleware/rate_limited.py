"""RateLimited: so many jobs within so many seconds, over all workers."""

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
"""Seconds a job waits where the store does not answer."""
_CONTENDED = (0.05, 0.2)
"""Seconds, from and to, that a job waits which others have forestalled again and again."""


class RateLimited:
    """Lets only so many jobs start within a time; the others are released until there is room.

    - `limits`: `"10/minute"`, `"5/s"`, `"100/15m"`, or `Limit(10, per=60)`. In no time of that
      length, wherever it begins, do more start, whatever number of workers there is. Of several
      all must have room, else none is charged.
    - `name`: what is limited; default: the job's class. Jobs of all classes that have a limit of
      this name are counted together.
    - `by`: a value, or a function of the job that gives one: each value has a count of its own. A
      `Limit` may have its own `by`.
    - `release`: seconds (or a timedelta) until a limited job is tried again; default: until there
      is room, and a little longer at random. It does not use up a try.
    - `dont_release`: a limited job is skipped instead.

    Where a job cannot be released (connection `sync`, `dispatch_sync`) `LimitReached` is raised.
    Raises `JobDefinitionError` for limits that are none.
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
        """Run the job if there is room for it, else release or skip it."""
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
        """Charge all limits and give 0, or none of them and give the seconds to wait."""
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
        return random.uniform(*_CONTENDED)  # noqa: S311 (no secret)

    def _keyed(self, job: JobDefinition) -> dict[str, Limit]:
        """Give the limits by their names in the store: equal values of two are not one."""
        name = over_time.name_of(self._name, job)
        return {
            f"limit:{name}:{place}:{limit.per:g}:"
            + over_time.value_of(self._by if limit.by is None else limit.by, job): limit
            for place, limit in enumerate(self.limits)
        }
