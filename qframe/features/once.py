"""Jobs with an idempotency key: for some time, another dispatch with the key pushes nothing.

A key is a fact with the uuid of the job that was dispatched first. Nothing but time removes it: it
outlives its job. The payload says the key, and for how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qframe.contracts.step import Outcome, Result, Unset
from qframe.drivers.claims import is_unproven, is_void, unproven, was_withdrawn
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.jobs.uniqueness import ONCE
from qframe.payload import envelope

_PREFIX = f"{ONCE}:"


@dataclass(slots=True)
class OnceKey:
    key: str
    uuid: str
    seconds: float

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> OnceKey | None:
        """Read it; None if the payload has no key, or an invalid one."""
        given = message.get(ONCE)
        uuid = envelope.uuid(message)
        if not isinstance(given, dict) or uuid is None or is_unproven(uuid):
            return None
        key, seconds = envelope.text(given, "key"), envelope.number(given, "for")
        if key is None or not is_once(key) or not seconds or seconds < 0:
            return None
        return cls(key, uuid, seconds)


def is_once(key: str) -> bool:
    """Whether a fact is the idempotency key of a job."""
    return key.startswith(_PREFIX)


class OnceFeature(Feature):
    """Takes the key in the step that pushes the job; a retry by hand needs none."""

    key: ClassVar[str] = ONCE

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Take the key; the step is refused if another job has it."""
        once = OnceKey.of(job.message)
        if once is None or job.retried:
            return
        holds = None
        if job.follows:  # the end of the link before it may be repeated
            (holder,) = context.backend.read(once.key)
            holds = holder if holder == once.uuid else None
        plan.add(*context.claim(once.key, once.uuid, once.seconds, holds))

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        once = OnceKey.of(job.message)
        return () if once is None else context.kept_claim(once.key, once.uuid, once.seconds)

    def holder(self, job: Pushing, refused: Result) -> str | None:
        """Return the uuid of the job that has the key."""
        once = OnceKey.of(job.message)
        if once is None or refused.outcome is not Outcome.REFUSED or refused.key != once.key:
            return None
        return refused.holds

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip the job if its push broke off and another job took its place."""
        once = _once(job)
        if once is None or not job.context.in_parts or job.attempts():
            return None
        if is_void(job.context.backend, once.key, once.uuid, once.seconds):
            return "never dispatched: its push was broken off, and its key is free"
        return None

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Free the key of a job that never was dispatched: another of its claims was withdrawn."""
        once = _once(job)
        if once is None or not job.context.in_parts or job.reservation.started:
            return
        if end.state.is_final and was_withdrawn(job.context.backend, once.uuid):
            plan.add(Unset(once.key, once.uuid), Unset(once.key, unproven(once.uuid)))


def _once(job: ReservedJob) -> OnceKey | None:
    return job.read_once(OnceFeature.key, lambda: OnceKey.of(job.payload))
