"""Runner and Attempt: what runs one reserved job, from before its start to its one end.

An attempt knows its job and no other; the runner is what all attempts of a worker share.
"""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakSet

from qframe import events
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.contracts.step import Outcome as StepOutcome
from qframe.contracts.step import Result
from qframe.dispatch import pusher
from qframe.drivers import process
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    CannotDecrypt,
    Interruption,
    InvalidArguments,
    InvalidPayload,
    JobCancelled,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    NotCommitted,
    SettleError,
    UnknownJob,
)
from qframe.features.base import End
from qframe.features.reserved import PATIENCE, ReservedJob
from qframe.jobs import completing, current, execution
from qframe.jobs.definition import JobDefinition
from qframe.jobs.registry import Registry
from qframe.jobs.tracing import active
from qframe.metrics.by_tag import TagRecorder
from qframe.metrics.recorder import Recorder
from qframe.payload import envelope
from qframe.worker import outcome as outcomes
from qframe.worker.bounds import Bounds
from qframe.worker.cancellation import Cancellation
from qframe.worker.exchange import Exchange
from qframe.worker.leases import LeaseKeeper
from qframe.worker.limits import Facts, Limits
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import Exhausted, Expired, Full, Outcome, Unrunnable, Verdict
from qframe.worker.permits import Bound
from qframe.worker.pool.scoreboard import JobScore, WorkerScore
from qframe.worker.signals import Signals
from qframe.worker.watchdog import Watchdog

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.1
_TRIES = 5
"""So often another permit is tried where somebody else was first."""
_TIDY_EVERY = 1.0
_MOMENT = 1.0
_GLANCE = 0.02
"""Seconds a pool is given to note how a worker ended, and between two looks."""
_STDERR = 2
FORKED = 70
"""Exit code of a fork of the worker that came back from its job."""


class Interrupts(Protocol):
    """What may end an attempt from outside, while its handler runs."""

    fired: Interruption | None
    """What has, also when the job swallowed it."""

    def running(self, timeout: float) -> None:
        """Say that the handler runs: it may be ended, after `timeout` seconds at the latest."""

    def change_timeout(self, timeout: float, passed: float) -> None:
        """Give it another timeout, of which `passed` seconds are over."""

    def not_running(self) -> None:
        """Say that it has ended: nothing is raised any more."""


class Report(NamedTuple):
    """How the handler of an attempt ended."""

    error: BaseException | None = None
    result: Any = None
    """What `handle` gave."""


_NOTHING = Report()


class Runner:
    """What the attempts of a worker share. `run` brings one reserved job to its end."""

    attempt: ClassVar[type[Attempt]]
    """What runs a job."""

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        options: WorkerOptions,
        signals: Signals,
        unknown_delays: Sequence[float] = (),
        *,
        heartbeat: Heartbeat | None = None,
        scoreboard: WorkerScore | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.connection = connection
        self.registry = registry
        self.options = options
        self.signals = signals
        self.unknown_delays = unknown_delays
        """Seconds after which a job that is unknown here is tried again."""
        self.scores: Sequence[JobScore] = () if scoreboard is None else scoreboard.jobs
        """Where the pool reads what runs in each slot."""
        self.pid = process.pid()
        self.no_limits = Limits(None, {}, options)
        self.middleware = connection.middleware()
        self.recorder = Recorder()
        self.by_tag: TagRecorder | None = None
        self.running: dict[ReservedJob, Attempt] = {}
        """The attempts whose handlers run."""
        self.exchange = self._exchange()
        self.cancellation = Cancellation(connection.backend, self._cancel)
        self.leases = LeaseKeeper(
            connection.retry_after, self.exchange.confirm, self.cancellation.look, self._found_lost
        )
        # The process of an isolated job is ended by the worker's, which needs no watchdog.
        self.watchdog = Watchdog(enabled=signals.on_main_thread and not options.isolate)
        self._reported: WeakSet[ReservedJob] = WeakSet()
        self.heartbeat = heartbeat or Heartbeat(threaded=False)
        self.heartbeat.add(self.leases.every, self.leases.look)
        self.heartbeat.add(_TIDY_EVERY, self.cancellation.tidy)
        self.bounds = bounds
        """How many jobs of a queue or class may run at once; None: nobody asks."""
        if bounds is not None:
            self.heartbeat.add(bounds.permits.every, bounds.permits.beat)

    def _exchange(self) -> Exchange:
        return Exchange(self.connection, self._ran_twice)

    def run(self, job: ReservedJob) -> Attempt:
        """Bring a held job to its outcome, and give the attempt that did.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        attempt = self.attempt(self, job)
        before = current.running.set(job)
        try:
            # What a job, or a listener, sets in a context variable is of this attempt alone.
            attempt.outcome = contextvars.copy_context().run(attempt.run)
        finally:
            self.leases.drop(job)
            self.let_go(job)
            self.signals.look_after(job)
            current.running.reset(before)
        if attempt.outcome is not Outcome.LOST:
            self.count(attempt)
        return attempt

    def count(self, attempt: Attempt) -> None:
        """Count how an attempt ended, and how long it ran."""
        timed_out = attempt.ended_by is not None and isinstance(attempt.ended_by, JobTimedOut)
        self.recorder.ended(
            attempt.name, attempt.job.queue, attempt.outcome, attempt.ran, timed_out=timed_out
        )
        if self.by_tag is not None:
            job = attempt.job
            with suppress(InvalidPayload):
                self.by_tag.ended(
                    job.payload, job.queue, attempt.outcome, attempt.ran, timed_out=timed_out
                )

    def at_rest(self) -> None:
        """No job follows at once: neither stage of a timeout has anything to end."""
        self.watchdog.cancel()
        self.signals.at_rest()

    def pause(self, seconds: float) -> None:
        """Let some time pass before a job is started."""
        time.sleep(seconds)

    def close(self) -> None:
        """Run no more."""

    def settled(self, job: ReservedJob, end: End, name: str = "") -> bool:
        """Settle, or see to it that the next exchange does.

        Tries again while the backend does not answer and the lease may still hold.
        False, after the event `LeaseLost`, when the job was no longer ours.
        """
        give_up, pause = 0.0, _FIRST_PAUSE
        while True:
            try:
                self.say(job, end)
            except SettleError as error:
                log.warning("%s", error)
                self.lost(job, name)
                return False
            except BackendUnavailable as error:
                give_up = give_up or time.monotonic() + self.connection.retry_after
                if time.monotonic() + pause > give_up:
                    raise
                if pause == _FIRST_PAUSE:
                    log.warning("%s cannot be settled yet: %s", job.name, error)
                self.rest(pause)
                pause = min(2.0, pause * 2)
            except Exception:
                # A failed store, or a driver, with a bug of its own must not end the worker.
                log.exception("%s cannot be settled; its lease brings it back", job.name)
                return False
            else:
                return True

    def say(self, job: ReservedJob, end: End) -> None:
        """End a job, now or with the next exchange; raises `SettleError`, `BackendUnavailable`."""
        if job.features or end.state is not State.COMPLETE:  # else the backend is not asked
            self.watchdog.spare()
        if end.state is State.COMPLETE:
            self.exchange.defer(job, end)
        else:
            job.settle(end)

    def rest(self, seconds: float) -> None:
        """Let some time pass before a job's end is tried again."""
        self.signals.wait(seconds)

    # -- jobs that may run only so many at once ----------------------------------------------------

    def start(self, attempt: Attempt) -> bool:
        """Start a held job; false where it is no longer ours, or was given back to wait."""
        bounds = self.bounds_of(attempt)
        if not bounds:
            started = self.exchange.start(attempt.job)
            if completing.waits.get(attempt.name, True):
                return started and self._heard_start(attempt)
            return started
        for _ in range(_TRIES):
            if not self.admits(attempt, bounds):
                return False
            result = self.exchange.start_now(attempt.job)
            if result.outcome is not StepOutcome.REFUSED:
                return result.applied
            self.was_refused(attempt.job, result)
            if attempt.job.is_settled:
                return False
        self.put_off(attempt.job, bounds[0])
        return False

    def _heard_start(self, attempt: Attempt) -> bool:
        """Wait for the answer to a start, where the job may be completed within a transaction."""
        if self.sees_start(attempt):
            with suppress(BackendUnavailable):  # said again with what comes next
                self.connection.backend.hear()
        return not attempt.job.is_lost

    def sees_start(self, attempt: Attempt) -> bool:
        """Whether the start of a job is to be there before its handler is called; notes that."""
        found = (
            completing.may_complete(attempt.name, attempt.job_class)
            and Capability.WITHIN in self.connection.capabilities
        )
        attempt.job.start_heard = found
        return found

    def bounds_of(self, attempt: Attempt) -> Sequence[Bound]:
        """Give the bounds over all workers that an attempt is to keep to."""
        bounds, job_class = self.bounds, attempt.job_class
        if bounds is None or (
            job_class is not None and job_class.concurrency is None and not bounds.are_over_all
        ):
            return ()
        return bounds.of(attempt.job, attempt.name_sent, attempt.job_class)

    def admits(self, attempt: Attempt, bounds: Sequence[Bound]) -> bool:
        """Whether a job may be started, as far as is known; else it is given back to wait."""
        assert self.bounds is not None  # noqa: S101 (there are bounds)
        full = self.bounds.permits.pick(attempt.job, bounds)
        if full is not None:
            self.put_off(attempt.job, full)
        return full is None

    def put_off(self, job: ReservedJob, full: Bound) -> None:
        """Give back a job for which there is no permit of this bound, uncounted."""
        assert self.bounds is not None  # noqa: S101 (as above)
        seconds = self.bounds.delay(full)
        log.debug("%s %s waits: the %s is full", job.name, job.uuid, full.shown)
        with suppress(SettleError):
            self.exchange.give_back(job, End(State.WAITING, seconds))

    def was_refused(self, job: ReservedJob, result: Result) -> None:
        """Hear that a start was refused, for a permit that somebody else has.

        Where a step is made in parts the job may count as started: then it is given back.
        """
        full = None if self.bounds is None else self.bounds.permits.refused(job, result)
        if full is None:
            job.mark_lost()
        elif job.reservation.started:
            self.put_off(job, full)

    def let_go(self, job: ReservedJob) -> None:
        """Hear that a job is over, whatever became of it."""
        if self.bounds is not None and job.features:  # permits are among these
            self.bounds.permits.over(job)

    # -- leases that were lost --------------------------------------------------------------------

    def lost(self, job: ReservedJob, name: str, *, was_done: bool = False) -> None:
        """Count a job whose lease was lost, and tell the listeners, once."""
        if job not in self._reported:
            self._reported.add(job)
            self.recorder.lost(name, job.queue, was_done=was_done)
            events.fire(events.LeaseLost, job)

    def _ran_twice(self, job: ReservedJob) -> None:
        """Hear from the exchange that a job which was done could not be deleted."""
        log.warning(
            "%s %s was done, but %s: in the first case it runs twice",
            job.name,
            job.uuid,
            LOST_LEASE,
        )
        name = envelope.job_name(job.payload)
        known = self.registry.known(name) is not None
        self.lost(job, name if known else "", was_done=True)

    def _found_lost(self, job: ReservedJob) -> None:
        """Hear from the heartbeat, while a job runs, that its lease was lost."""
        attempt = self.running.get(job)
        self.lost(job, "" if attempt is None else attempt.name)
        if getattr(self.connection.settings, "on_lost_connection", "") == "interrupt":
            self._end(job, JobInterrupted("its lease was lost, with the connection that held it"))

    def _cancel(self, job: ReservedJob) -> None:
        self._end(job, JobCancelled("cancelled while it ran"))

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        """End a job, from any thread, if it still runs."""
        self.signals.end(error, lambda: job in self.running)


class Attempt:
    """One reserved job: started, run in this process, and settled."""

    name = ""
    """The name of the class as the payload has it, "" where it has none: for the counters."""
    instance: JobDefinition | None = None
    report = _NOTHING
    error: BaseException | None = None
    """What the job raised, or was failed with."""
    ended_by: Interruption | None = None
    """What ended the job from outside; its process is not to be trusted any more."""
    outcome = Outcome.LOST
    ran: float | None = None
    """The seconds for which the handler ran, if it did."""
    _name = ""
    _handled = False
    _handler_began = 0.0
    """When the timeout of a job whose class has to be imported began to run."""

    def __init__(
        self, runner: Runner, job: ReservedJob, job_class: type[JobDefinition] | None = None
    ) -> None:
        self.runner = runner
        self.job = job
        self.job_class = job_class
        self.limits = runner.no_limits
        self.interrupts: Interrupts = runner.signals
        self.scoreboard = runner.scores[0] if runner.scores else None
        self.began = time.monotonic()

    def run(self) -> Outcome:
        """Bring the job to its outcome."""
        verdict = self._unread() or self._refused()
        if verdict is not None:
            if verdict.outcome is Outcome.FAILED:  # nobody knows how long its `failed` takes
                self.runner.exchange.flush()
            return self._settle(verdict, 0.0)
        self.runner.watchdog.spare()
        if not self.runner.start(self):
            # Only held, and so not counted: another worker has it now, or will, as it should.
            job = self.job
            if job.is_lost:
                log.debug("%s %s was held too long: another worker has it", job.name, job.uuid)
            return Outcome.LOST
        return self._started()

    # -- before its start -------------------------------------------------------------------------

    @property
    def name_sent(self) -> str:
        """The name of the class as the payload has it."""
        return self._name

    def _unread(self) -> Verdict | None:
        """Fail a job that is none, or whose signature is not right; find the class of any other."""
        job = self.job
        if job.refusal is not None:
            return outcomes.failed(job.refusal)
        try:
            self._name = envelope.job_name(job.payload)
        except InvalidPayload as error:
            return outcomes.failed(error)
        self.job_class = self.job_class or self.runner.registry.known(self._name)
        self.limits = self._limits(self.job_class)
        self.name = self._name
        return None

    def _limits(self, declared: type[JobDefinition] | None) -> Limits:
        return Limits(declared, self.job.payload, self.runner.options)

    def _refused(self) -> Verdict | None:
        """Say why the job need not, or must not, be run; None where it is to be."""
        job = self.job
        reason = job.needless() if job.features else None
        if reason is not None:
            return outcomes.skipped(reason)
        if job.reservation.worker_died and self.scoreboard is not None:
            self._learn_more()
        if self.job_class is None or not (job.attempts() or self.limits.end_at_a_moment):
            return None
        return outcomes.refuse(Facts.of(job), self.limits)

    def _learn_more(self) -> None:
        """Wait a moment for the pool to note how the last attempt ended.

        Where a message comes back as soon as its worker has died, that may be before the note.
        """
        job = self.job
        until = time.monotonic() + _MOMENT
        with suppress(SettleError):
            while job.attempts() and not _is_told(job) and time.monotonic() < until:
                self.runner.pause(_GLANCE)
                job.recall()

    # -- while it runs ----------------------------------------------------------------------------

    def _started(self) -> Outcome:
        """Run the handler and settle the job."""
        runner, job = self.runner, self.job
        runner.running[job] = self
        try:
            self.tell_processing()
            report = self.perform()
            self.has_ended()
            if self.scoreboard is not None:
                self.scoreboard.settling()
            self.ran = seconds = time.monotonic() - self.began
            outcome = self.outcome = self._settle(self.conclude(report), seconds)
            if outcome is Outcome.CANCELLED:
                runner.cancellation.granted(job)
        finally:
            self.over()
        events.fire(events.JobAttempted, job, report.error)
        return outcome

    def over(self) -> None:
        """Take note that the attempt has ended."""
        runner, job = self.runner, self.job
        runner.running.pop(job, None)
        runner.cancellation.ended(job)
        if self.scoreboard is not None:
            self.scoreboard.settled(deferred=runner.exchange.defers(job))
        self.traced()

    def traced(self) -> None:
        """End what was traced of the attempt."""
        if active.tracing is not None:
            active.tracing.attempted(self.job, self.outcome, self.report.error or self.error)

    @property
    def permits(self) -> Sequence[tuple[str, str]]:
        """The keys of the permits that the job has, and what they hold."""
        bounds = self.runner.bounds
        return () if bounds is None else bounds.permits.of(self.job)

    def has_ended(self) -> None:
        """Hear that the handler has: its end gives its permits back."""
        if self.runner.bounds is not None and self.job.features:  # permits are among these
            self.runner.bounds.permits.ended(self.job)

    def tell_processing(self) -> None:
        """Tell the listeners that an attempt starts."""
        self.count_start()
        if active.tracing is not None:
            active.tracing.processing(self.runner.connection, self.job, here=True)
        events.fire(events.JobProcessing, self.job)

    def count_start(self) -> None:
        """Count that an attempt starts; of the first one, how long the job has waited."""
        job = self.job
        due = envelope.due(job.payload) if job.attempts() == 1 else None
        self.runner.recorder.started(self.name, job.queue, due)
        if self.runner.by_tag is not None:
            self.runner.by_tag.started(job.payload, job.queue, due)

    def perform(self) -> Report:
        """Run the handler, here, and say how it ended. It settles nothing."""
        result = None
        error: BaseException | None
        try:
            error, result = self._perform()
        except Interruption as late:  # it came while the attempt was ending
            self.interrupts.not_running()
            error = None if self._handled else late
        if process.pid() != self.runner.pid:
            _end_fork(self.runner)
        if self.interrupts.fired is not None or self.job.is_completing:
            error = self._ended_by(error)
        if error is not None and self.job.began_too_early:
            error = JobGivenBack(
                "its transaction was older than its start, which is waited for now"
            )
        return Report(error, result)

    def _ended_by(self, error: BaseException | None) -> BaseException | None:
        """Give what ended the handler, where it may not be what it raised."""
        self.ended_by = self.interrupts.fired
        if self.ended_by is not None and not self._handled:
            error = self.ended_by  # also where the job swallowed it
        if self.job.is_completing:
            self._learn_completion(error)
        return error

    def _learn_completion(self, error: BaseException | None, patience: float = PATIENCE) -> None:
        """Learn whether a job that raised had been completed, and committed that, before.

        What it raised holds what it had open, a session perhaps, until that is let go.
        """

        def let_go() -> None:
            traceback.clear_frames(None if error is None else error.__traceback__)
            gc.collect()

        try:
            self.job.learn_completion(let_go, patience)
        except (NotCommitted, SettleError, BackendUnavailable) as found:
            log.warning("%s", found)

    def _perform(self) -> tuple[BaseException | None, Any]:
        """Run the handler under its timeout; gives what it raised, or what it gave."""
        interrupts, result = self.interrupts, None
        try:
            self.cover(self.limits.timeout)
            interrupts.running(self.limits.timeout)
            self.instance = self._made()
            result = self.handle(self.instance)
            pusher.wait()  # what its threads have dispatched and dropped comes before its end
            if self._has_succeeded():
                execution.tell(self.instance, "succeeded")
        except BaseException as error:  # noqa: BLE001 (whatever a job raises is its outcome)
            return (None if self._handled else error), result
        finally:
            interrupts.not_running()
        return None, result

    def _has_succeeded(self) -> bool:
        """Take note that the handler has returned; says whether the job is to hear that it did."""
        completed = self.job.is_completing and self.job.learn_completion(gc.collect)
        self._handled = self.interrupts.fired is None  # a job that swallowed its end was not done
        return self._handled and (completed or not self.job.is_settled)

    def handle(self, instance: JobDefinition) -> Any:  # noqa: ANN401 (what the job gave)
        """Call the job."""
        return execution.perform(instance, self.runner.middleware)

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from now; 0 is no limit."""
        runner = self.runner
        limit = timeout + runner.options.grace if timeout else 0
        runner.watchdog.cover(limit)
        runner.leases.keep(self.job, limit)
        if self.scoreboard is not None:
            self.scoreboard.running(self.job.reservation.fence, limit, self.permits)

    def _made(self) -> JobDefinition:
        """Find the class, importing it if it must be, and make the job from its data."""
        try:
            if self.job_class is None:
                self._handler_began = time.monotonic()
                self.job_class = self.runner.registry.find(self._name)
                self._now_known(self.job_class)
            instance = self.job_class.from_data(self.job.data_for(self.job_class))
        except (UnknownJob, InvalidArguments, CannotDecrypt) as error:
            raise Unrunnable from error
        object.__setattr__(instance, "_reserved", self.job)  # also on a frozen job
        return instance

    def _now_known(self, job_class: type[JobDefinition]) -> None:
        """Apply the limits of a class that had to be imported first."""
        self.name = self._name
        self.limits = self._limits(job_class)
        before = Facts.of(self.job).before()
        if self.limits.forbids(before):
            raise Exhausted
        if self.limits.expired(before):
            raise Expired("it had expired")
        self.admitted(job_class)
        self.cover(self.limits.timeout)
        passed = time.monotonic() - self._handler_began
        self.interrupts.change_timeout(self.limits.timeout, passed)

    def admitted(self, job_class: type[JobDefinition]) -> None:
        """Make sure that one more of a class may run that was not known before; raises `Full`."""
        bounds, most = self.runner.bounds, job_class.concurrency
        if bounds is None or most is None:
            return
        name = job_class.own_name()
        seconds = bounds.admit(self.job, self._name, name, most)
        if seconds is not None:
            raise Full(name, seconds)

    # -- what becomes of it -----------------------------------------------------------------------

    def conclude(self, report: Report) -> Verdict:
        """Say what is to become of the job, whose attempt has ended."""
        job, error = self.job, report.error
        self.report, self.error = report, error
        verdict = self.judge(report)
        outcome, end = verdict
        if end.refused:
            log.warning(
                "%s; tried again in %g s, it may be newer than this worker", end.remark, end.delay
            )
        elif error is not None and outcome in {Outcome.DONE, Outcome.RELEASED}:
            log.error("%s had settled itself and then raised", job.name, exc_info=error)
        return verdict

    def judge(self, report: Report) -> Verdict:
        """Tell the listeners what it raised, and say what is to become of the job."""
        job, error = self.job, report.error
        if error is not None and (job.is_settled or not outcomes.is_early(error)):
            events.fire(events.JobExceptionOccurred, job, error)  # a listener may settle the job
        if job.is_settled:
            return self._chosen()
        if isinstance(error, JobTimedOut):
            events.fire(events.JobTimedOut, job, self.limits.timeout)
        return self.decide(report)

    def decide(self, report: Report) -> Verdict:
        """Say what is to become of a job that has not settled itself."""
        if report.error is None:
            return outcomes.done(report.result)
        return outcomes.decide(
            report.error,
            Facts.of(self.job),
            self.limits,
            self.backoff,
            self.runner.unknown_delays,
        )

    def _chosen(self) -> Verdict:
        """Give the outcome that the job, or a listener, chose."""
        job = self.job
        if job.is_lost:
            return outcomes.LOST
        if job.failed_with is not None:
            return outcomes.failed(job.failed_with)
        if job.is_released:
            return Verdict(Outcome.RELEASED, End(State.RELEASED))
        return outcomes.done(None)  # deleted or buried

    def backoff(self, failures: int, error: BaseException) -> Sequence[float] | None:
        """Ask the job's class for the seconds before its next attempt."""
        if self.instance is None:
            return None
        try:
            return self.instance.backoff_after(failures, error)
        except Exception:
            log.exception("%s.backoff raised; the worker's backoff is used", self.job.name)
            return None

    def _settle(self, verdict: Verdict, seconds: float) -> Outcome:
        """Carry a verdict out, and tell of it."""
        outcome, end = verdict
        job = self.job
        if outcome is Outcome.LOST:
            self.runner.lost(job, self.name)
            return outcome
        if job.is_settled:
            pass  # by itself, or by a listener
        elif not self.runner.settled(job, end, self.name):
            return Outcome.LOST
        self._tell(outcome, end, seconds)
        return outcome

    def _tell(self, outcome: Outcome, end: End, seconds: float) -> None:
        """Tell the listeners, and the job, what became of it."""
        job, error = self.job, end.error
        match outcome:
            case Outcome.DONE:
                events.fire(events.JobProcessed, job, seconds)
            case Outcome.SKIPPED:
                events.fire(events.JobSkipped, job, end.remark)
            case Outcome.GIVEN_BACK:
                events.fire(events.JobGivenBack, job, end.remark)
            case Outcome.CANCELLED:
                events.fire(events.JobCancelled, job, end.remark)
            case Outcome.FAILED if isinstance(error, BaseException):
                self._failed(error, seconds if end.ran else 0.0)
            case Outcome.RELEASED:
                events.fire(events.JobReleased, job, seconds)
            case Outcome.RETRIED:
                events.fire(events.JobReleasedAfterException, job, error, end.delay, seconds)

    def _failed(self, error: BaseException, seconds: float) -> None:
        self.error = error
        if self.job.refusal is None:
            self.tell_failed(error)
        events.fire(events.JobFailed, self.job, error, seconds)

    def tell_failed(self, error: BaseException) -> None:
        """Call the job's `failed`, where it can be made."""
        instance = self.instance or self._anew()
        if instance is not None:
            timeout = self.runner.options.timeout
            self.runner.watchdog.cover(timeout + self.runner.options.grace if timeout else 0)
            execution.tell(instance, "failed", error)

    def _anew(self) -> JobDefinition | None:
        """Make a job that is failed without having been run."""
        try:
            job_class = self.job_class or self.runner.registry.known(self._name)
            instance = job_class.from_data(self.job.data_for(job_class)) if job_class else None
        except Exception:  # noqa: BLE001 (its data does not fit, or is none: there is nobody to tell)
            return None
        if instance is not None:
            object.__setattr__(instance, "_reserved", self.job)
        return instance


Runner.attempt = Attempt


def _is_told(job: ReservedJob) -> bool:
    ran = job.history.attempts
    return bool(ran) and ran[-1].number == job.attempts() and bool(ran[-1].ended)


def _end_fork(runner: Runner) -> None:
    """End this process, a fork that a job has made and let come back.

    It has none of the worker's threads, and its job is the worker's to settle. What it dispatched
    is pushed before.
    """
    with suppress(Exception):
        pusher.wait(everything=True)
    words = f"qframe: a fork of worker {runner.pid} came back from its job: it is ended\n"
    with suppress(OSError):
        os.write(_STDERR, words.encode())
    os._exit(FORKED)
