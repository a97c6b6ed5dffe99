"""SlotAttempt and SlotRunner: what runs one of many jobs, and what the attempts share."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, thread
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar, cast

from qframe import events, forks
from qframe.connection import Connection
from qframe.contracts.status import State
from qframe.dispatch import pusher
from qframe.drivers import heartbeat
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    Interruption,
    JobGivenBack,
    JobTimedOut,
    LeaseLost,
)
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.jobs import current as current_job
from qframe.jobs import execution
from qframe.jobs.definition import JobDefinition
from qframe.jobs.registry import Registry
from qframe.worker.bounds import Bounds
from qframe.worker.options import MOST_AT_ONCE, WorkerOptions
from qframe.worker.outcome import Outcome, Verdict
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.runner import Report
from qframe.worker.slots.base import SlottedAttempt, SlottedRunner
from qframe.worker.slots.exchange import SlotExchange
from qframe.worker.slots.interrupts import SlotInterrupts, Steps, current
from qframe.worker.slots.jobs_loop import JobsLoop
from qframe.worker.slots.signals import SlotSignals

log = logging.getLogger("qframe")

T = TypeVar("T")

_PATIENCE = 15.0
"""Seconds after which the process ends where a job keeps all threads of it from running."""
_SPARE = 4
"""Threads for what is no handler: settling in place of one that does not end."""


class SlotAttempt(SlottedAttempt):
    """One reserved job among several. Whatever becomes of it, `runner.over` is told once."""

    runner: SlotRunner
    _has_told_failed = False
    _has_begun = False

    def __init__(
        self, runner: SlotRunner, job: ReservedJob, job_class: type[JobDefinition] | None = None
    ) -> None:
        super().__init__(runner, job, job_class)
        jobs_loop = runner.jobs_loop
        self.interrupts: SlotInterrupts = SlotInterrupts(
            runner.arm, jobs_loop.loop, jobs_loop.turns
        )

    @property
    def is_for_loop(self) -> bool:
        """Whether all of it is `async`, so that it needs no thread."""
        return self.job_class is not None and self.runner.is_for_loop(self.job_class)

    # -- in a thread ------------------------------------------------------------------------------

    def run_in_thread(self) -> None:
        """Bring a started job to its outcome."""
        self.began = time.monotonic()
        self._to_its_end(self._started)

    def settle_unstarted(self, verdict: Verdict) -> None:
        """Carry out what is to become of a job that is not started."""
        self._to_its_end(lambda: self._settle(verdict, 0.0))

    def _to_its_end(self, act: Callable[[], Outcome]) -> None:
        try:
            self.outcome = act()
        except _Left:
            return
        except BaseException as error:  # noqa: BLE001 (nothing else would be told of it)
            self._tell_unsettled(error)
        self.runner.over(self)

    def _tell_unsettled(self, error: BaseException) -> None:
        # That the backend is away says all; anything else is a fault of ours, or of a listener.
        shown = None if isinstance(error, BackendUnavailable) else error
        said = "%s %s cannot be settled; its lease brings it back: %s"
        log.error(said, self.job.name, self.job.uuid, error, exc_info=shown)

    # -- on the loop ------------------------------------------------------------------------------

    async def run_on_loop(self) -> None:
        """Bring a started job to its outcome."""
        self._has_begun = True
        self.began = time.monotonic()
        try:
            self.outcome = await self._started_on_loop()
        except _Left:
            return
        except BaseException as error:  # noqa: BLE001 (as above)
            self._tell_unsettled(error)
        self.runner.over(self)

    def task_ended(self, _: asyncio.Task[Any]) -> None:
        """Give the job back where its task was cancelled before its first step."""
        if not (self._has_begun or self.is_left):
            self.runner.settle_unbegun(self)

    def settle_unbegun(self) -> None:
        """Give back a job that was started and is not run; called in a thread."""
        self._to_its_end(self._given_back)

    def _given_back(self) -> Outcome:
        cancelled = JobGivenBack("its task was cancelled before it began, by another job perhaps")
        self.has_ended()
        try:
            return self._settle(self.conclude(Report(cancelled)), 0.0)
        finally:
            self.runner.running.pop(self.job, None)
            self.runner.cancellation.ended(self.job)
            if self.scoreboard is not None:
                self.scoreboard.settled(deferred=self.runner.exchange.defers(self.job))

    async def _started_on_loop(self) -> Outcome:
        runner, job = self.runner, self.job
        try:
            self.tell_processing()
            report = await self._perform_on_loop()
            self.has_ended()
            if self.scoreboard is not None:
                self.scoreboard.settling()
            self.ran = seconds = time.monotonic() - self.began
            outcome = self.outcome = await self._settle_on_loop(self.conclude(report), seconds)
        finally:
            runner.running.pop(job, None)
            runner.cancellation.ended(job)
            self.traced()
        if self.scoreboard is not None:
            self.scoreboard.settled(deferred=runner.exchange.defers(job))
        events.fire(events.JobAttempted, job, report.error)
        return outcome

    def tell_of_tasks(self) -> None:
        """Say which tasks the job has left on the loop: they run on, and are nobody's job."""
        left = [task for task in self.interrupts.started or () if not task.done()]
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            job = self.job
            log.warning("%s %s has ended and left tasks running: %s", job.name, job.uuid, names)

    async def _perform_on_loop(self) -> Report:
        """Run the handler, and say how it ended."""
        interrupts, result = self.interrupts, None
        error: BaseException | None = None
        try:
            self.cover(self.limits.timeout)
            interrupts.running(self.limits.timeout)
            self.instance = self._made()
            handler = execution.perform_on_loop(self.instance, self.runner.middleware)
            result = await Steps(handler, interrupts)
            await pusher.wait_on_loop()
            if await self._where_it_may_ask(self._has_succeeded):
                await execution.tell_on_loop(self.instance, "succeeded")
        except BaseException as raised:  # noqa: BLE001 (whatever a job raises is its outcome)
            error = None if self._handled else raised
        finally:
            interrupts.not_running()
        self.runner.signals.leave_if_closed(self.job.name)
        if self.is_left:
            raise _Left
        return Report(await self._where_it_may_ask(lambda: self._ended_by(error)), result)

    async def _where_it_may_ask(self, act: Callable[[], T]) -> T:
        """Do what asks the database, where the job was completed in a transaction, in a thread."""
        return await self._apart(act) if self.job.is_completing else act()

    async def _apart(self, act: Callable[[], T]) -> T:
        """Do in a thread what would keep the loop from the others."""
        done = asyncio.get_running_loop().run_in_executor(self.runner.threads, act)
        while not done.done():
            with suppress(asyncio.CancelledError):  # who cancels all tasks does not mean this
                await asyncio.wait([done])
        return done.result()

    async def _settle_on_loop(self, verdict: Verdict, seconds: float) -> Outcome:
        """Carry a verdict out, and tell of it."""
        outcome, end = verdict
        job = self.job
        if outcome is Outcome.LOST:
            self.runner.lost(job, self.name)
            return outcome
        if not job.is_settled:
            settle = partial(self.runner.settled, job, end, self.name)
            waits = end.state is not State.COMPLETE or any(each.asks for each in job.features)
            if not (await self._apart(settle) if waits else settle()):
                return Outcome.LOST
        if outcome is Outcome.FAILED and isinstance(end.error, BaseException):
            await self._tell_failed_on_loop(end.error)
        self._tell(outcome, end, seconds)
        return outcome

    async def _tell_failed_on_loop(self, error: BaseException) -> None:
        self.error, self._has_told_failed = error, True
        instance = (self.instance or self._anew()) if self.job.refusal is None else None
        if instance is not None:
            await execution.tell_on_loop(instance, "failed", error)

    # -- what both have ---------------------------------------------------------------------------

    def tell_failed(self, error: BaseException) -> None:
        """Call the job's `failed`, where that is still to be done."""
        if not self._has_told_failed:
            super().tell_failed(error)

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from now; 0 is no limit."""
        limit = timeout + self.runner.options.grace if timeout else 0
        self.runner.leases.keep(self.job, limit)
        if self.scoreboard is not None:
            self.scoreboard.running(self.job.reservation.fence, limit, self.permits)

    def keep_covered(self) -> None:
        """Have time that others take from the handler count for nobody who looks after it."""
        self.interrupts.while_running(self._cover_anew)

    def _cover_anew(self) -> None:
        if timeout := self.limits.timeout:
            limit = timeout + self.runner.options.grace
            self.runner.leases.keep(self.job, limit)
            if self.scoreboard is not None:
                self.scoreboard.extend(limit)

    # -- a handler that does not end --------------------------------------------------------------

    def leave(self) -> None:
        """Note that the job is settled without its handler, which has nothing more to say."""
        self.is_left = True
        if self.scoreboard is not None:
            self.scoreboard.settling()

    def settle_without(self, error: Interruption) -> None:
        """Settle a job that was left, as one that ended by `error`; called in another thread."""
        self._to_its_end(
            lambda: self._settle(self.conclude(Report(error)), time.monotonic() - self.began)
        )

    def perform(self) -> Report:
        """Run the handler in this thread, and say how it ended."""
        report = super().perform()
        self.runner.signals.leave_if_closed(self.job.name)
        if self.is_left:
            raise _Left
        return report


class _Left(BaseException):
    """The handler has ended, after its job was settled without it."""


class SlotRunner(SlottedRunner):
    """Runs jobs on an event loop, and in threads."""

    attempt: ClassVar[type[SlottedAttempt]] = SlotAttempt
    signals: SlotSignals

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        options: WorkerOptions,
        signals: SlotSignals,
        unknown_delays: Sequence[float] = (),
        *,
        heartbeat: Heartbeat,
        scoreboard: WorkerScore | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__(
            connection, registry, options, signals, unknown_delays, heartbeat=heartbeat,
            scoreboard=scoreboard, bounds=bounds,
        )  # fmt: skip
        self.jobs_loop = JobsLoop()
        self.sleeps = False
        """Whether the thread that takes jobs waits, and is to be woken."""
        self.threads = ThreadPoolExecutor(
            MOST_AT_ONCE + _SPARE, "qframe-job", initializer=self._begin_thread
        )  # one is made where none is free: as many as there are slots that need one
        self._context = contextvars.copy_context()
        self._blocked_signals = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._for_loop: dict[type[JobDefinition], bool] = {}
        self._names: dict[str, None] = {}
        """The classes of the jobs that began since the loop was looked after."""
        self._names_before: list[str] = []
        """And of those that ran when it was, or had begun before."""
        self.jobs_loop.begins = partial(signals.loop_begins, self.jobs_loop.loop)
        self.jobs_loop.came_round = self._look_after_handlers
        signals.jobs = self._interruptible
        self._covering = forks.lock()

    def _exchange(self) -> SlotExchange:
        return SlotExchange(self.connection, self._ran_twice, self.wake)

    # -- slots ------------------------------------------------------------------------------------

    @property
    def attempts(self) -> list[SlotAttempt]:
        """Those whose handlers run, or are about to."""
        return [cast("SlotAttempt", each) for each in [*self.running.values()]]

    def wake(self) -> None:
        """Wake the thread that takes jobs."""
        if self.sleeps:
            self.sleeps = False
            self.signals.tell()

    def take(self, attempts: Sequence[SlotAttempt]) -> None:
        """Run jobs that were started."""
        self.enter_started(attempts)
        for_loop = []
        for attempt in attempts:
            self._names[attempt.name_sent] = None
            if attempt.is_for_loop:
                for_loop.append(attempt)
            else:
                self._begin_in_thread(attempt)
        if for_loop:
            self.jobs_loop.call(self._begin_on_loop, for_loop)

    def _begin_on_loop(self, attempts: Sequence[SlotAttempt]) -> None:
        for attempt in attempts:
            task = self.jobs_loop.start(attempt.run_on_loop(), self._fresh(attempt))
            attempt.interrupts.task = task
            task.add_done_callback(attempt.task_ended)

    def _look_after_handlers(self) -> None:
        running = [each.name_sent for each in self.attempts]
        jobs = dict.fromkeys([*self._names_before, *self._names, *running])
        self.signals.look_beside(self.jobs_loop.loop, jobs)
        self._names_before, self._names = [*self._names, *running], {}

    def _begin_in_thread(self, attempt: SlotAttempt) -> None:
        try:
            self._in_thread(attempt, attempt.run_in_thread)
        except RuntimeError:  # no thread can be had
            log.exception("%s cannot be run; its lease brings it back", attempt.job.name)
            self.running.pop(attempt.job, None)
            self.over(attempt)

    def settle(self, attempt: SlotAttempt, verdict: Verdict) -> None:
        """Carry out what is to become of a job that is not started; its hooks may take long."""
        self.enter(attempt)
        self._in_thread(attempt, lambda: attempt.settle_unstarted(verdict))

    def settle_unbegun(self, attempt: SlotAttempt) -> None:
        """Give back a job whose task was ended before it began."""
        self.threads.submit(self._named(attempt).run, attempt.settle_unbegun)

    def over(self, attempt: SlotAttempt) -> None:
        """Hear that an attempt has come to its end; from any thread, perhaps twice."""
        self.leases.drop(attempt.job)
        if not attempt.is_left:
            self.let_go(attempt.job)
        attempt.tell_of_tasks()
        attempt.seconds = time.monotonic() - attempt.began
        self.ended.append(attempt)
        self.wake()

    def _in_thread(self, attempt: SlotAttempt, act: Callable[[], None]) -> None:
        self.threads.submit(self._fresh(attempt).run, act)

    def _fresh(self, attempt: SlotAttempt) -> contextvars.Context:
        """Give a job a context of its own, as it was when the worker began."""
        context = self._named(attempt)
        context.run(current.set, attempt.interrupts)
        return context

    def _named(self, attempt: SlotAttempt) -> contextvars.Context:
        """Give a context that names the job, and in which nothing ends it."""
        context = self._context.copy()
        context.run(current_job.running.set, attempt.job)
        return context

    def _begin_thread(self) -> None:
        # The thread that begins it hears none: programs that a job starts would not, either.
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_signals)
        heartbeat.use(self.heartbeat)
        self.jobs_loop.turns.enter()
        execution.finish_by(_OnLoop(self.jobs_loop))

    def is_for_loop(self, job_class: type[JobDefinition]) -> bool:
        """Whether the jobs of a class need no thread."""
        found = self._for_loop.get(job_class)
        if found is None:
            found = execution.is_for_loop(job_class, self.middleware)
            self._for_loop[job_class] = found
        return found

    def close(self) -> None:
        """Run no more; what does not end is left."""
        self.watchdog.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def say(self, job: ReservedJob, end: End) -> None:
        """Settle with the next exchange; waits for what comes of that, where it may fail."""
        if end.state is State.COMPLETE:
            self.exchange.defer(job, end)
            return
        ours: SimpleQueue[bool] = SimpleQueue()
        self.exchange.defer(job, end, ours.put)
        if not ours.get():
            raise LeaseLost(f"{job.name} {job.uuid}: {LOST_LEASE}")

    def rest(self, seconds: float) -> None:
        """Let some time pass; signals are the other thread's to hear."""
        time.sleep(seconds)

    # -- what ends jobs ---------------------------------------------------------------------------

    def _interruptible(self) -> list[SlotInterrupts]:
        return [each.interrupts for each in self.attempts]

    def arm(self, due: float) -> None:
        """Have a job ended by then, and the process where no thread can; from any thread."""
        self.signals.arm(due)
        if due < math.inf:
            with self._covering:
                patience = self.options.grace + _PATIENCE
                self.watchdog.sooner(max(0.0, due - time.monotonic()) + patience)

    def cover_all(self) -> None:
        """Have the process end where the first of the jobs that run has kept it to itself."""
        with self._covering:
            first = min((each.due for each in self._interruptible() if each.runs), default=math.inf)
            left = max(0.0, first + self.options.grace - time.monotonic())
            self.watchdog.cover(left + _PATIENCE if first < math.inf else 0)

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        attempt = self.running.get(job)
        if isinstance(attempt, SlotAttempt):
            self.signals.end_job(attempt.interrupts, error)

    # -- handlers that do not end ----------------------------------------------------------------

    def give_up(self, attempt: SlotAttempt) -> None:
        """Settle a job in the place of its handler, which does not end; the worker is to follow."""
        job, timeout = attempt.job, attempt.limits.timeout
        log.error(
            "%s %s ran longer than its timeout of %g s and did not end in %g s more: the worker "
            "takes no more jobs, and ends",
            job.name,
            job.uuid,
            timeout,
            self.options.grace,
        )
        late = JobTimedOut(f"ran longer than its timeout of {timeout:g} s, and did not end")
        self.stuck = late
        self.settle_without(attempt, attempt.interrupts.fired or late)
        self.wake()

    def settle_without(self, attempt: SlotAttempt, error: Interruption) -> None:
        """Settle a job whose handler does not end, or cannot go on; its slot stays taken."""
        self.left += 1
        attempt.leave()
        self.threads.submit(self._named(attempt).run, attempt.settle_without, error)


class _OnLoop:
    """Finishes on the loop what the jobs of a thread leave to be awaited."""

    def __init__(self, jobs_loop: JobsLoop) -> None:
        self.run = jobs_loop.finish


def _leave_pool() -> None:
    """Let a child that a job's thread has forked end.

    Before Python exits it waits for the threads of every pool, of which this one is the child's
    only thread: it cannot wait for itself.
    """
    waited_for: Any = getattr(thread, "_threads_queues", {})
    waited_for.pop(threading.current_thread(), None)


forks.in_child(_leave_pool)
