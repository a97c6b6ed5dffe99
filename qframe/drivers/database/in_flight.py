"""DatabaseStartInFlight: a start, and the deletion of the job before, sent without waiting."""

from __future__ import annotations

from collections.abc import Callable

from qframe.contracts.step import APPLIED, LOST, Outcome, Result
from qframe.drivers.database.messages import DatabaseJob

OnResult = Callable[[list[Result]], None]
Again = Callable[[], list[Result]]


class DatabaseStartInFlight:
    """One start, maybe with the deletion of the job done before, until its answer.

    `again` applies the steps and waits.
    """

    __slots__ = ("_again", "_done", "_job", "_on_result")

    def __init__(
        self, done: DatabaseJob | None, job: DatabaseJob, again: Again, on_result: OnResult
    ) -> None:
        self._done = done
        self._job = job
        self._again = again
        self._on_result = on_result

    def on_reply(self, first: bool, second: bool) -> None:
        """Handle the answer: whether one job was deleted and one started."""
        results = []
        if self._done is not None:
            results.append(APPLIED if first else LOST)
            self._done.sure_until = 0.0  # deleted, or now another worker's
        if not second:
            self._job.sure_until = 0.0
        self._on_result([*results, APPLIED if second else LOST])

    def resend(self) -> None:
        """Send it again after a lost answer.

        If the finished job is gone, the first try deleted it.
        """
        results = self._again()
        self.on_reply(first=True, second=results[-1].outcome is Outcome.APPLIED)
