"""What a worker of many jobs says to its backend: all that has come up, in one exchange.

One thread says it. Jobs end on the loop and in threads of their own; they leave the end here, and
those whose end may be refused wait to hear of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from qframe.connection import Connection
from qframe.contracts.step import Outcome
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.worker.exchange import Ended, Exchange


class SlotExchange(Exchange):
    """Starts jobs and ends those that are done, many at once. `wake` is called when one ends."""

    def __init__(
        self,
        connection: Connection,
        lost: Callable[[ReservedJob], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(connection, lost)
        self._left: deque[Ended] = deque()
        self._wake = wake

    def defer(self, job: ReservedJob, end: End, told: Callable[[bool], None] | None = None) -> None:
        """End a job with the next exchange, from any thread; raises `SettleError`."""
        self._left.append(Ended(job, end, job.defer(end), told))
        self._wake()

    def defers(self, job: ReservedJob) -> bool:
        """Whether the end of a job has not been said so far; from any thread."""
        return job.is_deferred

    @property
    def has_ends(self) -> bool:
        """Whether there is something to be said."""
        return bool(self._left or self._ended)

    def start_all(
        self, held: Sequence[ReservedJob], queues: Sequence[str], limit: int
    ) -> list[ReservedJob]:
        """Start held jobs, some of which may be found lost, and hold up to `limit` more."""
        ended = self._take()
        plans = [job.start_plan() for job in held]
        steps = [*(each.plan for each in ended), *plans]
        try:
            if limit > 0 and queues:
                found, results = self._connection.reserve_after(steps, queues, limit)
            else:
                found, results = [], self._backend.apply(*steps) if steps else []
        except BackendUnavailable:
            self._put_back(ended)
            raise
        self._hear_ends(ended, results)
        for job, plan, result in zip(held, plans, results[len(ended) :], strict=True):
            if result.outcome is Outcome.APPLIED:
                plan.applied()
            elif not job.is_settled:
                job.mark_lost()
        self._settle_refused()
        return found

    def _take(self) -> list[Ended]:
        while self._left:
            self._ended.append(self._left.popleft())
        return super()._take()
