"""Runner: runs reserved jobs in line, one after the other, and answers what their lives need."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import qframe_health
from qframe import events
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.contracts.step import Result
from qframe.dispatch import pusher
from qframe.drivers import process
from qframe.exceptions import (
    BackendUnavailable,
    Interruption,
    InvalidPayload,
    JobGivenBack,
    JobTimedOut,
    SettleError,
)
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.forks import cached_property
from qframe.jobs import completing, current, execution
from qframe.worker import memory, needs
from qframe.worker.attempt import Attempt
from qframe.worker.needs import NOTHING, Answers, Report, lived_in_steps
from qframe.worker.outcome import JobOutcome, out_of_group
from qframe.worker.pool.scoreboard import JobScore
from qframe.worker.recorder import stacks
from qframe.worker.shared import Shared
from qframe.worker.slot_leases import ConcurrencyLimit

log = logging.getLogger("qframe")

_TRIES = 5
"""How often another slot lease is tried after another worker took the first."""
_STDERR = 2
FORKED = 70
"""Exit code of a fork of the worker that came back from its job."""


class Runner(Shared):
    """Brings a reserved job to its end: `run`."""

    slots = 1
    refills = False
    """Whether more jobs are reserved while some are held."""
    ended_by: Interruption | None = None
    """What ended a job and so ends the worker."""
    together: JobScore | None = None
    """Where the pool sees the call that runs for several jobs."""

    def stacks_elsewhere(self) -> dict[str, str]:
        """Returns where jobs are that run in processes of their own, by what they are."""
        return {}

    @property
    def busy(self) -> int:
        """How many jobs run beside the loop."""
        return 0

    @cached_property
    def answers(self) -> Answers:
        return {
            needs.Begin: self.start,
            needs.Run: self.perform,
            needs.Learn: lambda attempt, learn: attempt.learn_completion(learn.error),
            needs.Decide: lambda attempt, decide: attempt.decide(decide.error),
            needs.Settle: self.settle,
            needs.CallFailed: self.call_failed,
            needs.Wait: lambda _, pause: self.pause(pause.seconds),
        }

    def run(self, job: ReservedJob, attempt: Attempt | None = None) -> Attempt:
        """Brings a held job to its outcome, and returns the attempt.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        attempt = attempt or Attempt(self, job)
        life = lived_in_steps(attempt, attempt.life(), self.answers, None)
        try:
            current.context_of(job).run(next, life)  # none of these answers takes time
        except StopIteration as ended:
            attempt.outcome = ended.value
        finally:
            self.leases.drop(job)
            if job.features:  # slot leases are among these
                self.let_go(job)
            self.signals.look_after(job)
        self.ended_by = attempt.ended_by
        if attempt.outcome is not JobOutcome.LOST:
            self.count(attempt)
        return attempt

    def tell_popped(self, job: ReservedJob) -> None:
        """Fires `JobPopped`; context variables that its listeners set end there."""
        current.context_of(job).run(events.fire, events.JobPopped, job)

    def count(self, attempt: Attempt) -> None:
        timed_out = isinstance(attempt.report.error, JobTimedOut)
        self.recorder.ended(
            attempt.name,
            attempt.job.queue,
            attempt.outcome,
            attempt.ran,
            timed_out=timed_out,
            processor=attempt.processor,
            memory=attempt.memory,
        )
        if self.by_tag is not None:
            job = attempt.job
            with suppress(InvalidPayload):
                self.by_tag.ended(
                    job.payload,
                    job.queue,
                    attempt.outcome,
                    attempt.ran,
                    timed_out=timed_out,
                    processor=attempt.processor,
                    memory=attempt.memory,
                )

    def accounted_until(self, came_round: float, moves: float) -> float:
        """Returns until when its thread is accounted for; from another thread.

        `came_round`: by the loop's last turn; `moves`: because the thread itself has run of late,
        which counts for a job without a timeout.
        """
        if not self.running:
            return came_round
        ends = self.signals.ends_at
        by_job = moves if ends == math.inf else ends + self.options.grace + qframe_health.WITHIN
        return max(came_round, by_job)

    def stacks(self) -> Iterator[tuple[JobScore, bytes]]:
        """Yields the stack of each running job, or of a call for several, from another thread."""
        main = threading.main_thread().ident
        attempts = (*self.running.values(),)
        for score in (self.together, *(getattr(each, "scoreboard", None) for each in attempts)):
            if score is not None and main is not None:
                yield score, stacks.of_frame(sys._current_frames().get(main))  # noqa: SLF001 (the one way)

    def at_rest(self) -> None:
        """No job follows at once: clears both stages of the timeout."""
        self.watchdog.cancel()
        self.signals.at_rest()

    def close(self) -> None:
        self.cancellation.tidy()

    def closing(self, what: str, act: Callable[[], object]) -> None:
        """Calls `act`, which closes something; for `grace` seconds, or until a further signal."""
        seconds = max(1.0, self.options.grace)
        self.watchdog.cover(2 * seconds)
        try:
            with self.signals.closing(seconds):
                act()
        except JobTimedOut:
            log.error("%s did not close in %g s: the worker ends without it", what, seconds)  # noqa: TRY400 (one line)
        except Interruption:
            again = "had not closed when the worker was asked again to stop: it ends without it"
            log.error("%s %s", what, again)  # noqa: TRY400 (one line)
        finally:
            self.watchdog.cancel()

    # -- waiting ----------------------------------------------------------------------------------

    def drain_signals(self) -> None:
        """From now on a signal ends the wait that follows."""
        self.signals.drain()

    def sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        """Waits for a signal, the end of a job in a slot, or a job of these queues."""
        if queues:
            self.connection.backend.wait(queues, seconds, self.signals.fileno())
        else:
            self.signals.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Waits for a signal."""
        self.signals.wait(seconds)

    # -- what a life needs ------------------------------------------------------------------------

    def perform(self, attempt: Attempt, _: needs.Run) -> Report:
        error: BaseException | None
        began = time.thread_time()
        try:
            error = self._called(attempt)
        except Interruption as late:  # an interruption that came while the attempt was ending
            attempt.interrupts.not_running()
            error = None if attempt.is_handled else late
        attempt.processor = time.thread_time() - began
        if time.monotonic() - attempt.began > memory.BRIEF:
            attempt.memory = memory.peak.raised()
        return self.reported(attempt, error)

    def reported(self, attempt: Attempt, error: BaseException | None) -> Report:
        """Reports a handler that raised `error`, or that an interruption was to end."""
        if process.own.pid != self.pid:
            self.end_fork()
        ended_by = attempt.ended_by = attempt.interrupts.fired
        if isinstance(error, BaseExceptionGroup):
            error = out_of_group(error)
        if ended_by is not None and not attempt.is_handled:
            error = ended_by  # even if the job swallowed it
        if error is None and attempt.result is None:
            return NOTHING
        if error is not None and attempt.job.began_too_early:
            early = "its transaction was older than its start, which is waited for now"
            error = JobGivenBack(early)
        return Report(error, attempt.result)

    def _called(self, attempt: Attempt) -> BaseException | None:
        """Calls the handler under its timeout; returns what it raised."""
        try:
            instance = attempt.made()
            attempt.result = execution.perform(
                instance, self.middleware, self.hooks, bare=attempt.is_bare
            )
            if pusher.own.tasks_open or pusher.own.elsewhere:
                pusher.wait()  # what its threads have dispatched comes before its end
            if attempt.has_succeeded():
                execution.call_hook(instance, "succeeded", hooks=self.hooks)
        except BaseException as error:  # noqa: BLE001 (whatever a job raises is its outcome)
            return None if attempt.is_handled else error
        finally:
            attempt.interrupts.not_running()
        return None

    def end_fork(self) -> None:
        """Ends this process, a fork that a job has made and that returned from it.

        It has none of the worker's threads, and its job is the worker's to settle. It pushes its
        dispatches first.
        """
        with suppress(Exception):
            pusher.wait(everything=True)
        words = f"qframe: a fork of worker {self.pid} came back from its job: it is ended\n"
        with suppress(OSError):
            os.write(_STDERR, words.encode())
        os._exit(FORKED)

    def settle(self, attempt: Attempt, settle: needs.Settle) -> None:
        """Ends a job, now or with the next request. Raises `SettleError`, `BackendUnavailable`."""
        job, end = attempt.job, settle.end
        if end.state is State.COMPLETE:
            if job.features:  # the backend need not be asked otherwise
                self.watchdog.spare()
            self.settler.defer(job, end)
            return
        self.watchdog.spare()
        if end.state is State.FAILED and not job.reservation.started:
            self.settler.flush()  # its `failed` may take long
        job.settle(end)

    def call_failed(self, attempt: Attempt, need: needs.CallFailed) -> None:
        """Calls the job's `failed`, if the job can be made."""
        instance = attempt.for_hooks()
        if instance is not None:
            timeout = self.options.timeout
            self.watch(timeout + self.options.grace if timeout else 0)
            execution.call_hook(instance, "failed", need.verdict.end.error, hooks=self.hooks)

    # -- jobs that may run only so many at once ----------------------------------------------------

    def start(self, attempt: Attempt, _: needs.Begin) -> bool:
        """Starts a held job; false if it is no longer ours, or was given back to wait."""
        limits = () if self.concurrency is None else self.limits_of(attempt)
        self.watchdog.spare()
        if not limits:
            started = self.settler.start(attempt.job)
            if completing.waits.get(attempt.name, True):
                return started and self._is_start_confirmed(attempt)
            return started
        for _try in range(_TRIES):
            if not self.admits(attempt, limits):
                return False
            if self.settler.start(attempt.job, wait=True):
                return True
            for job, result in self.settler.refused:
                self.was_refused(job, result)
            if attempt.job.is_settled:
                return False
        self.put_off(attempt.job, limits[0])
        return False

    def _is_start_confirmed(self, attempt: Attempt) -> bool:
        """Waits for the reply to a start, if the job may be completed within a transaction."""
        if self.sees_start(attempt):
            with suppress(BackendUnavailable):  # resent with the next request
                self.connection.backend.read_replies()
        return not attempt.job.is_lost

    def sees_start(self, attempt: Attempt) -> bool:
        """Whether the start must be confirmed before the handler is called; notes that."""
        found = (
            completing.waits.get(attempt.name, True)
            and Capability.WITHIN in self.connection.capabilities
        )
        attempt.job.start_confirmed = found
        return found

    def limits_of(self, attempt: Attempt) -> Sequence[ConcurrencyLimit]:
        """Returns the limits over all workers that an attempt keeps to."""
        concurrency, job_class = self.concurrency, attempt.job_class
        if concurrency is None or (
            job_class is not None and job_class.concurrency is None and not concurrency.are_over_all
        ):
            return ()
        return concurrency.of(attempt.job, attempt.name, attempt.job_class)

    def admits(self, attempt: Attempt, limits: Sequence[ConcurrencyLimit]) -> bool:
        """Whether a job may start, as far as is known; otherwise gives it back to wait."""
        assert self.concurrency is not None  # noqa: S101 (there are limits)
        full = self.concurrency.slot_leases.pick(attempt.job, limits)
        if full is not None:
            self.put_off(attempt.job, full)
        return full is None

    def put_off(self, job: ReservedJob, full: ConcurrencyLimit) -> None:
        """Gives back, uncounted, a job for which this limit has no slot lease."""
        assert self.concurrency is not None  # noqa: S101 (as above)
        seconds = self.concurrency.delay(full)
        log.debug("%s %s waits: the %s is full", job.name, job.uuid, full.shown)
        with suppress(SettleError):
            self.settler.give_back(job, End(State.WAITING, seconds))

    def was_refused(self, job: ReservedJob, result: Result) -> None:
        """Handles a start refused because another job has the slot lease.

        If the backend applies a step in parts, the job may count as started: then it is given back.
        """
        full = (
            None if self.concurrency is None else self.concurrency.slot_leases.refused(job, result)
        )
        if full is None:
            job.mark_lost()
        elif job.reservation.started:
            self.put_off(job, full)
