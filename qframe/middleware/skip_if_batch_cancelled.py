"""SkipIfBatchCancelled: what has not begun of a cancelled batch is not run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qframe import membership
from qframe.batch import batch_of
from qframe.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from qframe.queueable import Queueable

log = logging.getLogger("qframe")


class SkipIfBatchCancelled:
    """Skips a member of a batch that is cancelled; the batch counts it as done.

    What runs goes on: it may ask `self.batch()`. A member that has failed, one of the thousand
    first, and is queued again is run, since somebody wanted that. So are jobs that are no members
    of a batch, what follows one among them, and those whose batch is gone.

    While the backend does not answer, members are run, with a warning in the log.
    """

    def __call__(self, job: Queueable, call_next: Callable[[Queueable], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Call on, or do not."""
        return None if _is_unwanted(job) else call_next(job)


def _is_unwanted(job: Queueable) -> bool:
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    if reserved is None or membership.member_of(reserved.payload) is None:
        return False
    try:
        batch = batch_of(job)
        if batch is None or not batch.is_cancelled:
            return False
        return not batch.has_failures or reserved.uuid not in batch.failed_jobs
    except BackendUnavailable as error:
        log.warning("%s is run: is its batch cancelled? %s", reserved.name, error)
        return False
