"""Exchange: what a worker says to its backend between two jobs, in as few exchanges as may be.

The deletion of a job that is done waits for the start of the next, or for the next reservation, and
both are one exchange. Where it is certain that the leases are ours, nobody waits for its answer:
the handler runs meanwhile. That is one round trip, some 50 to 100 us, saved on each short job.

The end of a link of a chain may be refused. It waits for the next reservation, too; before a start
somebody waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.step import APPLIED, Outcome, Result
from qframe.exceptions import BackendUnavailable, JobAlreadySettled, SettleError
from qframe.features.base import End, Plan
from qframe.features.reserved import ReservedJob


class Ended:
    """A job that is done, and the plan of the step that says so."""

    said = 0
    """How often it was said; each time but one it finds the job gone."""
    missed = 0
    """How often it has found it gone."""
    in_doubt = False
    """Whether it may have been applied, unheard."""
    heard = False

    def __init__(
        self, job: ReservedJob, end: End, plan: Plan, told: Callable[[bool], None] | None = None
    ) -> None:
        self.job = job
        self.end = end
        self.plan = plan
        self.told = told
        """Hears whether it was still ours; None: the job counts as done already."""


class Started:
    """A start, with the ends that travel with it."""

    __slots__ = ("ended", "job", "plan")

    def __init__(self, job: ReservedJob, ended: list[Ended]) -> None:
        self.job = job
        self.ended = ended
        self.plan = job.start_plan()

    def steps(self) -> list[Plan]:
        """Give all that is said with it, the start last."""
        steps = [each.plan for each in self.ended]
        steps.append(self.plan)
        return steps


class Exchange:
    """Starts jobs and ends those that are done. `lost` hears of one that was done and runs twice.

    All is called by the thread that runs the jobs, but `confirm`.
    """

    def __init__(self, connection: Connection, lost: Callable[[ReservedJob], None]) -> None:
        self._connection = connection
        self._backend = connection.backend
        self.reserve_after = connection.reserve_after
        """Applies steps, then holds jobs; where queues have bounds, no more than may run."""
        self._lost = lost
        self._ended: list[Ended] = []
        self._refused: list[Ended] = []
        """Those to be settled anew: something had changed when their steps came."""
        self._unanswered: dict[ReservedJob, Started] = {}
        self._hearing = forks.lock()

    def defer(self, job: ReservedJob, end: End) -> None:
        """End a job with the next exchange; raises `SettleError` or `BackendUnavailable`."""
        self._ended.append(Ended(job, end, job.defer(end)))

    def give_back(self, job: ReservedJob, end: End) -> None:
        """Release a job that is only held with the next exchange; raises `SettleError`.

        Before what was said so far: of several that go to the front, the first is to be the first.
        """
        self._ended.insert(0, Ended(job, end, job.defer(end), _unheard))

    def defers(self, job: ReservedJob) -> bool:
        """Whether the end of a job is still to be said."""
        return any(each.job is job for each in self._ended)

    def start(self, job: ReservedJob) -> bool:
        """Start a held job; false where it is no longer ours.

        Its answer may come later, while the job runs: then a loss is found by whatever is next.
        """
        for each in self._ended:
            if each.plan.waited_for:
                self.flush()
                break
        ended = self._take()
        started = self._unanswered[job] = Started(job, ended)
        try:
            self._backend.tell(started.steps(), partial(self._hear, started))
        except BackendUnavailable:
            self._unanswered.pop(job, None)
            self._put_back(ended)
            raise
        if 0 < job.reservation.sure_until <= self._backend.clock():  # 0: it never knows how long
            self._make_sure(job)
        return not job.is_lost

    def start_now(self, job: ReservedJob) -> Result:
        """Start a held job and wait for the answer: it may be refused."""
        ended, plan = self._take(), job.start_plan()
        try:
            results = self._backend.apply(*(each.plan for each in ended), plan)
        except BackendUnavailable:
            self._put_back(ended)
            raise
        self._hear_ends(ended, results)
        result = results[-1]
        if result.applied:
            plan.applied()
            if 0 < job.reservation.sure_until <= self._backend.clock():
                self._make_sure(job)
        elif result.lost and not job.is_settled:
            job.mark_lost()
        self._settle_refused()
        return result

    def _make_sure(self, job: ReservedJob) -> None:
        """Find out whether a job is still ours: this process stood still while it was started."""
        self._backend.hear()
        if not job.is_lost and job.reservation.sure_until <= self._backend.clock():
            with suppress(SettleError):
                job.renew()

    def reserve(self, queues: Sequence[str], limit: int) -> list[ReservedJob]:
        """Hold up to `limit` jobs."""
        ended = self._take()
        first = [each.plan for each in ended]
        try:
            jobs, results = self.reserve_after(first, queues, limit)
        except BackendUnavailable:
            self._put_back(ended)
            raise
        self._hear_ends(ended, results)
        self._forget_starts()
        self._settle_refused()
        return jobs

    def flush(self) -> None:
        """Say now what waits for the next exchange."""
        ended = self._take()
        if ended:
            try:
                results = self._backend.apply(*(each.plan for each in ended))
            except BackendUnavailable:
                self._put_back(ended)
                raise
            self._hear_ends(ended, results)
        self._settle_refused()

    def _settle_refused(self) -> None:
        while self._refused:
            each = self._refused[-1]
            ours = True
            try:
                each.job.settle(each.end)
            except SettleError:
                ours = each.in_doubt
            self._refused.pop()
            self._tell(each, ours=ours)

    def confirm(self, job: ReservedJob) -> bool:
        """Say a start again that was not answered; from another thread, so by another connection.

        It counts once, and renews the lease. False where there is nothing to say. Raises
        `LeaseLost` where the job is not ours.
        """
        started = self._unanswered.get(job)
        if started is None:
            return False
        for each in started.ended:
            each.said += 1
        try:
            results = job.say(*started.steps())
        except JobAlreadySettled:
            for each in started.ended:
                each.said -= 1
            raise
        except (BackendUnavailable, SettleError):
            for each in started.ended:
                each.in_doubt = True
            raise
        self._hear(started, results)
        return True

    # -- what is heard ----------------------------------------------------------------------------

    def _take(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        for each in ended:
            each.said += 1
            each.job.saying()
        return ended

    def _put_back(self, ended: list[Ended]) -> None:
        """Say these again with the next exchange: nobody knows whether they were heard."""
        for each in ended:
            each.in_doubt = True
        self._ended = ended + self._ended

    def _hear(self, started: Started, results: Sequence[Result]) -> None:
        if started.ended:
            self._hear_ends(started.ended, results)
        self._hear_start(started.job, results[-1])

    def _hear_start(self, job: ReservedJob, result: Result) -> None:
        started = self._unanswered.pop(job, None)
        if started is None:
            return  # it was said twice, and the other answer came first
        if result.outcome is Outcome.APPLIED:
            started.plan.applied()
        elif not job.is_settled:
            job.mark_lost()

    def _forget_starts(self) -> None:
        """Forget what was not heard by now: it never will be."""
        self._unanswered.clear()

    def _hear_ends(self, ended: Sequence[Ended], results: Sequence[Result]) -> None:
        """Hear what became of them; the result of a start may come behind."""
        for each, result in zip(ended, results, strict=False):
            lost = result.outcome is Outcome.LOST
            with self._hearing:
                each.missed += lost
                if each.heard or (lost and each.missed < each.said and not each.in_doubt):
                    continue  # the other answer says, or has said, what came of it
                each.heard = True
            if not each.job.heard(each.plan, APPLIED if lost and each.in_doubt else result):
                self._tell(each, ours=False)
            elif not each.job.is_settled:
                self._refused.append(each)
            elif each.told is not None:
                each.told(True)

    def _tell(self, each: Ended, *, ours: bool) -> None:
        if each.told is not None:
            each.told(ours)
        elif not ours:
            self._lost(each.job)


def _unheard(_ours: bool) -> None:
    """Hear nothing of a job that was given back: one that had been lost is another's by now."""
