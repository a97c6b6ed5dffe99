"""Debounced jobs: each dispatch waits for a later one of the same job, which replaces it.

A fact has the uuid of the last dispatch; earlier ones are skipped when they come up.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from qframe.contracts.step import Expect, Outcome, Push, Result, Set
from qframe.drivers.claims import is_unproven
from qframe.exceptions import QframeError
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope

log = logging.getLogger("qframe")

_UNTIL_NAMED = 1.0
"""Seconds that a job without a delay is delayed if the fact that names it is written later."""


class DebounceFeature(Feature):
    """Records the last dispatch in the step that pushes it, and skips the others."""

    key: ClassVar[str] = "debounce"
    waits: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Replace earlier dispatches; a retry by hand only does so if none is later."""
        named = _named(job.message)
        if named is None:
            return
        key, seconds = named
        if job.retried:
            (last,) = context.backend.read(key)
            holds = last if last == job.uuid else None
            plan.add(*context.claim(key, job.uuid, seconds, holds))
            return
        if context.in_parts and not job.delay:
            # A worker could reserve it before the fact names it, and would skip it.
            plan.operations = [
                replace(each, delay=max(each.delay, _UNTIL_NAMED))
                if type(each) is Push and each.raw is job.raw
                else each
                for each in plan.operations
            ]
        plan.add(context.once_pushed(Set(key, job.uuid, seconds + job.delay)))

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        named = _named(job.message)
        return () if named is None else named[:1]

    def holder(self, job: Pushing, refused: Result) -> str | None:
        named = _named(job.message)
        is_ours = named is not None and refused.key == named[0]
        return refused.holds if is_ours and refused.outcome is Outcome.REFUSED else None

    def skip_reason(self, job: ReservedJob) -> str | None:
        named = _named(job.payload)
        if named is None:
            return None
        try:
            (last,) = job.context.backend.read(named[0])
        except QframeError as error:
            log.warning("%s is run: nobody knows of a later dispatch: %s", job.name, error)
            return None
        if last is None or last == job.own_uuid or is_unproven(last):
            return None
        return "debounced: a later dispatch took its place"

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Keep that no dispatch is later while the job is set aside."""
        named = _named(job.payload) if end.set_aside else None
        if named is None:
            return
        key, seconds = named
        (last,) = job.context.backend.read(key)
        if last == job.own_uuid:
            plan.add(Expect(key, last), Set(key, last, seconds + end.delay))


def _named(message: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the key of the last dispatch, and the seconds that it is kept."""
    given = message.get("debounce")
    if not isinstance(given, dict):
        return None
    key, seconds = envelope.text(given, "key"), envelope.number(given, "for")
    if key is None or not key.startswith("debounce:"):
        return None
    return (key, seconds) if seconds and seconds > 0 else None
