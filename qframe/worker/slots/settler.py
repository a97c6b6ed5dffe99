"""SlotSettler: sends all that many jobs need to the backend in one request.

One thread sends. Jobs end on the event loop and in threads; they leave their ends here, and those
whose end may be refused wait for the reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from qframe.connection import Connection
from qframe.contracts.step import Outcome, Result
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.worker.settler import Ended, Settler, Started


class SlotSettler(Settler):
    """Starts and ends many jobs at once. Calls `wake` when one ends."""

    def __init__(
        self,
        connection: Connection,
        lost: Callable[[ReservedJob], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(connection, lost)
        self.refused: list[tuple[ReservedJob, Result]] = []
        """The starts that the backend refused in the last request, and their results."""
        self._left: deque[Ended] = deque()
        self._wake = wake

    def defer(self, job: ReservedJob, end: End, told: Callable[[bool], None] | None = None) -> None:
        """Ends a job with the next request, from any thread. Raises `SettleError`."""
        self._left.append(Ended(job, end, job.defer(end), told))
        self._wake()

    def defers(self, job: ReservedJob) -> bool:
        """Whether the end of a job is still to be sent; from any thread."""
        return job.is_deferred

    @property
    def has_ends(self) -> bool:
        return bool(self._left or self._ended)

    def start_all(self, held: Sequence[ReservedJob], *, wait: bool = False) -> bool:
        """Starts held jobs, some of which may be lost; returns whether that is known by now.

        If not, `hear` learns it while they run. With `wait`, some may be `refused`.
        """
        ended, self.refused = self._take(), []
        for job in held:
            self._unanswered[job] = Started(job, ended)
        starts = [self._unanswered[job].plan for job in held]
        steps = [*(each.plan for each in ended), *starts]

        def hear(results: Sequence[Result]) -> None:
            self._hear_ends(ended, results)
            for job, result in zip(held, results[len(ended) :], strict=True):
                self._hear_start(job, result)

        try:
            if wait:
                hear(self._backend.apply(*steps))
            else:
                self._backend.apply_async(steps, hear)
        except BackendUnavailable:
            for job in held:
                self._unanswered.pop(job, None)
            self._put_back(ended)
            raise
        return held[-1] not in self._unanswered

    def _hear_start(self, job: ReservedJob, result: Result) -> None:
        if result.outcome is Outcome.REFUSED and self._unanswered.pop(job, None) is not None:
            self.refused.append((job, result))
        else:
            super()._hear_start(job, result)

    def flush(self) -> None:
        """Sends what waits for the next request, and reads the replies."""
        super().flush()
        self.hear()

    def hear(self) -> None:
        """Reads pending replies, before the thread waits for something else."""
        self._backend.read_replies()
        self._settle_refused()

    def _forget_starts(self) -> None:
        for job in [job for job in self._unanswered if job.is_settled]:
            self._unanswered.pop(job, None)

    def _take(self) -> list[Ended]:
        while self._left:
            self._ended.append(self._left.popleft())
        return super()._take()
