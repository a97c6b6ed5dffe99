"""DatabaseStartInFlight: a start, and the deletion of the job before, sent without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qframe.contracts.step import APPLIED, LOST, Delete, Outcome, Result, Start, Step
from qframe.drivers.database.messages import DatabaseJob

OnResult = Callable[[list[Result]], None]


class DatabaseStartInFlight:
    """One start, maybe with the deletion of the job done before, until its answer.

    `again` applies steps and waits.
    """

    __slots__ = ("_again", "_on_result", "_steps", "done", "job", "start")

    def __init__(
        self, steps: Sequence[Step], again: Callable[..., list[Result]], on_result: OnResult
    ) -> None:
        self._steps = steps
        self._again = again
        self._on_result = on_result
        self.job, self.start = parts(steps[-1])
        self.done = parts(steps[0])[0] if len(steps) > 1 else None

    def on_reply(self, first: bool, second: bool) -> None:
        """Handle the answer: whether one job was deleted and one started."""
        results = []
        if self.done is not None:
            results.append(APPLIED if first else LOST)
            self.done.sure_until = 0.0  # deleted, or now another worker's
        if not second:
            self.job.sure_until = 0.0
        self._on_result([*results, APPLIED if second else LOST])

    def resend(self) -> None:
        """Send it again after a lost answer.

        If the finished job is gone, the first try deleted it.
        """
        results = self._again(*self._steps)
        self.on_reply(first=True, second=results[-1].outcome is Outcome.APPLIED)


def can_be_in_flight(steps: Sequence[Step]) -> bool:
    """Whether the steps are a start and at most a deletion, as for most jobs."""
    if not _is_one(steps[-1], Start):
        return False
    return len(steps) == 1 or (len(steps[:-1]) == 1 and _is_one(steps[0], Delete))


def _is_one(step: Step, kind: type) -> bool:
    operations = step.operations
    return len(operations) == 1 and type(operations[0]) is kind


def parts(step: Step) -> tuple[DatabaseJob, Any]:
    """Return the reservation and operation of such a step."""
    job = step.reservation
    assert isinstance(job, DatabaseJob), job  # noqa: S101 (a start of this backend's)
    return job, step.operations[0]
