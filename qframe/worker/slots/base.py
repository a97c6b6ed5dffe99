"""SlottedRunner: runs many jobs, each attempt in a slot, in threads or processes."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from qframe.exceptions import Interruption, JobTimedOut
from qframe.features.reserved import ReservedJob
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Begin, Need, Wait
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.runner import Runner


class Slot:
    """One attempt among several, in a slot from its start until it has ended."""

    number = 0
    seconds = 0.0
    is_left = False
    """Whether its handler does not end, and the worker has settled the job without it."""
    need: Need | None = None
    """What its life waits for."""

    def __init__(self, runner: SlottedRunner, job: ReservedJob) -> None:
        self.runner = runner
        self.job = job
        self.attempt = Attempt(runner, job)
        self.life = self.attempt.life()

    def is_startable(self) -> bool:
        """Advances its life to the start; false if it has none, and is perhaps to be settled."""
        self.need = next(self.life, None)
        while isinstance(self.need, Wait):
            self.runner.pause(self.need.seconds)
            self.need = next(self.life, None)
        return isinstance(self.need, Begin)

    @abstractmethod
    def end(self, error: Interruption) -> None:
        """Ends the handler, if it still runs."""


class SlottedRunner(Runner):
    """Runs jobs in slots. `take` puts each into one; `ended` are those that have ended."""

    stuck: JobTimedOut | None = None
    """The timeout of a job that does not end, if the worker is to end for that."""
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
        self.taken: dict[ReservedJob, Slot] = {}
        self.ended: deque[Slot] = deque()
        self._scoreboard = scoreboard
        self._numbers = 0
        self._left_numbers: list[int] = []
        """The numbers of slots that were freed: a heap."""

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.taken))

    @property
    def busy(self) -> int:
        """How many slots are taken; more than there are while they become fewer."""
        return len(self.taken)

    def scale(self, slots: int) -> None:
        """Sets the number of slots; running jobs go on. Raises `OSError` if there is no room."""
        if self._scoreboard is not None:
            self._scoreboard.grow(slots)
        self.slots = slots

    @abstractmethod
    def slot(self, job: ReservedJob) -> Slot:
        """Makes the slot of a job."""

    @abstractmethod
    def take(self, slots: Sequence[Any]) -> None:
        """Runs jobs that were started, in free slots."""

    @abstractmethod
    def settle_unstarted(self, slot: Any) -> None:  # noqa: ANN401 (of its own kind)
        """Ends a job that is not started; its hooks may take long."""

    def enter(self, slot: Slot) -> None:
        if not self._left_numbers:
            heapq.heappush(self._left_numbers, self._numbers)
            self._numbers += 1
        self.taken[slot.job] = slot
        slot.number = heapq.heappop(self._left_numbers)
        if self.scores:
            slot.attempt.scoreboard = self.scores[slot.number]

    def enter_started(self, slots: Sequence[Slot]) -> None:
        """Takes slots for jobs that were started, and are about to run."""
        for slot in slots:
            self.enter(slot)
            attempt = slot.attempt
            if attempt.scoreboard is not None:
                attempt.scoreboard.started(attempt.job.reservation.fence, attempt.slot_leases)
            self.running[attempt.job] = attempt
            self.leases.keep(attempt.job, 0)

    def leave(self, slot: Slot) -> None:
        if not slot.is_left:
            self.taken.pop(slot.job, None)
            heapq.heappush(self._left_numbers, slot.number)

    def has_room(self, attempt: Attempt) -> bool:
        """Whether a held job may start beside others; otherwise gives it back to wait."""
        limits = self.limits_of(attempt)
        return not limits or self.admits(attempt, limits)

    def take_permits(self, jobs: Sequence[ReservedJob]) -> bool:
        """Whether the start of one of these jobs takes a slot lease, and so may be refused."""
        return self.concurrency is not None and any(
            job in self.concurrency.slot_leases for job in jobs
        )

    def unsaid(self, job: ReservedJob) -> None:
        """Undoes `has_room`: the job will not be started after all."""
        if self.concurrency is not None:
            self.concurrency.slot_leases.undo(job)

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        if (slot := self.taken.get(job)) is not None:
            slot.end(error)

    def at_rest(self) -> None:
        """Nothing: the jobs have deadlines of their own."""
