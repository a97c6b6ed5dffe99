"""SlottedRunner: runs many jobs, each attempt in a slot, in threads or processes."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from qframe import events
from qframe.exceptions import BackendUnavailable, Interruption, JobTimedOut
from qframe.features.reserved import ReservedJob
from qframe.jobs import completing
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Begin, Need, Wait
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.runner import Runner

_AT_ONCE = 4
_AT_ONCE_IF_BRIEF = 25
_AT_ONCE_IF_CONFIRMED = 12
"""Jobs started in one request, without and with waiting for its reply.

The first run while the next are on their way. With 12, 50 slots do 4,100 jobs a second that sleep
for 10 ms, and with 4, 4,350; of jobs that are over at once they do a third more with 25.
"""


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
        self._at_once = _AT_ONCE_IF_CONFIRMED
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

    @property
    def must_outlast_jobs(self) -> bool:
        """Whether the worker waits for running jobs although the backend is away for long."""
        return False

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

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        if (slot := self.taken.get(job)) is not None:
            slot.end(error)

    def at_rest(self) -> None:
        """Nothing: the jobs have deadlines of their own."""

    def give_up_beside_stuck(self, seconds: float) -> None:
        """Settles jobs that keep a worker from ending which takes no more since `seconds`."""

    def collect(self) -> Iterator[Slot]:
        """Frees the slots of attempts that have ended."""
        while self.ended:
            slot = self.ended.popleft()
            self.leave(slot)
            yield slot

    # -- starting held jobs -----------------------------------------------------------------------

    def start_held(self, held: deque[ReservedJob], *, are_brief: bool) -> bool:
        """Starts held jobs in free slots with one request; returns whether there were any.

        What cannot be started yet stays in `held`, or returns to it.
        """
        starting = self._startable(held)
        if not starting:
            return False
        jobs = [slot.job for slot in starting]
        try:
            is_known = self.settler.start_all(jobs, wait=self._must_be_confirmed(starting))
        except BackendUnavailable:
            for job in reversed(jobs):
                if not (job.has_started() or job.is_settled):
                    self.let_go(job)
                    held.appendleft(job)
            raise
        unconfirmed = _AT_ONCE_IF_BRIEF if are_brief else _AT_ONCE
        self._at_once = _AT_ONCE_IF_CONFIRMED if is_known else unconfirmed
        refused = {job for job, _ in self.settler.refused}
        for job, result in reversed(self.settler.refused):
            self.was_refused(job, result)
            if not job.is_settled:
                held.appendleft(job)  # it tries another slot lease
        for job in jobs:
            if job.is_lost:
                self.let_go(job)
        self.take([each for each in starting if not (each.job.is_lost or each.job in refused)])
        return True

    def _startable(self, held: deque[ReservedJob]) -> list[Slot]:
        """Returns the held jobs there are slots for; settles those that must not run."""
        starting: list[Slot] = []
        while held and len(starting) < min(self._at_once, self.free):
            job = held.popleft()
            if events.JobPopped.listeners:
                self.tell_popped(job)
            slot = self.slot(job)
            try:
                starts = slot.is_startable()
                limits = self.limits_of(slot.attempt) if starts else ()
                if limits and not self.admits(slot.attempt, limits):
                    continue
            except BackendUnavailable:
                held.appendleft(job)
                for each in reversed(starting):
                    self.undo_admission(each.job)
                    held.appendleft(each.job)
                raise
            if starts:
                starting.append(slot)
            elif slot.need is not None:
                self.settle_unstarted(slot)
        return starting

    def _must_be_confirmed(self, starting: Sequence[Slot]) -> bool:
        """Whether the worker waits for the reply to these starts before the jobs run.

        One that takes a slot lease may be refused; one that completes in a transaction must be
        seen there.
        """
        waits, concurrency = completing.waits, self.concurrency
        attempts = [each.attempt for each in starting]
        seen = [each for each in attempts if waits.get(each.name, True) and self.sees_start(each)]
        return bool(seen) or (
            concurrency is not None
            and any(each.job in concurrency.slot_leases for each in attempts)
        )

    def undo_admission(self, job: ReservedJob) -> None:
        """Frees the slot lease of a job that will not be started after all."""
        if self.concurrency is not None:
            self.concurrency.slot_leases.undo(job)
