"""SlotRunner: runs many jobs, on an event loop and in threads, and answers what they need."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, thread
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import qframe_health
from qframe import forks
from qframe.contracts.status import State
from qframe.dispatch import pusher
from qframe.drivers import heartbeat
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    Interruption,
    JobGivenBack,
    JobTimedOut,
    LeaseLost,
)
from qframe.features.reserved import ReservedJob
from qframe.forks import cached_property
from qframe.jobs import execution
from qframe.jobs.current import context_of
from qframe.jobs.definition import JobDefinition
from qframe.worker import handlers, memory, needs
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Answers, Left, Report, lived, lived_in_steps
from qframe.worker.options import MOST_AT_ONCE
from qframe.worker.pool.scoreboard import JobScore
from qframe.worker.recorder import stacks
from qframe.worker.slots.base import Slot, SlottedRunner
from qframe.worker.slots.interrupts import SlotInterrupts, Steps, TaskSteps, current
from qframe.worker.slots.jobs_loop import JobsLoop
from qframe.worker.slots.signals import SlotSignals

log = logging.getLogger("qframe")

T = TypeVar("T")

_PATIENCE = 15.0
"""Seconds after which the process ends if a job keeps all its threads from running."""
_SPARE = 4
"""Threads for what is no handler: settling in place of a handler that does not end."""


class LocalSlot(Slot):
    """One attempt, on the event loop or in a thread. It calls `runner.over` once at its end."""

    runner: SlotRunner
    attempt: Attempt
    _has_begun = False

    def __init__(self, runner: SlotRunner, job: ReservedJob) -> None:
        super().__init__(runner, job)
        jobs_loop = runner.jobs_loop
        self.interrupts = SlotInterrupts(runner.arm, jobs_loop.loop, jobs_loop.turns)
        self.attempt.interrupts = self.interrupts
        self._is_away = True
        """Whether its life stands: it has not begun, or its handler runs."""

    @property
    def is_for_loop(self) -> bool:
        """Whether all of it is `async`, so that it needs no thread."""
        job_class = self.attempt.job_class
        return job_class is not None and self.runner.is_for_loop(job_class)

    def run_in_thread(self) -> None:
        with self._ending():
            self.come_back()
            self.attempt.outcome = lived(self.attempt, self.life, self.runner.answers, self.need)

    async def run_on_loop(self) -> None:
        self._has_begun = True
        with self._ending():
            self.come_back()
            self.attempt.outcome = await lived_in_steps(self, self.life, _ON_LOOP, self.need)

    def end_by(self, error: Interruption) -> None:
        """Brings its life to the end, in this thread, as if its handler had raised `error`."""
        with self._ending():
            answers = {**self.runner.answers, needs.Run: lambda *_: Report(error)}
            self.attempt.outcome = lived(self.attempt, self.life, answers, self.need)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Left:
            return  # another thread brings it to its end
        except BaseException as error:
            # An outage needs no traceback; anything else is a fault of ours, or a listener's.
            shown = None if isinstance(error, BackendUnavailable) else error
            problem = f"cannot be settled; its lease brings it back: {error}"
            log.exception("%s %s %s", self.job.name, self.job.uuid, problem, exc_info=shown)
        self.runner.over(self)

    def end(self, error: Interruption) -> None:
        """Ends the handler, from any thread, if it still runs."""
        self.runner.signals.end_job(self.interrupts, error)

    def task_ended(self, _: asyncio.Task[Any]) -> None:
        """Restores signal handlers, and gives the job back if its task was cancelled unbegun."""
        self.runner.look_after_handlers()
        if not (self._has_begun or self.is_left):
            self.runner.give_back_unbegun(self)

    def warn_of_tasks(self) -> None:
        """Logs the tasks the job has left on the loop: they run on without a job."""
        left = [task for task in self.interrupts.started or () if not task.done()]
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            job = self.job
            log.warning("%s %s has ended and left tasks running: %s", job.name, job.uuid, names)

    # -- its needs, on the loop -------------------------------------------------------------------

    async def perform(self, run: needs.Run) -> Report:
        attempt, error = self.attempt, None
        self.go_away(run)
        try:
            instance = attempt.made()
            runner = self.runner
            handler = execution.perform_on_loop(instance, runner.middleware, runner.hooks)
            attempt.result = await Steps(handler, self.interrupts)
            await pusher.wait_on_loop()
            if await self._where_it_may_ask(attempt.has_succeeded):
                hook = execution.call_hook_on_loop(instance, "succeeded", hooks=runner.hooks)
                await TaskSteps(hook, self.interrupts)
        except BaseException as raised:  # noqa: BLE001 (whatever a job raises is its outcome)
            error = None if attempt.is_handled else raised
        finally:
            self.interrupts.not_running()
        self.runner.signals.leave_if_closed(self.job.name)
        self.come_back()
        attempt.processor = self.interrupts.processor
        return self.runner.reported(attempt, error)

    async def settle(self, settle: needs.Settle) -> None:
        """Settles it with the next request; in a thread if that may take time."""
        act = partial(self.runner.settle, self.attempt, settle)
        waits = settle.end.state is not State.COMPLETE or any(e.asks for e in self.job.features)
        await self.apart(act) if waits else act()

    async def call_failed(self, need: needs.CallFailed) -> None:
        instance = self.attempt.for_hooks()
        if instance is not None:
            error, hooks = need.verdict.end.error, self.runner.hooks
            await execution.call_hook_on_loop(instance, "failed", error, hooks=hooks)

    async def _where_it_may_ask(self, act: Callable[[], T]) -> T:
        """Calls `act`; in a thread if it asks the database, after a completion in a transaction."""
        return await self.apart(act) if self.job.is_completing else act()

    async def apart(self, act: Callable[[], T]) -> T:
        """Calls `act` in a thread, since it would block the loop."""
        done = asyncio.get_running_loop().run_in_executor(self.runner.threads, act)
        while not done.done():
            with suppress(asyncio.CancelledError):  # cancelling all tasks must not end this
                await asyncio.wait([done])
        return done.result()

    # -- beside it --------------------------------------------------------------------------------

    def keep_covered(self) -> None:
        """Makes time that others take from the handler count for no deadline."""
        self.interrupts.while_running(self._cover_anew)

    def _cover_anew(self) -> None:
        if timeout := self.attempt.limits.timeout:
            limit = timeout + self.runner.options.grace
            self.runner.leases.keep(self.job, limit)
            if self.attempt.scoreboard is not None:
                self.attempt.scoreboard.extend(limit)

    def go_away(self, run: needs.Run) -> None:
        """The handler is about to run: if it does not end, its life may go on without it."""
        self.need, self._is_away = run, True

    def come_back(self) -> None:
        """Goes on with its life; raises `Left` if that has gone on already."""
        with self.runner.claiming:
            if self.is_left:
                raise Left
            self._is_away = False

    def leave(self) -> bool:
        """Lets its life go on without the handler, which keeps the slot; false if it is back."""
        with self.runner.claiming:
            if self.is_left or not self._is_away:
                return False
            self.is_left = True
        attempt = self.attempt
        attempt.ran = time.monotonic() - attempt.began
        if attempt.scoreboard is not None:
            attempt.scoreboard.settling()
            attempt.scoreboard = None
        return True


_ON_LOOP: Answers = {
    needs.Begin: lambda slot, start: slot.runner.begun(slot.attempt, start),
    needs.Run: LocalSlot.perform,
    needs.Learn: lambda slot, learn: slot.apart(lambda: slot.attempt.learn_completion(learn.error)),
    needs.Decide: lambda slot, decide: slot.attempt.decide(decide.error),
    needs.Settle: LocalSlot.settle,
    needs.CallFailed: LocalSlot.call_failed,
    needs.Wait: lambda slot, pause: slot.apart(lambda: time.sleep(pause.seconds)),
}


class SlotRunner(SlottedRunner):
    refills = True
    signals: SlotSignals

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 (those of `Runner`)
        super().__init__(*arguments, **more)
        self.jobs_loop = JobsLoop()
        self.settler.on_deferred = self.wake
        self.watch = lambda _: None  # the overseer has the watchdog
        self.sleeps = False
        """Whether the thread that takes jobs waits, and must be woken."""
        self.threads = ThreadPoolExecutor(
            MOST_AT_ONCE + _SPARE, "qframe-job", initializer=self._begin_thread
        )  # one is made if none is free: as many as there are slots that need one
        self._context = contextvars.copy_context()
        self._blocked_signals = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._for_loop: dict[type[JobDefinition], bool] = {}
        self._names: dict[str, None] = {}
        """The classes of the jobs that began since the last look at the loop."""
        self._names_before: list[str] = []
        """The classes of those that ran then, or had begun before."""
        self.jobs_loop.begins = partial(self.signals.loop_begins, self.jobs_loop.loop)
        self.jobs_loop.came_round = self._look_round
        self.signals.jobs = self._interruptible
        self._covering, self.claiming = forks.lock(), forks.lock()

    # -- slots ------------------------------------------------------------------------------------

    @property
    def going(self) -> list[LocalSlot]:
        """Those whose handlers run, or are about to."""
        slots = cast("dict[ReservedJob, LocalSlot]", self.taken.copy())
        return [slot for job, slot in slots.items() if slot.is_left or job in self.running]

    def stacks(self) -> Iterator[tuple[JobScore, bytes]]:
        frames, now_on_loop = sys._current_frames(), self.jobs_loop.current()  # noqa: SLF001 (the one way)
        for slot in self.going:
            score, interrupts = slot.attempt.scoreboard, slot.interrupts
            if score is None or not interrupts.runs:
                continue
            task = interrupts.task
            if task is None:
                yield score, stacks.of_frame(frames.get(interrupts.thread))
            elif task is now_on_loop:
                yield score, stacks.of_frame(frames.get(self.jobs_loop.thread))
            else:
                yield score, stacks.of_task(task)

    @cached_property
    def answers(self) -> Answers:
        pause: Answers = {needs.Wait: lambda _, pause: time.sleep(pause.seconds)}
        return {**super().answers, **pause, needs.Begin: self.begun}

    def wake(self) -> None:
        """Wakes the thread that takes jobs, if it waits."""
        if self.sleeps:
            self.sleeps = False
            self.signals.wake()

    def slot(self, job: ReservedJob) -> LocalSlot:
        return LocalSlot(self, job)

    def collect(self) -> Iterator[Slot]:
        yield from super().collect()
        self.ended_by = self.stuck or self.signals.interrupted

    def sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        self.sleeps = True
        try:
            if not (self.ended or self.settler.has_ends):
                super().sleep(seconds, queues)
        finally:
            self.sleeps = False

    def take(self, slots: Sequence[LocalSlot]) -> None:
        self.enter_started(slots)
        for_loop = []
        for slot in slots:
            self._names[slot.attempt.name] = None
            if slot.is_for_loop:
                for_loop.append(slot)
            else:
                self._begin_in_thread(slot)
        if for_loop:
            self.jobs_loop.call(self._begin_on_loop, for_loop)

    def _begin_on_loop(self, slots: Sequence[LocalSlot]) -> None:
        for slot in slots:
            task = self.jobs_loop.start(slot.run_on_loop(), self._fresh(slot))
            slot.interrupts.task = task
            task.add_done_callback(slot.task_ended)

    def look_after_handlers(self) -> None:
        """Restores the worker's signal handlers; on the loop's thread."""
        if handlers.lost():
            self._look_round()

    def _look_round(self) -> None:
        running = [each.attempt.name for each in self.going]
        jobs = dict.fromkeys([*self._names_before, *self._names, *running])
        self.signals.look_beside(self.jobs_loop.loop, jobs)
        self._names_before, self._names = [*self._names, *running], {}

    def _begin_in_thread(self, slot: LocalSlot) -> None:
        try:
            self.threads.submit(self._fresh(slot).run, slot.run_in_thread)
        except RuntimeError:  # no thread can be had
            log.exception("%s cannot be run; its lease brings it back", slot.job.name)
            self.running.pop(slot.job, None)
            self.over(slot)

    def settle_unstarted(self, slot: LocalSlot) -> None:
        """Ends a job that is not started; its hooks may take long."""
        self.enter(slot)
        self.threads.submit(self._fresh(slot).run, slot.run_in_thread)

    def give_back_unbegun(self, slot: LocalSlot) -> None:
        """Gives back a job whose task was ended before it began."""
        why = JobGivenBack("its task was cancelled before it began, by another job perhaps")
        self.threads.submit(self._named(slot).run, slot.end_by, why)

    def over(self, slot: LocalSlot) -> None:
        self.leases.drop(slot.job)
        if not slot.is_left:
            self.let_go(slot.job)
        slot.warn_of_tasks()
        slot.seconds = time.monotonic() - slot.attempt.began
        if slot.seconds > memory.BRIEF and slot.interrupts.task is not None:
            slot.attempt.memory = memory.peak.raised()  # one in a thread has looked itself
        self.ended.append(slot)
        self.wake()

    def _fresh(self, slot: LocalSlot) -> contextvars.Context:
        """Returns a context of its own for a job, as it was when the worker began."""
        context = self._named(slot)
        context.run(current.set, slot.interrupts)
        return context

    def _named(self, slot: LocalSlot) -> contextvars.Context:
        """Returns a context that names the job, and in which nothing ends it."""
        return context_of(slot.job, self._context)

    def _begin_thread(self) -> None:
        # The new thread inherits this: it gets no signals, and programs that a job starts block
        # none.
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
        """Runs no more; abandons what does not end."""
        super().close()
        self.watchdog.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)

    # -- what a life needs, in a thread -----------------------------------------------------------

    def begun(self, attempt: Attempt, _: needs.Begin) -> bool:
        """Begins a job; it was started with others."""
        attempt.began = time.monotonic()
        return True

    def perform(self, attempt: Attempt, run: needs.Run) -> Report:
        slot = self.taken[attempt.job]
        assert isinstance(slot, LocalSlot)  # noqa: S101 (there are no others)
        slot.go_away(run)
        report = super().perform(attempt, run)
        self.signals.leave_if_closed(attempt.job.name)
        slot.come_back()
        if slot.interrupts.processor:  # of its coroutines
            attempt.used(slot.interrupts.processor, 0.0)
        return report

    def settle(self, attempt: Attempt, settle: needs.Settle) -> None:
        """Settles with the next request; waits for the reply if that may fail."""
        job, end = attempt.job, settle.end
        if end.state is State.COMPLETE:
            self.settler.defer(job, end)
            return
        ours: SimpleQueue[bool] = SimpleQueue()
        self.settler.defer(job, end, ours.put)
        if not ours.get():
            raise LeaseLost(f"{job.name} {job.uuid}: {LOST_LEASE}")

    # -- its health -------------------------------------------------------------------------------

    def accounted_until(self, came_round: float, moves: float) -> float:  # noqa: ARG002 (for others)
        """Returns until when the loop that takes jobs, and the event loop, are accounted for.

        A blocked event loop is, for as long as the job that blocks it has a timeout to come.
        """
        until = self.jobs_loop.stands_since() + qframe_health.WITHIN
        slot = self.computing() if until < math.inf else None
        if slot is not None and slot.interrupts.due < math.inf:
            until = max(until, slot.interrupts.due + self.options.grace + qframe_health.WITHIN)
        return min(came_round, until)

    def computing(self) -> LocalSlot | None:
        """Returns the slot whose code the event loop runs; from another thread."""
        task = self.jobs_loop.current()
        for slot in self.going:
            if task is not None and (
                slot.interrupts.task is task or task in (slot.interrupts.started or ())
            ):
                return slot
        return None

    # -- what ends jobs ---------------------------------------------------------------------------

    def _interruptible(self) -> list[SlotInterrupts]:
        return [each.interrupts for each in self.going]

    def arm(self, due: float) -> None:
        """Ends a job by then, or the process if no thread can; from any thread."""
        self.signals.arm(due)
        if due < math.inf:
            with self._covering:
                patience = self.options.grace + _PATIENCE
                self.watchdog.sooner(max(0.0, due - time.monotonic()) + patience)

    def cover_all(self) -> None:
        """Ends the process if the earliest deadline passes by far: a job keeps the interpreter."""
        with self._covering:
            first = min((each.due for each in self._interruptible() if each.runs), default=math.inf)
            left = max(0.0, first + self.options.grace - time.monotonic())
            self.watchdog.cover(left + _PATIENCE if first < math.inf else 0)

    # -- handlers that do not end ----------------------------------------------------------------

    def give_up(self, slot: LocalSlot) -> None:
        """Settles a job in the place of its handler, which does not end; the worker is to end."""
        job, timeout = slot.job, slot.attempt.limits.timeout
        if not slot.leave():
            return
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
        self._go_on_without(slot, slot.interrupts.fired or late)
        self.wake()

    def settle_without(self, slot: LocalSlot, error: Interruption) -> None:
        """Settles a job whose handler does not end, or cannot go on; its slot stays taken."""
        if slot.leave():
            self._go_on_without(slot, error)

    def give_up_beside_stuck(self, seconds: float) -> None:
        """Gives back the jobs beside a stuck one that would not end, either."""
        if self.stuck is None:
            return
        blocked = self.jobs_loop.is_blocked()
        late = seconds > self.options.grace
        for each in self.going:
            cannot = blocked and each.interrupts.is_on_loop
            if not each.is_left and (cannot or (late and each.interrupts.due == math.inf)):
                why = "its loop is blocked" if cannot else "another job does not end"
                self.settle_without(each, JobGivenBack(f"its worker ends: {why}"))

    def _go_on_without(self, slot: LocalSlot, error: Interruption) -> None:
        self.left += 1
        self.threads.submit(self._named(slot).run, slot.end_by, error)


class _OnLoop:
    """Finishes on the loop the awaitables that a thread's job leaves."""

    def __init__(self, jobs_loop: JobsLoop) -> None:
        self.run = jobs_loop.finish


def _leave_pool() -> None:
    """Lets a child that a job's thread has forked end.

    Before Python exits it waits for the threads of every pool, of which this one is the child's
    only thread: it cannot wait for itself.
    """
    waited_for: Any = getattr(thread, "_threads_queues", {})
    waited_for.pop(threading.current_thread(), None)


forks.in_child(_leave_pool)
