"""Jobs of a failover connection: one whose push was in doubt may have two messages.

The first message that starts is the job. The other one is deleted, and nothing else of the job is
touched (`drivers/failover/doubts.py`).
"""

from __future__ import annotations

import logging
from typing import ClassVar

from qframe.contracts.backend import Capability
from qframe.drivers.failover import doubts
from qframe.exceptions import BackendUnavailable
from qframe.features.base import Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob

log = logging.getLogger("qframe")


class FailoverFeature(Feature):
    """Notes the first start of a job, or finds that its other message has started."""

    key: ClassVar[str] = doubts.KEY
    waits: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Let a retried job run once more, be it by a message that its other connection has yet."""
        if job.retried and job.uuid:
            plan.add(*doubts.reopened(job.uuid))

    def is_second(self, job: ReservedJob) -> bool:
        """Whether the job's other message has started; if not, this one is the job from now on.

        If the store does not answer, the job starts: a failover is there to go on.
        """
        uuid = job.own_uuid
        has_started = job.attempts() and Capability.COUNTS in job.context.backend.capabilities
        if not uuid or has_started:
            return False
        here = getattr(job.reservation, "came_from", "") or job.connection_name
        try:
            return not doubts.may_start(job.context.backend, uuid, here)
        except BackendUnavailable as error:
            log.debug("%s starts, whether its push was in doubt or not: %s", uuid, error)
            return False

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip the second message of a job."""
        if not job.is_second():
            return None
        return "its push was in doubt and made again, and its other message has started"
