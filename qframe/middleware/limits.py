"""Limits over time: a number of jobs in a number of seconds, and the windows that count them."""

from __future__ import annotations

import hashlib
import logging
import math
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Self

from qframe.contracts.step import Raise, Step
from qframe.drivers.store import Store
from qframe.exceptions import (
    BackendUnavailable,
    JobDefinitionError,
    LimitReached,
    QframeError,
    SettleError,
)
from qframe.jobs.definition import JobDefinition
from qframe.payload import timing
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

Value = str | int | uuid.UUID | Enum | tuple[Any, ...]
By = Value | Callable[[Any], Value | None] | None
"""What has its own count: None, a value, or a function of the job that returns a value."""

_SHORTEST = 0.01
_LARGEST = 10**9
_EXACT = 100
"""Up to this many, each moment is stored; for more, those of a hundredth of the period together."""
_ROUNDS = 8
_SKEW = 1000
"""Milliseconds by which two clocks may differ without a correction."""
_LONGEST_NAME = 100
_WIDE = 1 / 8
_WIDER = 1.25
_WIDEST = 60.0
"""A waiting job waits up to this fraction of one job's share longer, times this factor for each
release; and at most this many seconds, or the limit's.
"""

_TEXT = re.compile(
    r"\s*(\d{1,20})\s*/\s*(\d{1,20})?\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)\s*"
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Limit:
    """At most `max` (1 to a billion) within any `per` seconds (a number or a timedelta).

    `by` is a value, or a function of the job that returns one; each value has its own count.
    Default: one count for all jobs. Raises `JobDefinitionError`.
    """

    max: int
    per: float
    by: By = None

    def __init__(self, max: int, per: float | timedelta, by: By = None) -> None:  # noqa: A002 (the name a reader expects)
        if type(max) is not int or not 1 <= max <= _LARGEST:  # also refuses a bool
            raise JobDefinitionError(
                f"a limit must allow 1 to {_LARGEST:,} jobs, not {one_line(repr(max), 60)}"
            )
        object.__setattr__(self, "max", max)
        object.__setattr__(self, "per", seconds(per, "the time of a limit", _SHORTEST))
        if by is not None and not callable(by):
            _as_text(by)
        object.__setattr__(self, "by", by)

    @classmethod
    def parse(cls, text: str, by: By = None) -> Self:
        """Parse `10/minute`, `5/s`, `1000/day` or `100/15m`. Raises `JobDefinitionError`."""
        found = _TEXT.fullmatch(str(text).lower())
        if found is None:
            raise JobDefinitionError(
                f"{one_line(repr(text), 60)} is no limit: write 10/minute, 5/s, 1000/day or 100/15m"
            )
        return cls(int(found[1]), int(found[2] or 1) * _UNITS[found[3][0]], by)

    @classmethod
    def per_second(cls, max: int, by: By = None) -> Self:  # noqa: A002 (as above)
        """Allow `max` in any second."""
        return cls(max, 1, by)

    @classmethod
    def per_minute(cls, max: int, by: By = None) -> Self:  # noqa: A002 (as above)
        """Allow `max` in any 60 seconds."""
        return cls(max, 60, by)

    @classmethod
    def per_hour(cls, max: int, by: By = None) -> Self:  # noqa: A002 (as above)
        """Allow `max` in any 3600 seconds."""
        return cls(max, 3600, by)

    @classmethod
    def per_day(cls, max: int, by: By = None) -> Self:  # noqa: A002 (as above)
        """Allow `max` in any 24 hours."""
        return cls(max, 86400, by)

    def __str__(self) -> str:
        return f"{self.max} in {self.per:g} s"

    @property
    def grain(self) -> int:
        """Milliseconds whose moments are stored as one."""
        return 1 if self.max <= _EXACT else max(1, int(self.per * 10))


class LimitWindow:
    """The moments that count against a limit, oldest first.

    Stored as text: a first moment in milliseconds of the epoch, then the distance of each from the
    first, and its number. It never has many more than a hundred.
    """

    def __init__(self, limit: Limit, text: str | None, now: int) -> None:
        self.limit = limit
        self.before = text
        """The text in the store."""
        self._now = now
        self._per = int(limit.per * 1000)
        kept = _decoded(text)
        latest = now + limit.grain
        self.ahead = bool(kept) and kept[-1][0] > latest + _SKEW
        """Whether its writer's clock is ahead of this one, or this one was set back. Such moments
        count as now, so nobody waits longer than the limit's period."""
        self._kept = [
            (min(moment, latest), count) for moment, count in kept if moment + self._per > now
        ]

    @property
    def count(self) -> int:
        """The number of jobs."""
        return sum(count for _, count in self._kept)

    @property
    def last(self) -> int:
        """The last moment; 0 if there is none."""
        return self._kept[-1][0] if self._kept else 0

    def wait(self) -> float:
        """Return the seconds until there is room for one more; 0 if there is."""
        over = self.count - self.limit.max + 1
        for moment, count in self._kept if over > 0 else ():
            over -= count
            if over <= 0:
                return max(1, moment + self._per - self._now) / 1000
        return 0.0

    def add(self) -> None:
        """Count one more, and drop the oldest beyond the limit, which no longer matter.

        The moment is rounded up, so that none is dropped too early.
        """
        grain = self.limit.grain
        moment = -(-self._now // grain) * grain
        if self.last >= moment:
            last, count = self._kept.pop()
            self._kept.append((last, count + 1))
        else:
            self._kept.append((moment, 1))
        while self.count - self._kept[0][1] >= self.limit.max:
            del self._kept[0]

    def forget(self, until: int) -> None:
        """Drop the moments up to this one."""
        self._kept = [each for each in self._kept if each[0] > until]

    def text(self) -> str | None:
        """Encode for the store; None if there is nothing to store."""
        if not self._kept:
            return None
        first = self._kept[0][0]
        return " ".join([str(first), *(f"{at - first} {count}" for at, count in self._kept)])


def _decoded(text: str | None) -> list[tuple[int, int]]:
    try:
        first, *rest = map(int, (text or "").split())
    except ValueError:  # empty or invalid
        return []
    return [(first + at, count) for at, count in zip(rest[::2], rest[1::2], strict=False)]


def now() -> int:
    """Return the milliseconds of the epoch.

    Processes on several machines share the wall clock, and it survives restarts.
    """
    return int(time.time() * 1000)


def read(store: Store, limits: Mapping[str, Limit]) -> dict[str, LimitWindow]:
    """Return the windows of limits, by their keys in the store."""
    texts, moment = store.get(*limits), now()
    return {
        key: LimitWindow(limit, text, moment)
        for (key, limit), text in zip(limits.items(), texts, strict=True)
    }


def write(store: Store, windows: Mapping[str, LimitWindow]) -> bool:
    """Write changed windows if the store is unchanged: all of them or none."""
    limits = [window.limit for window in windows.values()]
    ttl = max(limit.per + limit.grain / 1000 for limit in limits) + 1
    return store.swap({key: (each.before, each.text()) for key, each in windows.items()}, ttl)


def read_with_pauses(
    store: Store, limits: Mapping[str, Limit]
) -> tuple[dict[str, LimitWindow], float]:
    """Return the windows as `read` does, and the seconds until no limit is paused."""
    texts, moment = store.get(*limits, *map(_pause_key, limits)), now()
    windows = {
        key: LimitWindow(limit, text, moment)
        for (key, limit), text in zip(limits.items(), texts, strict=False)
    }
    return windows, max(_left_of_pause(text, moment) for text in texts[len(limits) :])


def pause(store: Store, limits: Mapping[str, Limit], seconds: float) -> None:
    """Pause limits, by their keys in the store; a longer pause stays."""
    length = math.ceil(seconds * 1000)
    until = now() + length
    text = f"{until} {length}"
    pauses = [Raise(_pause_key(key), until, text, seconds + 1) for key in limits]
    store.backend.apply(Step(None, *pauses))


def _pause_key(key: str) -> str:
    return f"paused:{key}"


def _left_of_pause(text: str | None, moment: int) -> float:
    """Return the seconds left of a pause; never more than its length, whatever the clocks say."""
    try:
        until, length = map(int, (text or "").split())
    except ValueError:  # none, or invalid
        return 0.0
    return max(0, min(until - moment, length)) / 1000


def rounds() -> Iterator[None]:
    """Iterate over a few attempts at a contended write, with growing pauses."""
    for each in range(_ROUNDS):
        yield
        time.sleep(random.uniform(0, 0.002 * 2**each))  # noqa: S311 (not a secret)


# -- arguments of middleware ----------------------------------------------------------------------


def seconds(value: object, what: str, least: float = 0.0) -> float:
    """Check a time. Raises `JobDefinitionError`."""
    if isinstance(value, datetime):
        raise JobDefinitionError(f"{what} must be seconds or a timedelta, not a datetime")
    try:
        checked = timing.seconds_until(value, what)  # type: ignore[arg-type] # it looks itself
    except (TypeError, ValueError) as error:
        raise JobDefinitionError(str(error)) from None
    if checked < least:
        raise JobDefinitionError(f"{what} must be at least {least:g} s, not {checked:g}")
    return checked


def release_time(owner: str, release: object, *, dont_release: bool) -> float | None:
    """Check the `release` of a middleware; None if it was not set."""
    if release is not None and dont_release:
        raise JobDefinitionError(f"{owner}: give release or dont_release, not both")
    return None if release is None else seconds(release, f"{owner}: release")


def check_name(name: object, owner: str) -> None:
    """Raise `JobDefinitionError` for an invalid name of a limit."""
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise JobDefinitionError(f"{owner}: name must be a text, not {one_line(repr(name), 60)}")
    if isinstance(name, str) and re.search("[\x00\ud800-\udfff]", name):
        raise JobDefinitionError(
            f"{owner}: name must have no NUL and no lone surrogate: {one_line(repr(name), 60)}"
        )


def name_of(name: str | None, job: JobDefinition) -> str:
    """Return the name in the key: by default the job's class."""
    return in_key(name or type(job).own_name())


def in_key(name: str) -> str:
    """Return a name as it is in keys: long ones are hashed."""
    return name if len(name) <= _LONGEST_NAME else hashed(name)[:32]


def value_of(by: By, job: JobDefinition) -> str:
    """Return the `by` value of a job as text; "" if there is none."""
    value = by(job) if callable(by) else by
    if value is None:
        return ""
    text = _as_text(value)
    readable = not hides(job) and re.fullmatch(r"[a-z0-9_.@-]{1,64}", text)
    return text if readable else hashed(text)[:32]


def hides(job: JobDefinition) -> bool:
    """Whether no value of a job may be readable in a store."""
    return type(job).encrypted or bool(type(job).secret_fields)


def _as_text(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str | int | uuid.UUID):
        return str(value)
    if isinstance(value, tuple):
        return repr([_as_text(each) for each in value])
    raise JobDefinitionError(
        "by must be, or give, a text, a whole number, a UUID or a tuple of them, not "
        f"{one_line(repr(value), 60)}"
    )


def hashed(text: str) -> str:
    """Return the digest of a text: 64 characters."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- waiting jobs ---------------------------------------------------------------------------------


def put_back(job: JobDefinition, delay: float, why: str) -> None:
    """Release a job, uncounted. Raises `LimitReached` if it cannot wait."""
    try:
        job.release(delay)
    except (SettleError, BackendUnavailable):
        raise
    except QframeError:
        raise LimitReached(
            f"{type(job).__name__} cannot run for another {delay:.3g} s ({why}), and a job that "
            "runs in its caller's process cannot wait",
            delay,
        ) from None
    log.debug("%s %s waits %.3g s: %s", type(job).__name__, job.job.uuid, delay, why)


def spread(job: JobDefinition, limit: Limit) -> float:
    """Return random additional seconds to wait, so that waiting jobs do not return all at once.

    They grow by up to a quarter with each earlier release: a job that waited long is one of many,
    and the more there are, the further apart they should return.
    """
    width: float = limit.per / limit.max * _WIDE * _WIDER ** min(releases_of(job), 60)
    return random.uniform(0, min(width, max(limit.per, _WIDEST)))  # noqa: S311 (not a secret)


def releases_of(job: JobDefinition) -> int:
    """Return how often a job was released before."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    return 0 if reserved is None else reserved.history.releases
