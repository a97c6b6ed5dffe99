"""Settler: what a worker sends to its backend between two jobs, in as few requests as possible.

The deletion of a job that is done waits for the start of the next job, or for the next reservation,
and both are one request. While the leases are certain to be ours, the worker does not wait for the
reply: the handler runs meanwhile. That saves one round trip, 50 to 100 us, for each short job.

The end of a link of a chain may be refused. It also waits for the next reservation; before a start,
the worker waits for its reply.
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
    """A job that is done, and the plan that deletes it."""

    said = 0
    """How often it was sent; all replies but one are that the job is gone."""
    missed = 0
    """How many replies were that the job is gone."""
    in_doubt = False
    """Whether it may have been applied without a reply."""
    heard = False

    def __init__(
        self, job: ReservedJob, end: End, plan: Plan, told: Callable[[bool], None] | None = None
    ) -> None:
        self.job = job
        self.end = end
        self.plan = plan
        self.told = told
        """Called with whether the job was still ours; None: the job counts as done already."""


class Started:
    """A start, with the ends sent in the same request."""

    __slots__ = ("ended", "job", "plan")

    def __init__(self, job: ReservedJob, ended: list[Ended]) -> None:
        self.job = job
        self.ended = ended
        self.plan = job.start_plan()

    def steps(self) -> list[Plan]:
        """Returns the plans in the order sent, the start last."""
        steps = [each.plan for each in self.ended]
        steps.append(self.plan)
        return steps


class Settler:
    """Starts jobs and ends those that are done.

    `lost` is called with a job that was done and runs twice. All methods but `confirm` are called
    by the thread that runs the jobs.
    """

    def __init__(self, connection: Connection, lost: Callable[[ReservedJob], None]) -> None:
        self._connection = connection
        self._backend = connection.backend
        self.reserve_after = connection.reserve_after
        """Applies steps, then holds jobs, no more than the limits of queues allow."""
        self._lost = lost
        self._ended: list[Ended] = []
        self._refused: list[Ended] = []
        """Ends to plan again: something had changed when their steps arrived."""
        self._unanswered: dict[ReservedJob, Started] = {}
        self._hearing = forks.lock()

    def defer(self, job: ReservedJob, end: End) -> None:
        """Ends a job with the next request. Raises `SettleError` or `BackendUnavailable`."""
        self._ended.append(Ended(job, end, job.defer(end)))

    def give_back(self, job: ReservedJob, end: End) -> None:
        """Releases a job that is only held with the next request. Raises `SettleError`.

        The latest goes first: if several go to the front, the first stays the first.
        """
        self._ended.insert(0, Ended(job, end, job.defer(end), _unheard))

    def defers(self, job: ReservedJob) -> bool:
        """Whether the end of a job is still to be sent."""
        return any(each.job is job for each in self._ended)

    def start(self, job: ReservedJob) -> bool:
        """Starts a held job; false if it is no longer ours.

        Its reply may come later, while the job runs: then the next request finds the loss.
        """
        for each in self._ended:
            if each.plan.waited_for:
                self.flush()
                break
        ended = self._take()
        started = self._unanswered[job] = Started(job, ended)
        try:
            self._backend.apply_async(started.steps(), partial(self._hear, started))
        except BackendUnavailable:
            self._unanswered.pop(job, None)
            self._put_back(ended)
            raise
        if 0 < job.reservation.sure_until <= self._backend.clock():  # 0: unknown how long
            self._make_sure(job)
        return not job.is_lost

    def start_now(self, job: ReservedJob) -> Result:
        """Starts a held job and waits for the reply: the start may be refused."""
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
        """Checks that a job is still ours: this process stood still while starting it."""
        self._backend.read_replies()
        if not job.is_lost and job.reservation.sure_until <= self._backend.clock():
            with suppress(SettleError):
                job.renew()

    def reserve(self, queues: Sequence[str], limit: int) -> list[ReservedJob]:
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
        """Sends now what waits for the next request."""
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
        """Resends an unanswered start, from another thread and so on another connection.

        It counts once, and renews the lease. Returns false if there is nothing to resend. Raises
        `LeaseLost` if the job is not ours.
        """
        started = self._unanswered.get(job)
        if started is None:
            return False
        for each in started.ended:
            each.said += 1
        try:
            results = job.send(*started.steps())
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

    # -- replies ----------------------------------------------------------------------------------

    def _take(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        for each in ended:
            each.said += 1
            each.job.sending()
        return ended

    def _put_back(self, ended: list[Ended]) -> None:
        """Queues these again for the next request: their replies were lost."""
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
            return  # it was sent twice, and the other reply came first
        if result.outcome is Outcome.APPLIED:
            started.plan.applied()
        elif not job.is_settled:
            job.mark_lost()

    def _forget_starts(self) -> None:
        """Drops unanswered starts: their replies will not come any more."""
        self._unanswered.clear()

    def _hear_ends(self, ended: Sequence[Ended], results: Sequence[Result]) -> None:
        """Takes in the replies to ends; the result of a start may follow them."""
        for each, result in zip(ended, results, strict=False):
            lost = result.outcome is Outcome.LOST
            with self._hearing:
                each.missed += lost
                if each.heard or (lost and each.missed < each.said and not each.in_doubt):
                    continue  # the other reply has the result
                each.heard = True
            if not each.job.on_reply(each.plan, APPLIED if lost and each.in_doubt else result):
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
    """Ignores the reply for a job that was given back: a lost one is another worker's."""
