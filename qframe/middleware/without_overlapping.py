"""WithoutOverlapping: jobs with the same key run one after the other, on whatever workers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from qframe.exceptions import InvalidJob, JobDefinitionError, QframeError
from qframe.middleware.limits import put_back
from qframe.middleware.locks import Lock, age
from qframe.middleware.stores import store_of
from qframe.payload import timing

if TYPE_CHECKING:
    from qframe.contracts.job import Job
    from qframe.jobs.definition import JobDefinition

Key = str | int | UUID

_LONGEST_NAME = 200
"""Characters of a lock's name; a database keeps 255, and a longer one is hashed."""
_LEAST_LEASE = 1.0

_FIRST_DELAY = 0.1
_GROWTH = 1.5
_LONGEST_DELAY_OF_A_QUICK_KEY = 0.5
_LONGEST_DELAY = 10.0
"""Seconds a waiting job is released for; no longer than the lock has been held so far."""

_OVER = frozenset({"worker died", "timed out", "interrupted", "error"})
"""Ends of an attempt, in the history, by which its handler runs no more; a released one may."""


class WithoutOverlapping:
    """Lets one job with a key run at a time; the others are released for a while, uncounted.

    ```python
    class Import(Queueable):
        account: int

        def middleware(self):
            return [WithoutOverlapping(self.account)]
    ```

    - `key`: text, a number or a UUID, or a function of the job that gives one; default: one key
      for the whole class. It is the class's own unless it is `shared` with all classes.
    - `release`: seconds or a timedelta until a job that has to wait is tried again. By default
      0.1 s, growing by half with each release to the time for which the lock has been held so far,
      from 0.5 to 10 s: so a key with short jobs is kept busy.
    - `dont_release`: do not run a job that would have to wait; it ends as skipped.
    - `lease`: seconds after which the lock of a killed worker is free, at least 1; default 5. It is
      renewed every third of that while the job runs, however long.

    Waiting never uses up a try. Who comes next among those that wait is not promised.
    Where a job cannot be released (connection `sync`, `dispatch_sync`) `LimitReached` is raised.
    Raises `JobDefinitionError` for what fits none of this.
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
        if not (key is None or callable(key) or _is_key(key)):
            raise JobDefinitionError(
                f"WithoutOverlapping: the key must be text, a number or a UUID, or a function of "
                f"the job that gives one, not {type(key).__name__}"
            )
        if key is None and shared:
            raise JobDefinitionError("WithoutOverlapping: a shared lock needs a key")
        if release is not None and dont_release:
            raise JobDefinitionError("WithoutOverlapping: give release or dont_release, not both")
        self.key = key
        self.release = None if release is None else _seconds(release, "release")
        self.dont_release = dont_release
        self.shared = shared
        self.lease = _seconds(lease, "lease")
        if self.lease < _LEAST_LEASE:
            raise JobDefinitionError(
                f"WithoutOverlapping: lease must be at least 1 second, got {lease}"
            )

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job under the lock, or put it off."""
        reserved = _reserved(job)
        owner = "" if reserved is None else f"{reserved.uuid}:{reserved.attempts()}"
        lock = Lock(store_of(job), self.name_for(job), owner, self.lease)
        try:
            if lock.take() or _inherits(lock, reserved):
                return call_next(job)
        finally:
            lock.release()
        if not self.dont_release:
            delay = self._delay(reserved, lock.holder or "")
            put_back(job, delay, f"another job holds the lock {lock.name}")
        return None

    def _delay(self, reserved: Job | None, holder: str) -> float:
        """Give the seconds until the job is tried again."""
        if self.release is not None:
            return self.release
        longest = min(_LONGEST_DELAY, max(_LONGEST_DELAY_OF_A_QUICK_KEY, age(holder)))
        releases = 0 if reserved is None else reserved.history.releases
        delay = min(longest, _FIRST_DELAY * _GROWTH ** min(releases, 30))
        return delay * random.uniform(0.5, 1)  # noqa: S311 (no secret)

    def name_for(self, job: JobDefinition) -> str:
        """Give the name of a job's lock in the store.

        The key of a job that is encrypted or has secrets is hashed, and so is a shared one: it has
        to be the same for all classes that share it.
        """
        key = self.key(job) if callable(self.key) else self.key
        if self.key is not None and not _is_key(key):
            raise InvalidJob(
                f"{type(job).__name__}: the function given to WithoutOverlapping must give text, "
                f"a number or a UUID, not {type(key).__name__}"
            )
        parts = [] if self.shared else [_name_of(type(job))]
        text = str(key)
        if self.shared or type(job).encrypted or type(job).secret_fields:
            text = _hashed(text)
        name = ":".join(["overlap", *parts, *([] if key is None else ["", text])])
        if len(name) > _LONGEST_NAME or not (name.isascii() and name.isprintable()):
            name = f"overlap:{_hashed(name)}"
        return name


def _inherits(lock: Lock, reserved: Job | None) -> bool:
    """Take the lock over from an earlier attempt of the same job that is known to have ended.

    One whose end nobody saw may be running still: its lock has to run out.
    """
    holder = lock.holder
    if not holder or reserved is None:
        return False
    uuid, _, number = holder.rpartition(":")[0].rpartition(":")
    if uuid != reserved.uuid or not number.isdecimal() or int(number) >= reserved.attempts():
        return False
    ended = {attempt.number: attempt.ended for attempt in reserved.history.attempts}
    return ended.get(int(number)) in _OVER and lock.take(instead_of=holder)


def _reserved(job: JobDefinition) -> Job | None:
    try:
        return job.job
    except QframeError:  # it is called by hand
        return None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _is_key(value: object) -> bool:
    return isinstance(value, str | int | UUID) and not isinstance(value, bool)


def _name_of(job_class: type[JobDefinition]) -> str:
    try:
        return job_class.wire_name()
    except InvalidJob:  # of a program without a file: it runs only here
        return job_class.own_name()


def _seconds(value: object, what: str) -> float:
    try:
        return timing.seconds_until(value, what)  # type: ignore[arg-type] # it looks itself
    except (TypeError, ValueError) as error:
        raise JobDefinitionError(f"WithoutOverlapping: {error}") from None
