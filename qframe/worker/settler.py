"""Settler: what a worker sends to its backend between jobs, in as few requests as possible.

The deletion of a job that is done waits for the start of the next job, or for the next reservation,
and both are one request. While the leases are certain to be ours, the worker does not wait for the
reply: the handler runs meanwhile. That saves one round trip, 50 to 100 us, for each short job.

The settler alone deals with requests whose reply was lost: it sends them again, and decides once
what became of each end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.step import Outcome, Result, Step
from qframe.exceptions import BackendUnavailable, JobAlreadySettled, SettleError
from qframe.features.base import End, Plan
from qframe.features.reserved import ReservedJob


class DeferredEnd:
    """The end of a job that is done, and what is known of the requests it was sent with.

    At most one of them finds the job; to the others it is gone.
    """

    pending = 0
    """How many requests may still bring its result."""
    is_unconfirmed = False
    """Whether the reply to a request was lost, so that it may have been applied."""
    is_answered = False

    def __init__(
        self, job: ReservedJob, end: End, plan: Plan, on_result: Callable[[bool], None] | None
    ) -> None:
        self.job = job
        self.end = end
        self.plan = plan
        self.on_result = on_result
        """Called with whether the job was still ours; None: the job counts as done already."""
        self.context = copy_context()
        """That of the job: listeners of what follows its end do not run in another job's."""

    def answer(self, result: Result) -> Result | None:
        """Takes in a reply; returns the result of the end, once, when it is certain."""
        is_gone = result.outcome is Outcome.LOST
        if is_gone:
            self.pending -= 1
        if self.is_answered or (is_gone and self.pending and not self.is_unconfirmed):
            return None  # known already, or in the reply to another request
        self.is_answered = True
        return (
            result
            if result.outcome is Outcome.APPLIED
            else result.of_end(unanswered=self.is_unconfirmed)
        )


class Settler:
    """Starts jobs and ends those that are done, for one thread.

    `defer` may be called by any thread, and `confirm` by the one that renews leases. `on_lost` is
    called with a job that was done and runs twice.
    """

    def __init__(self, connection: Connection, on_lost: Callable[[ReservedJob], None]) -> None:
        self._connection = connection
        self._backend = connection.backend
        self.reserve_after = connection.reserve_after
        """Applies steps, then holds jobs, no more than the limits of queues allow."""
        self.on_deferred: Callable[[], None] | None = None
        """Called when an end was deferred, perhaps by another thread."""
        self.refused: list[tuple[ReservedJob, Result]] = []
        """The starts that the backend refused in the last request, and their results."""
        self._on_lost = on_lost
        self._deferred: deque[DeferredEnd] = deque()
        self._to_plan_again: list[DeferredEnd] = []
        """Ends that were refused: something had changed when their steps arrived."""
        self._unanswered: dict[ReservedJob, tuple[Plan, Sequence[DeferredEnd]]] = {}
        """The starts without a reply, each with the ends that were sent before it."""
        self._answering = forks.lock()

    @property
    def has_ends(self) -> bool:
        """Whether ends wait for the next request."""
        return bool(self._deferred)

    def defer(
        self, job: ReservedJob, end: End, on_result: Callable[[bool], None] | None = None
    ) -> None:
        """Ends a job with the next request. Raises `SettleError`."""
        self._deferred.append(DeferredEnd(job, end, job.defer(end), on_result))
        if self.on_deferred is not None:
            self.on_deferred()

    def give_back(self, job: ReservedJob, end: End) -> None:
        """Releases a job that is only held with the next request. Raises `SettleError`.

        The latest goes first: if several go to the front, the first stays the first.
        """
        self._deferred.appendleft(DeferredEnd(job, end, job.defer(end), _ignore))

    def put_back(self, job: ReservedJob, end: End) -> None:
        """As `give_back`, in the order of the calls."""
        self.defer(job, end, _ignore)

    # -- requests ---------------------------------------------------------------------------------

    def start(self, job: ReservedJob, *, wait: bool = False) -> bool:
        """Starts the held job that this thread runs next; false if it is lost, or was `refused`.

        Its reply may come later, while the job runs: then the next request finds the loss. Ends
        that may be refused are not left without a reply for so long.
        """
        if not wait:
            for each in self._deferred:
                if each.plan.waited_for:
                    self.flush()
                    break
        self.start_all((job,), wait=wait)
        if not self.refused and 0 < job.reservation.sure_until <= self._backend.clock():
            self._make_sure(job)  # 0: unknown how long
        if wait:
            self._settle_again()
        return not (self.refused or job.is_lost)

    def start_all(self, jobs: Sequence[ReservedJob], *, wait: bool = False) -> bool:
        """Starts held jobs, some of which may be lost; returns whether that is known by now.

        If not, the next request learns it while they run. With `wait`, some may be `refused`.
        """
        ends, steps = self._take()
        self.refused = []
        for job in jobs:
            plan = job.start_plan()
            self._unanswered[job] = plan, ends
            steps.append(plan)
        try:
            if wait:
                results = self._backend.apply(*steps)
                for job, result in zip(jobs, results[len(ends) :], strict=True):
                    if result.outcome is Outcome.REFUSED:
                        self._unanswered.pop(job, None)
                        self.refused.append((job, result))
                self._on_results(ends, jobs, results)
            else:
                self._backend.apply_async(steps, partial(self._on_results, ends, jobs))
        except BackendUnavailable as error:
            for job in jobs:
                self._unanswered.pop(job, None)
            self._put_back(ends, error)
            raise
        return jobs[-1] not in self._unanswered

    def _make_sure(self, job: ReservedJob) -> None:
        """Checks that a job is still ours: this process stood still while starting it."""
        self._backend.read_replies()
        if not job.is_lost and job.reservation.sure_until <= self._backend.clock():
            with suppress(SettleError):
                job.renew()

    def reserve(self, queues: Sequence[str], limit: int) -> list[ReservedJob]:
        ends, steps = self._take()
        try:
            jobs, results = self.reserve_after(steps, queues, limit)
        except BackendUnavailable as error:
            self._put_back(ends, error)
            raise
        self._on_ends(ends, results)
        # No reply to an earlier request comes after this one. A job that still runs is confirmed.
        for job in [job for job in self._unanswered if job.is_settled]:
            self._unanswered.pop(job, None)
        self._settle_again()
        return jobs

    def flush(self) -> None:
        """Sends what waits for the next request, and reads all replies."""
        ends, steps = self._take()
        if ends:
            try:
                results = self._backend.apply(*steps)
            except BackendUnavailable as error:
                self._put_back(ends, error)
                raise
            self._on_ends(ends, results)
        self.read_replies()

    def read_replies(self) -> None:
        """Reads pending replies, before the thread waits for something else."""
        self._backend.read_replies()
        self._settle_again()

    def confirm(self, job: ReservedJob) -> bool:
        """Resends an unanswered start, from another thread and so on another connection.

        It counts once, and renews the lease. Returns false if there is nothing to resend. Raises
        `LeaseLost` if the job is not ours.
        """
        unanswered = self._unanswered.get(job)
        if unanswered is None:
            return False
        plan, ends = unanswered
        for each in ends:
            each.pending += 1
        try:
            results = job.send(*(each.plan for each in ends), plan)
        except JobAlreadySettled:  # not sent
            for each in ends:
                each.pending -= 1
            raise
        except (BackendUnavailable, SettleError):
            for each in ends:
                each.is_unconfirmed = True
            raise
        self._on_results(ends, (job,), results)
        return True

    def _take(self) -> tuple[list[DeferredEnd], list[Step]]:
        """Returns the ends to send now, and their steps."""
        ends: list[DeferredEnd] = []
        steps: list[Step] = []
        while self._deferred:
            each = self._deferred.popleft()
            each.pending += 1
            each.job.sending()
            ends.append(each)
            steps.append(each.plan)
        return ends, steps

    def _put_back(self, ends: list[DeferredEnd], error: BackendUnavailable) -> None:
        """Sends these again with the next request: this one got no reply."""
        for each in ends:
            each.is_unconfirmed = each.is_unconfirmed or error.in_doubt
        self._deferred.extendleft(reversed(ends))

    # -- replies ----------------------------------------------------------------------------------

    def _on_results(
        self, ends: Sequence[DeferredEnd], jobs: Sequence[ReservedJob], results: Sequence[Result]
    ) -> None:
        if ends:
            self._on_ends(ends, results)
        for job, result in zip(jobs, results[len(ends) :], strict=True):
            unanswered = self._unanswered.pop(job, None)
            if unanswered is None:
                continue  # it was sent twice, and the other reply came first
            if result.outcome is Outcome.APPLIED:
                if unanswered[0].after:
                    unanswered[0].applied()
            elif not job.state:
                job.mark_lost()

    def _on_ends(self, ends: Sequence[DeferredEnd], results: Sequence[Result]) -> None:
        """Takes in the replies to ends; the results of starts may follow them."""
        for each, reply in zip(ends, results, strict=False):
            with self._answering:
                result = each.answer(reply)
            if result is None:
                continue
            if result.outcome is not Outcome.APPLIED or each.plan.after:
                each.context.run(self._on_end, each, result)
            elif each.on_result is not None:
                each.on_result(True)

    def _on_end(self, each: DeferredEnd, result: Result) -> None:
        if not each.job.on_reply(each.plan, result):
            self._settled(each, ours=False)
        elif not each.job.state:
            self._to_plan_again.append(each)
        elif each.on_result is not None:
            each.on_result(True)

    def _settle_again(self) -> None:
        while self._to_plan_again:
            each = self._to_plan_again[-1]
            each.context.copy().run(self._end_again, each)  # another thread may still be in it

    def _end_again(self, each: DeferredEnd) -> None:
        ours = True
        try:
            each.job.settle(each.end)
        except SettleError:
            ours = each.is_unconfirmed
        self._to_plan_again.pop()
        self._settled(each, ours=ours)

    def _settled(self, each: DeferredEnd, *, ours: bool) -> None:
        if each.on_result is not None:
            each.on_result(ours)
        elif not ours:
            self._on_lost(each.job)


def _ignore(_ours: bool) -> None:
    """Ignores the reply for a job that was given back: a lost one is another worker's."""
