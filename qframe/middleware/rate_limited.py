"""RateLimited: a number of jobs in a number of seconds, over all workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from qframe import manager
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, BackendUnusable, JobDefinitionError
from qframe.jobs.current import current_job
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import refuse_on_loop
from qframe.middleware import limits as over_time
from qframe.middleware.base import store_beside, store_of
from qframe.middleware.holding import HeldBack
from qframe.middleware.limits import By, Limit, LimitWindow

_STORE_IS_AWAY = 5.0
"""Seconds that a job waits if the store does not answer."""
_CONTENDED = (0.05, 0.2)
"""Range of seconds that a job waits after losing against others again and again."""

_admitted: ContextVar[JobDefinition | None] = ContextVar("qframe_rate_limited", default=None)
"""The job that a limit lets run in this context: its handler may pause the limit."""


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

    `pause` holds all jobs of the limit back for a while, as a reply 429 asks for.

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
            before = _admitted.set(job)
            try:
                return call_next(job)
            finally:
                _admitted.reset(before)
        if not self._dont_release:
            delay = wait if self._release is None else self._release
            over_time.put_back(job, delay, f"limited to {', '.join(map(str, self.limits))}")
        return None

    def holding(self, job: JobDefinition) -> HeldBack | None:
        """Return why a job would not start now; charges nothing. Raises `BackendUnavailable`."""
        windows, paused = over_time.read_with_pauses(store_of(job), self._keyed(job))
        fullest = max(windows.values(), key=LimitWindow.wait)
        wait = fullest.wait()
        if paused > wait:
            return HeldBack("rate limit", f"the limit {fullest.limit} is paused", paused)
        return (
            HeldBack("rate limit", f"the limit {fullest.limit} is used up", wait) if wait else None
        )

    def pause(
        self,
        seconds: float | timedelta,
        job: JobDefinition | None = None,
        *,
        connection: str | None = None,
    ) -> None:
        """Hold back all jobs of this limit for `seconds` (or a timedelta), over all workers.

        They are released, or skipped, as when the limit is reached; running jobs go on. A longer
        pause stays.

        - `job`: the one whose limit is paused; default: the running one. Outside of a job only a
          limit with a `name` and without `by` needs none.
        - `connection`: the one whose workers are to wait; default: that of the job, which is its
          class's if it does not run, else the default one.

        With `by`, only jobs of the same value wait; of several limits, those that share one.

        Raises `BackendUnavailable`, `JobDefinitionError` for what is no time and without a job that
        is needed, and `SynchronousOnly` on a running event loop: await `apause` there.
        """
        refuse_on_loop("RateLimited.pause()", "apause()")
        self._pause(seconds, job, connection)

    async def apause(
        self,
        seconds: float | timedelta,
        job: JobDefinition | None = None,
        *,
        connection: str | None = None,
    ) -> None:
        """As `pause`, without blocking the event loop."""
        await asyncio.to_thread(self._pause, seconds, job, connection)

    def _pause(
        self, seconds: float | timedelta, job: JobDefinition | None, connection: str | None
    ) -> None:
        wait = over_time.seconds(seconds, "the pause of a limit")
        if job is None:
            job = _admitted.get()
            if job is not None and job._reserved is not current_job():  # noqa: SLF001 (`job.job` raises outside a worker)
                job = None
        limits = self._keyed_by_name() if job is None else self._keyed(job)
        over_time.pause(_store_of(job, connection), limits, wait)

    def _take(self, job: JobDefinition) -> float:
        """Charge all limits and return 0, or none and return the seconds to wait."""
        store, limits = store_of(job), self._keyed(job)
        for _ in over_time.rounds():
            windows, paused = over_time.read_with_pauses(store, limits)
            fullest = max(windows.values(), key=LimitWindow.wait)
            if wait := max(paused, fullest.wait()):
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
        return self._by_key(name, [over_time.value_of(by, job) for by in self._bys()])

    def _keyed_by_name(self) -> dict[str, Limit]:
        """As `_keyed`, if the keys are the same for all jobs."""
        if self._name is None or any(by is not None for by in self._bys()):
            what = "no name" if self._name is None else "`by`"
            raise JobDefinitionError(
                f"{self!r} has {what}: outside of its jobs, name one to pause its limit, "
                "pause(seconds, job)"
            )
        return self._by_key(over_time.in_key(self._name), [""] * len(self.limits))

    def _bys(self) -> list[By]:
        return [self._by if limit.by is None else limit.by for limit in self.limits]

    def _by_key(self, name: str, values: list[str]) -> dict[str, Limit]:
        return {
            f"limit:{name}:{place}:{limit.per:g}:{value}": limit
            for place, (limit, value) in enumerate(zip(self.limits, values, strict=True))
        }


def _store_of(job: JobDefinition | None, connection: str | None) -> Store:
    """Return the store in which the workers of a connection look for pauses."""
    reserved = None if job is None else job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    if connection is None and job is not None and reserved is None:
        connection = job.connection
    if connection is not None:
        return manager.default().connection(connection).store
    return store_beside(current_job() if reserved is None else reserved)
