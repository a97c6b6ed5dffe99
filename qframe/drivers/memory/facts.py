"""What is under keys: facts, latches and failed records."""

from __future__ import annotations

import math
from typing import NamedTuple

from qframe.contracts.backend import Latch
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import (
    Add,
    Arrive,
    Close,
    Expect,
    Extend,
    Forget,
    OfFact,
    OfFailed,
    OfLatch,
    Open,
    Outcome,
    Push,
    Raise,
    Record,
    Result,
    Set,
    Unset,
)

OfKey = OfFact | OfLatch | OfFailed


class _Fact(NamedTuple):
    value: str
    until: float
    rank: int = 0


class _Latch:
    """The members that have arrived, and what is pushed then."""

    def __init__(self, operation: Open, now: float) -> None:
        self.opened = operation
        self.size = 0
        self.done: set[int] = set()
        self.failed: dict[int, str] = {}
        self.closed = False
        self.first_failed: int | None = None
        self.failed_at: float | None = None
        self.completed_at: float | None = None
        self.until = now + operation.ttl

    @property
    def is_complete(self) -> bool:
        return self.closed and len(self.done) + len(self.failed) >= self.size

    def change(self, operation: Extend | Arrive | Close, now: float) -> bool:
        """Do one operation; says whether `then` is due."""
        self.until = now + self.opened.ttl
        due = False
        match operation:
            case Extend(_, size):
                self.size = max(self.size, size)
                return False
            case Close():
                self.closed = True
            case Arrive(_, member, failed, label):
                if not 0 <= member < self.size:
                    return False
                due = self._fail(member, label, now) if failed else self._finish(member)
        if self.is_complete and self.completed_at is None:
            self.completed_at = now
        return due or self.is_complete

    def seen(self, labels: int) -> Latch:
        return Latch(
            self.size, len(self.done), len(self.failed), self.closed,
            self.first_failed, self.failed_at, self.completed_at,
            tuple(self.failed[number] for number in sorted(self.failed)[:labels]),
        )  # fmt: skip

    def _finish(self, member: int) -> bool:
        self.failed.pop(member, None)
        self.done.add(member)
        return self.opened.every > 0 and len(self.done) % self.opened.every == 0

    def _fail(self, member: int, label: str, now: float) -> bool:
        if member in self.done:
            return False
        self.failed.setdefault(member, label)
        if self.first_failed is None:
            self.first_failed, self.failed_at = member, now
        return self.first_failed == member


class Facts:
    """Everything under keys; `now` is the clock of the backend that asks."""

    def __init__(self) -> None:
        self._facts: dict[str, _Fact] = {}
        self._latches: dict[str, _Latch] = {}
        self._failed: dict[str, FailedJob] = {}

    def refused(self, operation: OfKey, now: float) -> Result | None:
        """Say that something is not as an operation expects it."""
        match operation:
            case Expect(key, value):
                holds = self.value(key, now)
                return None if holds == value else Result(Outcome.REFUSED, key, holds)
            case Extend(key):
                latch = self._latch(key, now)
                return Result(Outcome.REFUSED, key) if not latch or latch.is_complete else None
            case Forget(uuid) if uuid not in self._failed:
                return Result(Outcome.REFUSED, uuid)
        return None

    def do(self, operation: OfKey, now: float) -> Push | None:
        """Do one operation; gives the message of a latch that is due."""
        match operation:
            case Set() | Unset() | Raise() | Add():
                self._write(operation, now)
            case Record(record):
                self._failed.pop(record.uuid, None)
                self._failed[record.uuid] = record
            case Forget(uuid):
                self._failed.pop(uuid, None)
            case Open(key):
                if self._latch(key, now) is None:
                    self._latches[key] = _Latch(operation, now)
            case Extend(key) | Arrive(key) | Close(key):
                latch = self._latch(key, now)
                if latch is not None and latch.change(operation, now):
                    return latch.opened.then
        return None

    def _write(self, operation: Set | Unset | Raise | Add, now: float) -> None:
        key = operation.key
        holds = self.value(key, now)
        match operation:
            case Set(_, value, ttl):
                self._facts[key] = _Fact(value, _end(ttl, now))
            case Unset(_, value):
                if value is None or holds == value:
                    self._facts.pop(key, None)
            case Raise(_, rank, value, ttl):
                if holds is None or self._facts[key].rank <= rank:
                    self._facts[key] = _Fact(value, now + ttl, rank)
            case Add(_, number, ttl):
                self._facts[key] = _Fact(str(int(holds or 0) + number), _end(ttl, now))

    def value(self, key: str, now: float) -> str | None:
        """Give what a key holds."""
        fact = self._facts.get(key)
        if fact is not None and fact.until <= now:
            del self._facts[key]
            return None
        return None if fact is None else fact.value

    def _latch(self, key: str, now: float) -> _Latch | None:
        latch = self._latches.get(key)
        if latch is not None and latch.until <= now:
            del self._latches[key]
            return None
        return latch

    def scan(self, prefix: str, limit: int, after: str, now: float) -> list[tuple[str, str]]:
        """List facts by key."""
        keys = sorted(key for key in self._facts if key.startswith(prefix) and key > after)
        found = ((key, self.value(key, now)) for key in keys)
        return [(key, value) for key, value in found if value is not None][:limit]

    def latch(self, key: str, labels: int, now: float) -> Latch | None:
        """Give a latch as it stands."""
        latch = self._latch(key, now)
        return None if latch is None else latch.seen(labels)

    def find_failed(self, uuid: str) -> FailedJob | None:
        """Give a failed job."""
        return self._failed.get(uuid)

    def list_failed(self, limit: int, after: str | None, queue: str | None) -> list[FailedJob]:
        """List failed jobs, the latest first."""
        records = list(reversed(self._failed.values()))
        if after is not None:
            uuids = [record.uuid for record in records]
            records = records[uuids.index(after) + 1 :] if after in uuids else []
        return [record for record in records if queue in {None, record.queue}][:limit]

    def count_failed(self) -> int:
        """Count failed jobs."""
        return len(self._failed)


def _end(ttl: float | None, now: float) -> float:
    return math.inf if ttl is None else now + ttl
