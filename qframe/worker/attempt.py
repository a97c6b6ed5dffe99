"""Attempt: the life of one reserved job, as a generator of what it needs.

It knows its job and no thread, event loop, process or signal. An executor answers its needs: in
line (`runner`), on an event loop and in threads (`slots`), in a process of its own (`isolation`).
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from gc import collect
from typing import Any

from qframe import events
from qframe.exceptions import (
    BackendUnavailable,
    CannotDecrypt,
    Interruption,
    InvalidArguments,
    InvalidPayload,
    JobTimedOut,
    NotCommitted,
    SettleError,
    UnknownJob,
)
from qframe.features.base import End
from qframe.features.reserved import PATIENCE, ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.tracing import active
from qframe.payload import envelope
from qframe.worker import needs
from qframe.worker import outcome as outcomes
from qframe.worker.limits import Facts, Limits
from qframe.worker.needs import NOTHING, Life, Report
from qframe.worker.outcome import Exhausted, Expired, Full, Outcome, Unrunnable, Verdict
from qframe.worker.shared import Interrupts, Shared

log = logging.getLogger("qframe")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds, doubled each time, before a job's end is tried again that could not be applied."""
_MOMENT = 1.0
_GLANCE = 0.02
"""Seconds a pool is given to note how a worker ended, and between two looks."""


class Attempt:
    """One reserved job, from before its start to its one end."""

    name = ""
    """The name of the class as the payload has it, "" where it has none: for the counters."""
    instance: JobDefinition | None = None
    result: Any = None
    """What `handle` gave, also where the attempt ended by something else behind it."""
    report = NOTHING
    error: BaseException | None = None
    """What the job raised, or was failed with."""
    ended_by: Interruption | None = None
    """What ended the job from outside; its process is not to be trusted any more."""
    outcome = Outcome.LOST
    ran: float | None = None
    """The seconds for which the handler ran, if it did."""
    is_handled = False
    """Whether the handler returned, and nothing was to end it before."""
    is_forced = False
    """Whether the job is started whatever speaks against it."""
    is_bare = False
    """Whether no middleware is called."""
    _handler_began = 0.0
    """When the timeout of a job whose class has to be imported began to run."""

    def __init__(
        self, shared: Shared, job: ReservedJob, job_class: type[JobDefinition] | None = None
    ) -> None:
        self.shared = shared
        self.job = job
        self.job_class = job_class
        self.limits = shared.no_limits
        self.interrupts: Interrupts = shared.signals
        self.scoreboard = shared.scores[0] if shared.scores else None
        self.began = time.monotonic()

    def life(self) -> Life[Outcome]:
        """Bring the job to its outcome.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        shared, job = self.shared, self.job
        verdict = self._unread()
        if verdict is None and not self.is_forced:
            if job.reservation.worker_died and self.scoreboard is not None:
                yield from self._learn_more()
                if job.is_lost:
                    return Outcome.LOST
            verdict = self._refused()
        if verdict is not None:
            return (yield from self._brought_about(verdict))
        if not (yield needs.BEGIN):
            # Only held, and so not counted: another worker has it now, or will, as it should.
            if job.is_lost:
                log.debug("%s %s was held too long: another worker has it", job.name, job.uuid)
            return Outcome.LOST
        shared.running[job] = self
        try:
            self._tell_processing()
            report = yield needs.RUN
            if self.ran is None:
                self.has_ended()
            if job.is_completing:
                yield needs.Learn(report.error)
            self.report = report
            if report is NOTHING and not job.is_settled:
                verdict = outcomes.DONE
            else:
                verdict = yield from self.judged(report)
            outcome = self.outcome = yield from self._brought_about(verdict)
        finally:
            self._over()
        events.fire(events.JobAttempted, job, self.report.error)
        return outcome

    # -- before its start -------------------------------------------------------------------------

    def _unread(self) -> Verdict | None:
        """Fail a job that is none, or whose signature is not right; find the class of any other."""
        job = self.job
        if job.refusal is not None:
            return outcomes.failed(job.refusal)
        try:
            self.name = envelope.job_name(job.payload)
        except InvalidPayload as error:
            return outcomes.failed(error)
        self.job_class = self.job_class or self.shared.registry.known(self.name)
        self.limits = self.limits_of(self.job_class)
        return None

    def _refused(self) -> Verdict | None:
        """Say why the job need not, or must not, be run; None where it is to be."""
        job = self.job
        reason = job.needless() if job.features else None
        if reason is not None:
            return outcomes.skipped(reason)
        if self.job_class is None or not (job.attempts() or self.limits.end_at_a_moment):
            return None
        return outcomes.refuse(Facts.of(job), self.limits)

    def limits_of(self, declared: type[JobDefinition] | None) -> Limits:
        """Give the limits of the job if this is its class."""
        return Limits(declared, self.job.payload, self.shared.options)

    def _learn_more(self) -> Life[None]:
        """Wait a moment for the pool to note how the last attempt ended.

        Where a message comes back as soon as its worker has died, that may be before the note.
        """
        job = self.job
        until = time.monotonic() + _MOMENT
        with suppress(SettleError):
            while job.attempts() and not _is_noted(job) and time.monotonic() < until:
                yield needs.Wait(_GLANCE)
                job.recall()

    # -- while it runs ----------------------------------------------------------------------------

    def _tell_processing(self) -> None:
        """Count that an attempt starts; of the first one, how long the job has waited."""
        shared, job = self.shared, self.job
        due = envelope.due(job.payload) if job.attempts() == 1 else None
        shared.recorder.started(self.name, job.queue, due)
        if shared.by_tag is not None:
            shared.by_tag.started(job.payload, job.queue, due)
        if active.tracing is not None:
            active.tracing.processing(shared.connection, job, here=shared.runs_here)
        if shared.runs_here:
            events.fire(events.JobProcessing, job)
        else:  # the application hears of it where its handler runs
            events.tell_own(events.JobProcessing, job)

    @property
    def permits(self) -> Sequence[tuple[str, str]]:
        """The keys of the permits that the job has, and what they hold."""
        bounds = self.shared.bounds
        return () if bounds is None else bounds.permits.of(self.job)

    def has_ended(self) -> None:
        """Note that the handler has: the job's end gives its permits back."""
        self.ran = time.monotonic() - self.began
        if self.shared.bounds is not None and self.job.features:  # permits are among these
            self.shared.bounds.permits.ended(self.job)
        if self.scoreboard is not None:
            self.scoreboard.settling()

    def _over(self) -> None:
        """Note that the attempt is over."""
        shared, job = self.shared, self.job
        shared.running.pop(job, None)
        shared.cancellation.ended(job)
        if self.scoreboard is not None:
            self.scoreboard.settled(deferred=shared.exchange.defers(job))
        if active.tracing is not None:
            active.tracing.attempted(job, self.outcome, self.report.error or self.error)

    # -- the handler, for who calls it in this process --------------------------------------------

    def made(self) -> JobDefinition:
        """Make the job, which runs from now on; its class may have to be imported first."""
        self.cover(self.limits.timeout)
        self.interrupts.running(self.limits.timeout)
        try:
            if self.job_class is None:
                self._handler_began = time.monotonic()
                self.job_class = self.shared.registry.find(self.name)
                self.now_known(self.job_class)
            instance = self.job_class.from_data(self.job.data_for(self.job_class))
        except (UnknownJob, InvalidArguments, CannotDecrypt) as error:
            raise Unrunnable from error
        object.__setattr__(instance, "_reserved", self.job)  # also on a frozen job
        self.instance = instance
        return instance

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from now; 0 is no limit."""
        shared = self.shared
        limit = timeout + shared.options.grace if timeout else 0
        shared.watch(limit)
        shared.leases.keep(self.job, limit)
        if self.scoreboard is not None:
            self.scoreboard.running(self.job.reservation.fence, limit, self.permits)

    def now_known(self, job_class: type[JobDefinition]) -> None:
        """Apply the limits of a class that had to be imported first."""
        self.limits = self.limits_of(job_class)
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
        bounds, most = self.shared.bounds, job_class.concurrency
        if bounds is None or most is None:
            return
        name = job_class.own_name()
        seconds = bounds.admit(self.job, self.name, name, most)
        if seconds is not None:
            raise Full(name, seconds)

    def has_succeeded(self) -> bool:
        """Note that the handler has returned; says whether the job is to hear that it did."""
        completed = self.job.is_completing and self.job.learn_completion(collect)
        self.is_handled = self.interrupts.fired is None  # one that swallowed its end was not done
        return self.is_handled and (completed or not self.job.is_settled)

    def learn_completion(self, error: BaseException | None, patience: float = PATIENCE) -> None:
        """Learn whether a job that raised had been completed, and committed that, before.

        What it raised holds what it had open, a session perhaps, until that is let go.
        """

        def let_go() -> None:
            traceback.clear_frames(None if error is None else error.__traceback__)
            collect()

        try:
            self.job.learn_completion(let_go, patience)
        except (NotCommitted, SettleError, BackendUnavailable) as found:
            log.warning("%s", found)

    # -- what becomes of it -----------------------------------------------------------------------

    def judged(self, report: Report) -> Life[Verdict]:
        """Say what is to become of the job, and tell the listeners what it raised."""
        job, error, intent = self.job, report.error, report.intent
        self.error = error
        if intent is not None and not (job.is_settled or (yield from self._settled(intent))):
            return outcomes.LOST
        if error is not None and (job.is_settled or not outcomes.is_early(error)):
            events.fire(events.JobExceptionOccurred, job, error)  # a listener may settle the job
        if job.is_settled:
            return self._chosen()
        if isinstance(error, JobTimedOut):
            events.fire(events.JobTimedOut, job, self.limits.timeout)
        if report.verdict is not None:
            return report.verdict
        if error is None:
            return outcomes.done(report.result)
        verdict: Verdict = yield needs.Decide(error)
        return verdict

    def _chosen(self) -> Verdict:
        """Give the outcome that the job, or a listener, chose."""
        job = self.job
        if job.is_lost:
            return outcomes.LOST
        if job.failed_with is not None:
            return outcomes.failed(job.failed_with)
        if job.is_released:
            return outcomes.RELEASED
        return outcomes.DONE  # deleted or buried

    def decide(self, error: BaseException) -> Verdict:
        """Decide on an attempt that raised, by the job's class as far as it is here."""
        delays = self.shared.unknown_delays
        return outcomes.decide(error, Facts.of(self.job), self.limits, self._backoff, delays)

    def _backoff(self, failures: int, error: BaseException) -> Sequence[float] | None:
        """Ask the job's class for the seconds before its next attempt."""
        if self.instance is None:
            return None
        try:
            return self.instance.backoff_after(failures, error)
        except Exception:
            log.exception("%s.backoff raised; the worker's backoff is used", self.job.name)
            return None

    def _brought_about(self, verdict: Verdict) -> Life[Outcome]:
        """Carry a verdict out, and tell of it."""
        outcome, end = verdict
        job = self.job
        if outcome is Outcome.LOST:
            self.shared.lost(job, self.name)
            return outcome
        if not job.is_settled:  # by itself, or by a listener
            try:
                yield needs.Settle(end)
            except Exception as error:  # noqa: BLE001 (sorted there)
                if not (yield from self._settled(end, error)):
                    return Outcome.LOST
        if outcome is Outcome.FAILED:
            self.error = end.error if isinstance(end.error, BaseException) else self.error
        if self.report.waits or (outcome is Outcome.FAILED and job.refusal is None):
            yield needs.Tell(verdict)
        if end.refused:
            again = "%s; tried again in %g s, it may be newer than this worker"
            log.warning(again, end.remark, end.delay)
        elif self.error is not None and outcome in {Outcome.DONE, Outcome.RELEASED}:
            log.error("%s had settled itself and then raised", job.name, exc_info=self.error)
        self.fire_outcome(verdict, self.ran or 0.0)
        return outcome

    def _settled(self, end: End, error: Exception | None = None) -> Life[bool]:
        """Settle the job, which ended in `error` before; false where it is not ours any more.

        Tries again while the backend does not answer and the lease may still hold.
        """
        job, pause = self.job, _FIRST_PAUSE
        give_up = time.monotonic() + self.shared.connection.retry_after
        while True:
            match error:
                case SettleError():
                    log.warning("%s", error)
                    self.shared.lost(job, self.name)
                    return False
                case BackendUnavailable():
                    if time.monotonic() + pause > give_up:
                        raise error
                    if pause == _FIRST_PAUSE:
                        log.warning("%s cannot be settled yet: %s", job.name, error)
                    yield needs.Wait(pause)
                    pause = min(_LONGEST_PAUSE, pause * 2)
                case Exception():
                    # A failed store, or a driver, with a bug of its own must not end the worker.
                    said = "%s cannot be settled; its lease brings it back"
                    log.error(said, job.name, exc_info=error)
                    return False
            try:
                yield needs.Settle(end)
            except Exception as again:  # noqa: BLE001 (sorted above)
                error = again
            else:
                return True

    def fire_outcome(self, verdict: Verdict, seconds: float) -> None:
        """Tell the listeners what became of the job."""
        job, (outcome, end) = self.job, verdict
        error = end.error
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
                events.fire(events.JobFailed, job, error, seconds if end.ran else 0.0)
            case Outcome.RELEASED:
                events.fire(events.JobReleased, job, seconds)
            case Outcome.RETRIED:
                events.fire(events.JobReleasedAfterException, job, error, end.delay, seconds)

    def for_hooks(self) -> JobDefinition | None:
        """Give the job, made anew where it has not run; None where that is not possible."""
        if self.instance is not None:
            return self.instance
        try:
            job_class = self.job_class or self.shared.registry.known(self.name)
            instance = job_class.from_data(self.job.data_for(job_class)) if job_class else None
        except Exception:  # noqa: BLE001 (its data does not fit, or is none: there is nobody to tell)
            return None
        if instance is not None:
            object.__setattr__(instance, "_reserved", self.job)
        return instance


def _is_noted(job: ReservedJob) -> bool:
    ran = job.history.attempts
    return bool(ran) and ran[-1].number == job.attempts() and bool(ran[-1].ended)
