"""Unique jobs: while one waits or runs, another dispatch of the same job pushes nothing.

A lock is a fact with the uuid of the job that has it. The payload says its key, how long it lasts,
and until when in the job's life: its final end, or its first start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qframe.contracts.step import Expect, Operation, Outcome, Result, Set, Unset
from qframe.drivers.claims import is_unproven, is_void, unproven
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope


@dataclass(slots=True)
class UniqueLock:
    key: str
    uuid: str
    seconds: float
    until: str
    kept_until: float = 0.0
    """When to extend it next, by the local clock."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> UniqueLock | None:
        """Read it; None if the payload has no lock, or an invalid one."""
        given = message.get("unique")
        uuid = envelope.uuid(message)
        if not isinstance(given, dict) or uuid is None:
            return None
        key, until = envelope.text(given, "key"), envelope.text(given, "until")
        seconds = envelope.number(given, "for")
        if key is None or until is None or not key.startswith("unique:"):
            return None
        if is_unproven(uuid):
            return None
        if until not in {"handled", "started"} or not seconds or seconds < 0:
            return None
        return cls(key, uuid, seconds, until)


class UniqueFeature(Feature):
    """Takes the lock in the step that pushes the job, and frees it in the step that ends it."""

    key: ClassVar[str] = "unique"

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Take the lock; the step is refused if another job has it."""
        lock = UniqueLock.of(job.message)
        if lock is None:
            return
        holds = None
        if job.retried or job.follows:  # it may be its own, or that of the link before it
            (holder,) = context.backend.read(lock.key)
            holds = holder if holder in {lock.uuid, job.follows} else None
        plan.add(*context.claim(lock.key, lock.uuid, lock.seconds + job.delay, holds))

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        lock = UniqueLock.of(job.message)
        return () if lock is None else context.kept_claim(lock.key, lock.uuid, lock.seconds)

    def holder(self, job: Pushing, refused: Result) -> str | None:
        """Return the uuid of the job that has the lock."""
        lock = UniqueLock.of(job.message)
        if lock is None or refused.outcome is not Outcome.REFUSED or refused.key != lock.key:
            return None
        return refused.holds

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip the job if its push broke off and another job took its place."""
        lock = _lock(job)
        if lock is None or not job.context.in_parts or job.attempts():
            return None
        if is_void(job.context.backend, lock.key, lock.uuid, lock.seconds):
            return "never dispatched: its push was broken off, and its lock is free"
        return None

    def start(self, job: ReservedJob, plan: Plan) -> None:
        lock = _lock(job)
        if lock is not None and lock.until == "started":
            plan.add(Unset(lock.key, lock.uuid))

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        lock = _lock(job)
        if lock is not None and end.state.is_final:
            plan.add(Unset(lock.key, lock.uuid))
            if job.context.in_parts and not job.reservation.started:
                plan.add(Unset(lock.key, unproven(lock.uuid)))
        elif lock is not None and end.set_aside:
            (holder,) = job.context.backend.read(lock.key)
            if holder == lock.uuid:
                seconds = lock.seconds + end.delay
                plan.add(Expect(lock.key, lock.uuid), Set(lock.key, lock.uuid, seconds))
        elif lock is not None and end.suspended and lock.until == "handled":
            (holder,) = job.context.backend.read(lock.key)
            if holder == lock.uuid:
                plan.add(Set(lock.key, lock.uuid, lock.seconds + end.delay))

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Extend the lock of a running job."""
        lock, now = _lock(job), time.monotonic()
        if lock is None or lock.until != "handled" or now < lock.kept_until:
            return ()
        lock.kept_until = now + lock.seconds / 3
        return Expect(lock.key, lock.uuid), Set(lock.key, lock.uuid, lock.seconds)


def _lock(job: ReservedJob) -> UniqueLock | None:
    return job.read_once(UniqueFeature.key, lambda: UniqueLock.of(job.payload))
