"""Failures: failed jobs as people see them: by cause, one by one, or chosen by a filter."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from qframe import forks
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.failed.causes import Failures, cause_of, count_in, in_order
from qframe.failed.filters import Filter, tags_of
from qframe.operations.arguments import arguments_in
from qframe.payload import tracebacks
from qframe.payload.timing import iso

_PAGE = 500
_PART = 100
"""So many are read at once: other threads wait for the interpreter meanwhile."""
MOST = 500_000
"""So many of the latest failed jobs of a store are counted by cause."""
NEW = 86400.0
"""Seconds for which a cause is new after it was first seen."""
LOOKED_AT = 2000
"""So many failed jobs are examined for one page of filtered ones."""


class FailedState(BaseModel):
    """One failed job, without its payload."""

    uuid: str
    connection: str
    queue: str
    job: str
    attempts: int
    failed_at: str
    error: str
    cause: str
    tags: list[str]
    arguments: str = ""
    """Its data in one line, shortened; secrets are stars."""

    @classmethod
    def of(cls, record: FailedJob) -> FailedState:
        return cls(
            uuid=record.uuid,
            connection=record.connection,
            queue=record.queue,
            job=record.name,
            attempts=record.attempts,
            failed_at=iso(record.failed_at),
            error=tracebacks.brief_of(record.exception, 1000),
            cause=cause_of(record).key,
            tags=tags_of(record),
            arguments=arguments_in(record.payload),
        )


class CauseState(BaseModel):
    """One cause of failures."""

    cause: str
    count: int
    job: str
    error: str
    place: str
    first_at: str
    last_at: str
    example: str
    last_24_h: list[int]
    is_new: bool
    """Whether it was first seen within the last day."""
    silenced: bool = False

    @classmethod
    def of(cls, failures: Failures, now: float, seen: Mapping[str, float]) -> CauseState:
        """Returns a cause's state; `seen`: when retried causes were first seen."""
        first = min(failures.first, seen.get(failures.cause.key, failures.first))
        return cls(
            cause=failures.cause.key,
            count=failures.count,
            job=failures.cause.job,
            error=failures.cause.error,
            place=failures.cause.place,
            first_at=iso(first),
            last_at=iso(failures.last),
            example=failures.example,
            last_24_h=failures.hours(now),
            is_new=first > now - NEW,
        )

    def and_also(self, other: CauseState) -> CauseState:
        """Returns this cause together with the same cause in another store."""
        later = max(self, other, key=lambda each: each.last_at)
        return later.model_copy(
            update={
                "count": self.count + other.count,
                "first_at": min(self.first_at, other.first_at),
                "last_24_h": [*map(sum, zip(self.last_24_h, other.last_24_h, strict=True))],
                "is_new": self.is_new and other.is_new,
            }
        )


class IndexedFailure(NamedTuple):
    """What the index keeps of a failed job."""

    cause: str
    failed_at: float


class _Pass:
    """One reading of a store, latest first."""

    def __init__(self) -> None:
        self.jobs: dict[str, IndexedFailure] = {}
        self.causes: dict[str, Failures] = {}
        self.after: str | None = None
        self.is_over = False

    def add(self, record: FailedJob) -> None:
        if record.uuid not in self.jobs:
            cause = count_in(self.causes, record)
            self.jobs[record.uuid] = IndexedFailure(cause.key, record.failed_at)

    def has(self, record: FailedJob) -> bool:
        kept = self.jobs.get(record.uuid)
        return kept is not None and kept.failed_at == record.failed_at

    def remove(self, uuid: str) -> None:
        kept = self.jobs.pop(uuid, None)
        if kept is not None:
            failures = self.causes[kept.cause]
            failures.remove(kept.failed_at)
            if not failures.count:
                del self.causes[kept.cause]


class FailureIndex:
    """The cause of each failed job of a store, kept in memory. Thread-safe.

    `refresh` reads the store in steps, for the given time; what was not read so far is not counted
    yet. Each refresh finds additions of others; when something was removed elsewhere, the store is
    read again from the beginning, and what was known is shown until that is over.
    """

    def __init__(self, store: FailedStore, most: int = MOST) -> None:
        self.store = store
        self.total = 0
        """How many failed jobs there are."""
        self._most = most
        self._shown = self._reading = _Pass()
        self._lock = forks.lock()

    @property
    def counted(self) -> int:
        """How many of them are counted by cause."""
        return len(self._shown.jobs)

    def uuids(self) -> list[str]:
        """Returns the ids of those that were read so far."""
        return [*self._shown.jobs]

    @property
    def is_complete(self) -> bool:
        """Whether all are read, or as many as are counted at most."""
        return self._shown.is_over

    def refresh(self, seconds: float = 0.1) -> None:
        """Reads on for so long, one part at least. Raises `BackendUnavailable`."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self.total = self.store.count()
            if self._reading.is_over and not self._follows():
                self._reading = _Pass()
            while not self._reading.is_over:
                self._read_on()
                if time.monotonic() >= deadline:
                    break

    def read_on(self) -> None:
        """Reads the next part, unless all is read. Raises `BackendUnavailable`."""
        with self._lock:
            if not self._reading.is_over:
                self._read_on()

    def _follows(self) -> bool:
        """Adds what is new; returns whether nothing else has changed."""
        reading, new = self._reading, list[FailedJob]()
        after = None
        while page := self.store.page(_PAGE if after else 20, after):
            for record in page:
                if reading.has(record):
                    break
                new.append(record)
            else:
                if len(new) > _PAGE:
                    return False
                after = page[-1].uuid
                continue
            break
        for record in new:
            reading.remove(record.uuid)  # it had failed before
            reading.add(record)
        known = len(reading.jobs)
        return known == self.total or known >= self._most <= self.total

    def _read_on(self) -> None:
        reading = self._reading
        page = self.store.page(_PART, reading.after)
        for record in page:
            reading.add(record)
        gone = not page and reading.after is not None and self.store.find(reading.after) is None
        if page:
            reading.after = page[-1].uuid
        elif gone:  # the record to read on from is gone: begin again, skipping known ones
            reading.after = None
        if (len(page) < _PART and not gone) or len(reading.jobs) >= self._most:
            reading.is_over = True
            self._shown = reading

    def causes(self) -> list[Failures]:
        """Returns the causes, the most frequent first."""
        with self._lock:
            return in_order(self._shown.causes.values())

    def of_cause(self, key: str) -> list[str]:
        """Returns the uuids of the jobs that have a cause, latest first."""
        with self._lock:
            found = [
                (kept.failed_at, uuid)
                for uuid, kept in self._shown.jobs.items()
                if kept.cause == key
            ]
        return [uuid for _, uuid in sorted(found, reverse=True)]

    def forget(self, uuid: str) -> None:
        """Removes what this program has removed from the store."""
        with self._lock:
            for each in {self._shown, self._reading}:
                each.remove(uuid)


class Listing(NamedTuple):
    """A page of failed jobs."""

    found: list[FailedJob]
    after: str
    """Where the next page begins; "" if there is none."""
    looked_at: int


def listing(
    index: FailureIndex,
    chosen: Filter,
    after: str = "",
    limit: int = 50,
    seconds: float = math.inf,
) -> Listing:
    """Lists failed jobs of a store that a filter chooses, latest first, page by page.

    A page examines so many at most, or for about so many seconds: it may have fewer than `limit`
    although others follow.
    """
    store, ends = index.store, time.monotonic() + seconds
    if chosen.cause is not None and index.is_complete:
        return _of_cause(index, chosen, chosen.cause, after, limit, ends)
    found: list[FailedJob] = []
    looked_at, at = 0, after or None
    while looked_at < LOOKED_AT:
        page = store.page(min(200, LOOKED_AT), at, chosen.queue)
        for record in page:
            looked_at += 1
            at = record.uuid
            if chosen.fits(record):
                found.append(record)
                if len(found) == limit:
                    return Listing(found, record.uuid, looked_at)
        if len(page) < min(200, LOOKED_AT):
            return Listing(found, "", looked_at)
        if time.monotonic() >= ends:
            break
    return Listing(found, at or "", looked_at)


def _of_cause(
    index: FailureIndex, chosen: Filter, key: str, after: str, limit: int, ends: float
) -> Listing:
    uuids = index.of_cause(key)
    first = uuids.index(after) + 1 if after in uuids else 0
    found: list[FailedJob] = []
    looked_at = 0
    for uuid in uuids[first : first + LOOKED_AT]:
        looked_at += 1
        record = index.store.find(uuid)
        if record is not None and chosen.fits(record):
            found.append(record)
        if len(found) == limit or time.monotonic() >= ends:
            break
    upto = first + looked_at
    return Listing(found, uuids[upto - 1] if upto < len(uuids) else "", looked_at)


def kept_in(
    stores: Sequence[FailedStore], chosen: Filter
) -> Iterator[tuple[FailedStore, FailedJob]]:
    """Yields those a filter chooses even if some are removed meanwhile."""
    return read_again((store, record.uuid) for store, record in chosen_in(stores, chosen))


def chosen_in(
    stores: Sequence[FailedStore], chosen: Filter
) -> Iterator[tuple[FailedStore, FailedJob]]:
    """Yields those a filter chooses."""
    for store in stores:
        for record in store.all(chosen.queue):
            if chosen.fits(record):
                yield store, record


def read_again(
    found: Iterable[tuple[FailedStore, str]],
) -> Iterator[tuple[FailedStore, FailedJob]]:
    """Yields those of some failed jobs that still exist; finds all before it yields the first."""
    for store, uuid in [*found]:
        record = store.find(uuid)
        if record is not None:
            yield store, record
