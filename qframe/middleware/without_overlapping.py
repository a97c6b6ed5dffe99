"""WithoutOverlapping: jobs with the same key run one after the other, on any workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from qframe.exceptions import InvalidJob, JobDefinitionError, QframeError
from qframe.middleware import limits
from qframe.middleware.base import store_of
from qframe.middleware.holding import HeldBack
from qframe.middleware.locks import Lock, age
from qframe.payload.timing import lasting

if TYPE_CHECKING:
    from qframe.contracts.job import Job
    from qframe.jobs.definition import JobDefinition

Key = str | int | UUID

_LONGEST_NAME = 200
"""Characters of a lock's name; databases store 255, and a longer name is hashed."""
_LEAST_LEASE = 1.0

_FIRST_DELAY = 0.1
_GROWTH = 1.5
_LONGEST_DELAY_OF_A_QUICK_KEY = 0.5
_LONGEST_DELAY = 10.0
"""The most seconds that a waiting job is released for, and at most the lock's age."""

_OVER = frozenset({"worker died", "timed out", "interrupted", "error"})
"""Ends of an attempt, in the history, after which its handler no longer runs.

A released one may.
"""


class WithoutOverlapping:
    """Runs one job with a key at a time; releases the others for a while, uncounted.

    - `key`: text, a number or a UUID, or a function of the job that returns one; default: one key
      for the whole class. Keys belong to a class, unless `shared` with all classes.
    - `release`: seconds or a timedelta until a waiting job is retried. Default: 0.1 s, growing by
      half with each release, up to the time for which the lock has been held so far (from 0.5 to 10
      s), so that a key with short jobs stays busy.
    - `dont_release`: skip a job that would have to wait.
    - `lease`: seconds after which the lock of a killed worker is free, at least 1; default 5. It is
      renewed every third of that while the job runs, however long.

    Waiting never uses up a try. Waiting jobs have no guaranteed order. If a job cannot be released
    (connection `sync`, `dispatch_sync`) it raises `LimitReached`. Raises `JobDefinitionError` for
    invalid arguments.
    """

    def __init__(
        self,
        key: Key | Callable[[Any], Key] | None = None,
        *,
        release: float | timedelta | None = None,
        dont_release: bool = False,
        shared: bool = False,
        lease: float = 5,
    ) -> None:
        if key is not None and not callable(key):
            _check_key(key, "WithoutOverlapping: the key must be", JobDefinitionError)
        if key is None and shared:
            raise JobDefinitionError("WithoutOverlapping: a shared lock needs a key")
        self.key = key
        self.release = limits.release_time("WithoutOverlapping", release, dont_release=dont_release)
        self.dont_release = dont_release
        self.shared = shared
        self.lease = limits.seconds(lease, "WithoutOverlapping: lease", _LEAST_LEASE)

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job under the lock, or release it."""
        reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
        owner = "" if reserved is None else f"{reserved.uuid}:{reserved.attempts()}"
        lock = Lock(store_of(job), self.name_for(job), owner, self.lease)
        try:
            if lock.take() or _inherits(lock, reserved):
                return call_next(job)
        finally:
            lock.release()
        if not self.dont_release:
            delay = _delay(job, lock.holder or "") if self.release is None else self.release
            limits.put_back(job, delay, f"another job holds the lock {lock.name}")
        return None

    def holding(self, job: JobDefinition) -> HeldBack | None:
        """Return which job has the lock of this one. Raises `BackendUnavailable`."""
        (holder,) = store_of(job).get(self.name_for(job))
        reserved = job._reserved  # noqa: SLF001 (as in `__call__`)
        if holder is None:
            return None
        uuid, _, number = holder.rpartition(":")[0].rpartition(":")
        if reserved is not None and uuid == reserved.uuid:
            return HeldBack(
                "lock", f"its own attempt {number} has the lock still", self.lease, uuid
            )
        return HeldBack(
            "lock", f"another job has had its lock for {lasting(age(holder))}", None, uuid
        )

    def name_for(self, job: JobDefinition) -> str:
        """Return the name of a job's lock in the store.

        The key of a job that is encrypted or has secrets is hashed. So is a shared key, which must
        be the same for all classes.
        """
        key = self.key(job) if callable(self.key) else self.key
        parts = [] if self.shared else [_name_of(type(job))]
        if self.key is not None:
            what = "the function given to WithoutOverlapping must give"
            _check_key(key, f"{type(job).__name__}: {what}", InvalidJob)
            hidden = self.shared or limits.hides(job)
            parts += ["", limits.hashed(str(key)) if hidden else str(key)]
        name = ":".join(["overlap", *parts])
        if len(name) > _LONGEST_NAME or not (name.isascii() and name.isprintable()):
            name = f"overlap:{limits.hashed(name)}"
        return name


def _delay(job: JobDefinition, holder: str) -> float:
    """Return the seconds until a job that finds the lock held is retried."""
    longest = min(_LONGEST_DELAY, max(_LONGEST_DELAY_OF_A_QUICK_KEY, age(holder)))
    delay = min(longest, _FIRST_DELAY * _GROWTH ** min(limits.releases_of(job), 30))
    return delay * random.uniform(0.5, 1)  # noqa: S311 (not a secret)


def _inherits(lock: Lock, reserved: Job | None) -> bool:
    """Take the lock over from an earlier attempt of the same job that has certainly ended.

    An attempt whose end nobody saw may still run: its lock must expire.
    """
    holder = lock.holder
    if not holder or reserved is None:
        return False
    uuid, _, number = holder.rpartition(":")[0].rpartition(":")
    if uuid != reserved.uuid or not number.isdecimal() or int(number) >= reserved.attempts():
        return False
    ended = {attempt.number: attempt.ended for attempt in reserved.history.attempts}
    return ended.get(int(number)) in _OVER and lock.take(instead_of=holder)


def _check_key(key: object, what: str, error: type[QframeError]) -> None:
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise error(f"{what} text, a number or a UUID, not {type(key).__name__}")


def _name_of(job_class: type[JobDefinition]) -> str:
    try:
        return job_class.wire_name()
    except InvalidJob:  # of a program without a file: it runs only here
        return job_class.own_name()
