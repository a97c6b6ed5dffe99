"""Debounced jobs: each dispatch waits for a later one of the same job, which takes its place.

A fact names the last dispatch by its uuid; an earlier one that comes up is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from qframe.contracts.step import Set
from qframe.exceptions import QframeError
from qframe.features.base import Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope

log = logging.getLogger("qframe")


class DebounceFeature(Feature):
    """Names the last dispatch in the step that pushes it, and skips the others."""

    key: ClassVar[str] = "debounce"
    waits: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Take the place of the dispatches before, also for a failed job retried by hand."""
        named = _named(job.message)
        if named is not None:
            key, seconds = named
            plan.add(Set(key, job.uuid, seconds + job.delay))

    def needless(self, job: ReservedJob) -> str | None:
        """Say that a later dispatch has taken the job's place."""
        named = _named(job.payload)
        if named is None:
            return None
        try:
            (last,) = job.context.backend.read(named[0])
        except QframeError as error:
            log.warning("%s is run: nobody knows of a later dispatch: %s", job.name, error)
            return None
        if last is None or last == job.own_uuid:
            return None
        return "debounced: a later dispatch took its place"


def _named(message: Mapping[str, Any]) -> tuple[str, float] | None:
    """Give the fact that names the last dispatch, and the seconds it is kept."""
    said = message.get("debounce")
    if not isinstance(said, dict):
        return None
    key, seconds = envelope.text(said, "key"), envelope.number(said, "for")
    if key is None or not key.startswith("debounce:"):
        return None
    return (key, seconds) if seconds and seconds > 0 else None
