"""Scheduled jobs: the payload has the schedule and planned time, and the end is recorded.

Where steps are not atomic, a run's message may have been pushed twice, each time with another
number. The first that is taken claims the run, so the other message is skipped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import ClassVar

from qframe.contracts.step import Expect, Operation, Raise, Set, Step, Unset
from qframe.exceptions import QframeError
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope, tracebacks
from qframe.payload.scheduled import SCHEDULE, NamedRun, named_run
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

_KEPT = 400 * 86400.0
_CLAIMED = 7 * 86400.0
_SECOND = "another message of the same planned time is run"


class ScheduledFeature(Feature):
    """Claims the one message of a run, records how it ended, and lets the next one run."""

    key: ClassVar[str] = SCHEDULE
    waits: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Let a failed job that is retried by hand be another message of its run."""
        run = named_run(job.message)
        if run is not None and run.claims and job.retried:
            plan.add(Unset(run.claim_key(job.uuid)))

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        run, uuid = named_run(job.message), envelope.uuid(job.message)
        if run is None or uuid is None or not run.lock:
            return ()
        return (run.lock_key,) if context.backend.read(run.lock_key) == [uuid] else ()

    def is_second(self, job: ReservedJob) -> bool:
        """Claim the run for this message, unless another one has done so."""
        run = _run(job)
        if run is None or not run.claims or not job.own_uuid:
            return False
        key, own = run.claim_key(job.own_uuid), run.claim(job.id)
        try:
            step = Step(None, Expect(key, None), Set(key, own, _CLAIMED))
            (result,) = job.context.backend.apply(step)
        except QframeError as error:
            log.warning("%s is run: nobody knows of another message: %s", job.name, error)
            return False
        return not result.applied and not run.is_claim(result.holds)

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip the message of a run that another message has claimed."""
        return _SECOND if job.is_second() else None

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Record how the run ended, and free its lock, at a final end."""
        run = _run(job)
        if run is None or not end.state.is_final:
            return
        if end.is_repeated:
            return
        if run.lock:
            plan.add(Unset(run.lock_key, job.own_uuid))
        fields = {"number": run.number, "state": end.state.value, "at": round(time.time(), 3)}
        if end.error is not None or end.remark:
            fields["error"] = _words(end)
        plan.add(Raise(run.end_key, run.number, json.dumps(fields, ensure_ascii=False), _KEPT))

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Extend the lock of a run in progress."""
        run, now = _run(job), time.monotonic()
        if run is None or not run.lock or now < run.kept_until:
            return ()
        run.kept_until = now + run.lock / 3
        uuid = job.own_uuid
        return Expect(run.lock_key, uuid), Set(run.lock_key, uuid, run.lock)


def _words(end: End) -> str:
    error = end.error
    if isinstance(error, BaseException):
        return tracebacks.brief(error, 160)
    return one_line(error or end.remark, 160)


def _run(job: ReservedJob) -> NamedRun | None:
    return job.read_once(SCHEDULE, lambda: named_run(job.payload))
