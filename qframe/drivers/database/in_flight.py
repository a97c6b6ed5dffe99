"""DatabaseStartInFlight: a start, and the deletion of the job before, sent without waiting."""

from __future__ import annotations

from collections.abc import Callable

from qframe.contracts.step import APPLIED, LOST, UNKNOWN, Result
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

    def on_reply(self, deleted: bool, started: bool) -> None:
        """Handle the answer: whether one job was deleted and one started."""
        results = [] if self._done is None else [APPLIED if deleted else LOST]
        self._conclude([*results, APPLIED if started else LOST])

    def resend(self) -> None:
        """Send it again after a lost answer; the first request may have deleted the job."""
        results = self._again()
        if self._done is not None and results[0].lost:
            results[0] = UNKNOWN
        self._conclude(results)

    def _conclude(self, results: list[Result]) -> None:
        if self._done is not None:
            self._done.sure_until = 0.0  # deleted, or now another worker's
        if not results[-1].applied:
            self._job.sure_until = 0.0
        self._on_result(results)
