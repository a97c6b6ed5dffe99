"""What a worker of many jobs runs them in, wherever they run: slots, each taken by one attempt."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from qframe.exceptions import JobTimedOut
from qframe.features.reserved import ReservedJob
from qframe.worker.outcome import Verdict
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.runner import Attempt, Runner
from qframe.worker.slots.exchange import SlotExchange


class SlottedAttempt(Attempt):
    """One reserved job among several, in a slot from its start until it has ended."""

    slot = 0
    seconds = 0.0
    """How long it took."""
    is_left = False
    """Whether its handler does not end, and the worker has settled the job without it."""

    def refused(self) -> Verdict | None:
        """Say what is to become of a job that is not to be started; None where it is."""
        return self._unread() or self._refused()


class SlottedRunner(Runner):
    """Runs jobs in slots. `take` puts them into one each; `ended` have come to their ends."""

    attempt: ClassVar[type[SlottedAttempt]]
    exchange: SlotExchange
    stuck: JobTimedOut | None = None
    """What a job was to end by that did not, where the worker is to end for that."""
    left = 0
    """How many slots are taken by handlers whose jobs were settled without them."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 (those of `Runner`)
        scoreboard: WorkerScore | None = None,
        **more: Any,  # noqa: ANN401 (as above)
    ) -> None:
        super().__init__(*arguments, scoreboard=scoreboard, **more)
        self.slots = self.options.concurrency
        """How many jobs may run at once."""
        self.ended: deque[SlottedAttempt] = deque()
        self._scoreboard = scoreboard
        self._taken = 0
        self._numbers = 0
        self._left_numbers: list[int] = []
        """The numbers of slots that were taken before: a heap."""

    @property
    def free(self) -> int:
        """How many slots are free."""
        return max(0, self.slots - self._taken)

    @property
    def busy(self) -> int:
        """How many slots are taken; more than there are while they become fewer."""
        return self._taken

    def scale(self, slots: int) -> None:
        """Have so many slots; what runs goes on. Raises `OSError` where there is no room."""
        if self._scoreboard is not None:
            self._scoreboard.grow(slots)
        self.slots = slots

    @abstractmethod
    def take(self, attempts: Sequence[Any]) -> None:
        """Run jobs that were started, in slots that are free."""

    @abstractmethod
    def settle(self, attempt: Any, verdict: Verdict) -> None:  # noqa: ANN401 (of its own kind)
        """Carry out what is to become of a job that is not started; its hooks may take long."""

    def enter(self, attempt: SlottedAttempt) -> None:
        """Let an attempt have a slot: the first that is free."""
        if not self._left_numbers:
            heapq.heappush(self._left_numbers, self._numbers)
            self._numbers += 1
        self._taken += 1
        attempt.slot = heapq.heappop(self._left_numbers)
        if self.scores:
            attempt.scoreboard = self.scores[attempt.slot]

    def enter_started(self, attempts: Sequence[SlottedAttempt]) -> None:
        """Let jobs have slots that were started, and are about to run."""
        for attempt in attempts:
            self.enter(attempt)
            if attempt.scoreboard is not None:
                attempt.scoreboard.started(attempt.job.reservation.fence, attempt.permits)
            self.running[attempt.job] = attempt
            self.leases.keep(attempt.job, 0)

    def leave(self, attempt: SlottedAttempt) -> None:
        """Free the slot of an attempt that has ended."""
        if not attempt.is_left:
            self._taken -= 1
            heapq.heappush(self._left_numbers, attempt.slot)

    def has_room(self, attempt: SlottedAttempt) -> bool:
        """Whether a held job may be started beside others; else it is given back to wait."""
        bounds = self.bounds_of(attempt)
        return not bounds or self.admits(attempt, bounds)

    def take_permits(self, jobs: Sequence[ReservedJob]) -> bool:
        """Whether one of these jobs takes a permit as it is started, which may be refused."""
        return self.bounds is not None and any(job in self.bounds.permits for job in jobs)

    def unsaid(self, job: ReservedJob) -> None:
        """Hear that a job for which there was room is not started now."""
        if self.bounds is not None:
            self.bounds.permits.undo(job)

    def at_rest(self) -> None:
        """Nothing is to be done: the jobs have deadlines of their own."""
