"""Skip, SkipIfBatchCancelled: jobs that are skipped by a condition at their start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from qframe.exceptions import BackendUnavailable
from qframe.features.batch import BatchMember
from qframe.features.batches import BatchStore

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition

log = logging.getLogger("qframe")


class Skip:
    """Skips a job: `Skip.when(condition)`, `Skip.unless(condition)`.

    The condition is a value, or a function that is called with the job at each attempt; its
    exception is the attempt's error.
    """

    def __init__(self, condition: object, *, wanted: bool) -> None:
        self._condition = condition
        self._wanted = wanted

    @classmethod
    def when(cls, condition: bool | Callable[[Any], object]) -> Self:
        """Skip the job if the condition is true."""
        return cls(condition, wanted=True)

    @classmethod
    def unless(cls, condition: bool | Callable[[Any], object]) -> Self:
        """Skip the job unless the condition is true."""
        return cls(condition, wanted=False)

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Run the job or skip it."""
        found = self._condition(job) if callable(self._condition) else self._condition
        return None if bool(found) is self._wanted else call_next(job)


class SkipIfBatchCancelled:
    """Skips a member of a cancelled batch; the batch counts it as done.

    A running job continues; it may check `self.batch()`. It runs a failed member (one of the first
    thousand) that somebody queues again, jobs outside of a batch, callbacks of a batch, and jobs
    whose batch is gone.

    If the backend does not answer, it runs members, with a warning in the log.
    """

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Run the job or skip it."""
        return None if _is_unwanted(job) else call_next(job)


def _is_unwanted(job: JobDefinition) -> bool:
    reserved: Any = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    member = None if reserved is None else BatchMember.of(reserved.payload)
    if member is None:
        return False
    batches = BatchStore(reserved.context)
    try:
        batch = batches.read(member.batch)
        if batch is None or batch.cancelled_at is None:
            return False
        return not batch.failed or reserved.uuid not in batches.failures(member.batch)
    except BackendUnavailable as error:
        log.warning("%s is run: is its batch cancelled? %s", reserved.name, error)
        return False
