"""What a worker of many jobs runs them in, wherever they run: slots, each taken by one attempt."""

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
from qframe.worker.slots.exchange import SlotExchange


class Slot:
    """One attempt among several, in a slot from its start until it has ended."""

    number = 0
    seconds = 0.0
    """How long it took."""
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
        """Go on to the start of its life; false where it has none, and is to be settled perhaps."""
        self.need = next(self.life, None)
        while isinstance(self.need, Wait):
            self.runner.pause(self.need.seconds)
            self.need = next(self.life, None)
        return isinstance(self.need, Begin)

    @abstractmethod
    def end(self, error: Interruption) -> None:
        """End the handler, if it still runs."""


class SlottedRunner(Runner):
    """Runs jobs in slots. `take` puts them into one each; `ended` have come to their ends."""

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
        self.taken: dict[ReservedJob, Slot] = {}
        self.ended: deque[Slot] = deque()
        self._scoreboard = scoreboard
        self._numbers = 0
        self._left_numbers: list[int] = []
        """The numbers of slots that were taken before: a heap."""

    def _exchange(self) -> SlotExchange:
        return SlotExchange(self.connection, self._ran_twice, self.wake)

    def wake(self) -> None:
        """Wake the thread that takes jobs, where it is another."""

    @property
    def free(self) -> int:
        """How many slots are free."""
        return max(0, self.slots - len(self.taken))

    @property
    def busy(self) -> int:
        """How many slots are taken; more than there are while they become fewer."""
        return len(self.taken)

    def scale(self, slots: int) -> None:
        """Have so many slots; what runs goes on. Raises `OSError` where there is no room."""
        if self._scoreboard is not None:
            self._scoreboard.grow(slots)
        self.slots = slots

    @abstractmethod
    def slot(self, job: ReservedJob) -> Slot:
        """Give a job what it runs in, if it is to run."""

    @abstractmethod
    def take(self, slots: Sequence[Any]) -> None:
        """Run jobs that were started, in slots that are free."""

    @abstractmethod
    def settle_unstarted(self, slot: Any) -> None:  # noqa: ANN401 (of its own kind)
        """Bring a job that is not started to its end; its hooks may take long."""

    def enter(self, slot: Slot) -> None:
        """Take a slot: the first that is free."""
        if not self._left_numbers:
            heapq.heappush(self._left_numbers, self._numbers)
            self._numbers += 1
        self.taken[slot.job] = slot
        slot.number = heapq.heappop(self._left_numbers)
        if self.scores:
            slot.attempt.scoreboard = self.scores[slot.number]

    def enter_started(self, slots: Sequence[Slot]) -> None:
        """Take slots for jobs that were started, and are about to run."""
        for slot in slots:
            self.enter(slot)
            attempt = slot.attempt
            if attempt.scoreboard is not None:
                attempt.scoreboard.started(attempt.job.reservation.fence, attempt.permits)
            self.running[attempt.job] = attempt
            self.leases.keep(attempt.job, 0)

    def leave(self, slot: Slot) -> None:
        """Free a slot whose attempt has ended."""
        if not slot.is_left:
            self.taken.pop(slot.job, None)
            heapq.heappush(self._left_numbers, slot.number)

    def has_room(self, attempt: Attempt) -> bool:
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

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        if (slot := self.taken.get(job)) is not None:
            slot.end(error)

    def at_rest(self) -> None:
        """Nothing is to be done: the jobs have deadlines of their own."""
