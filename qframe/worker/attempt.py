"""Attempt: the life of one reserved job, as a generator of what it needs.

It knows its job and no thread, event loop, process or signal. An executor answers its needs: in
line (`runner`), on an event loop and in threads (`slots`), in a process of its own (`isolation`).
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from gc import collect
from typing import Any, Protocol

from qframe import events
from qframe.contracts.status import State
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
from qframe.features.completion import PATIENCE
from qframe.features.reserved import ReservedJob
from qframe.jobs import completing
from qframe.jobs.definition import JobDefinition
from qframe.jobs.tracing import active
from qframe.payload import envelope
from qframe.worker import needs
from qframe.worker import outcome as outcomes
from qframe.worker.limits import JobFacts, Limits
from qframe.worker.needs import NOTHING, Life, Report
from qframe.worker.outcome import Exhausted, Expired, Full, JobOutcome, Unrunnable, Verdict
from qframe.worker.shared import Interrupts, Shared

log = logging.getLogger("qframe")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds before the settling of a job is tried again, doubled each time."""
_MOMENT = 1.0
_GLANCE = 0.02
"""Seconds given to a pool to note how a worker ended, and between two looks."""
_SETTLE_DONE = needs.Settle(outcomes.DONE.end)


class RecordsHere(Protocol):
    """Records the job in the process that runs it."""

    def begin_here(self, job: ReservedJob) -> None: ...


class Attempt:
    """One reserved job, from before its start to its one end."""

    name = ""
    """The class name as the payload has it, "" if there is none: for the counters."""
    instance: JobDefinition | None = None
    result: Any = None
    """What `handle` returned, even if the attempt then ended for another reason."""
    report = NOTHING
    error: BaseException | None = None
    """What the job raised, or the error it was failed with."""
    ended_by: Interruption | None = None
    """What ended the job from outside; its process is not to be trusted any more."""
    outcome = JobOutcome.LOST
    ran: float | None = None
    processor: float | None = None
    """Seconds of processor time; None if they are not known."""
    memory = 0.0
    """Resident megabytes to which it raised its process's peak; 0 if it did not."""
    is_handled = False
    """Whether the handler returned before anything was to end it."""
    is_forced = False
    """Whether the job starts even if it should be refused."""
    is_bare = False
    """Whether middleware is skipped."""
    recorder: RecordsHere | None = None
    """What its process is to begin with, if its supervisor records it."""
    _handler_began = 0.0
    """When the timeout of a job whose class had to be imported began."""

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
        self.payload: Mapping[str, Any] = job.message or {}

    def life(self) -> Life[JobOutcome]:
        """Brings the job to its outcome.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        shared, job = self.shared, self.job
        verdict = self._unread()
        may_be_refused = (
            job.features
            or job.reservation.attempts
            or self.limits.end_at_a_moment
            or shared.cancellation.waiting
        )
        if verdict is None and may_be_refused and not self.is_forced:
            if job.reservation.worker_died and self.scoreboard is not None:
                yield from self._learn_more()
                if job.is_lost:
                    return JobOutcome.LOST
            verdict = self._refused()
        if verdict is not None:
            return (yield from self._end_unstarted(verdict))
        if ((job.features or shared.holds.active) and self._waits()) or not (yield needs.BEGIN):
            # It was only held, and so not counted: another worker has it now, or will.
            if job.is_lost:
                log.debug("%s %s was held too long: another worker has it", job.name, job.uuid)
            return JobOutcome.LOST
        shared.running[job] = self
        try:
            self._note_start()
            report = yield needs.RUN
            self.has_ended()
            if job.state and job.is_completing:
                yield needs.Learn(report.error)
            self.report = report
            if report is NOTHING and not job.state:
                verdict = outcomes.DONE
            else:
                verdict = yield from self.judged(report)
            outcome = self.outcome = yield from self._brought_about(verdict)
        finally:
            self._over()
        if events.JobAttempted.listeners:
            events.fire(events.JobAttempted, job, self.report.error)
        return outcome

    # -- before its start -------------------------------------------------------------------------

    def _unread(self) -> Verdict | None:
        """Fails a job with a broken payload or a wrong signature; finds the class of any other."""
        job = self.job
        if job.refusal is not None:
            return outcomes.failed(job.refusal)
        try:
            self.name = envelope.job_name(self.payload)
        except InvalidPayload as error:
            return outcomes.failed(error)
        self.job_class = self.job_class or self.shared.registry.known(self.name)
        self.limits = Limits(self.job_class, self.payload, self.shared.options)
        return None

    def _refused(self) -> Verdict | None:
        """Returns why the job must not run; None if it may."""
        job = self.job
        reason = job.skip_reason() if job.features else None
        if reason is not None:
            return outcomes.skipped(reason)
        cancellation = self.shared.cancellation
        if cancellation.waiting and cancellation.is_cancelled(job.uuid):
            return outcomes.cancelled("cancelled while it waited")
        return None if self.job_class is None else outcomes.refuse(JobFacts.of(job), self.limits)

    def _end_unstarted(self, verdict: Verdict) -> Life[JobOutcome]:
        outcome = yield from self._brought_about(verdict)
        if outcome is JobOutcome.CANCELLED:
            self.shared.cancellation.dropped(self.job.uuid)
        return outcome

    def _waits(self) -> bool:
        """Gives back, uncounted, a job that must not run yet; returns whether it did."""
        job = self.job
        if self._is_set_aside():
            return True
        waits = None if self.is_forced else job.wait_reason()
        if waits is None:
            return False
        log.debug("%s %s waits: %s", job.name, job.uuid, waits.why)
        with suppress(SettleError):
            self.shared.settler.put_back(job, End(State.WAITING, waits.delay, waits.why))
        return True

    def _is_set_aside(self) -> bool:
        """Sets aside a job that a hold chooses; one of a group joins its line first."""
        job, holds = self.job, self.shared.holds
        hold = holds.of(job) if holds.active and not self.is_forced else None
        if hold is None or any(feature.joins_first(job) for feature in job.features):
            return False
        log.debug("%s %s is set aside: %s", job.name, job.uuid, hold.shown)
        with suppress(SettleError):
            self.shared.settler.put_back(job, holds.end(job, hold))
        return True

    def limits_of(self, declared: type[JobDefinition] | None) -> Limits:
        """Returns the limits of the job if this is its class."""
        return Limits(declared, self.payload, self.shared.options)

    def _learn_more(self) -> Life[None]:
        """Waits a moment for the pool to note how the last attempt ended.

        A message may come back before the pool has noted that its worker died.
        """
        job = self.job
        until = time.monotonic() + _MOMENT
        with suppress(SettleError):
            while job.attempts() and not _is_noted(job) and time.monotonic() < until:
                yield needs.Wait(_GLANCE)
                job.recall()

    # -- while it runs ----------------------------------------------------------------------------

    def _note_start(self) -> None:
        """Counts the start; for the first attempt, also how long the job has waited."""
        shared, job = self.shared, self.job
        is_first = job.reservation.attempts == 1 and not (job.features and job.history.steps)
        due = envelope.due(self.payload) if is_first else None
        shared.recorder.started(self.name, job.queue, due)
        if shared.by_tag is not None:
            shared.by_tag.started(self.payload, job.queue, due)
        if active.tracing is not None:
            active.tracing.processing(shared.connection, job, here=shared.runs_here)
        if not events.JobProcessing.listeners:
            return
        if shared.runs_here:
            events.fire(events.JobProcessing, job)
        else:  # the application's hook is called where its handler runs
            events.fire_own(events.JobProcessing, job)

    @property
    def slot_leases(self) -> Sequence[tuple[str, str]]:
        """The keys of the slot leases that the job has, and the values they hold."""
        concurrency = self.shared.concurrency
        return () if concurrency is None else concurrency.slot_leases.of(self.job)

    def has_ended(self) -> None:
        """Notes, once, that the handler has ended: settling the job gives its slot leases back."""
        if self.ran is not None:
            return
        self.ran = time.monotonic() - self.began
        if self.shared.concurrency is not None and self.job.features:  # slot leases are among these
            self.shared.concurrency.slot_leases.ended(self.job)
        if self.scoreboard is not None:
            self.scoreboard.settling()

    def used(self, processor: float, memory: float) -> None:
        """Adds what a process that worked for the job has used: seconds, and megabytes at most."""
        self.processor = (self.processor or 0.0) + processor
        self.memory = max(self.memory, memory)

    def _over(self) -> None:
        shared, job = self.shared, self.job
        shared.running.pop(job, None)
        if self.name not in completing.waits and self.outcome is JobOutcome.DONE:
            completing.succeeded(self.name, self.job_class)
        if shared.cancellation.looked:
            shared.cancellation.ended(job)
        if self.scoreboard is not None:
            self.scoreboard.settled(deferred=job.is_deferred)
        if active.tracing is not None:
            active.tracing.attempted(job, self.outcome, self.report.error or self.error)

    # -- the handler, called in this process ------------------------------------------------------

    def made(self) -> JobDefinition:
        """Returns the job's instance, which runs from now on; may import its class first."""
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
        job = self.job
        object.__setattr__(instance, "_reserved", job)  # also on a frozen job
        job.stops = self.shared.signals
        if self.job_class.give_back:
            job.gives_back = True
        self.instance = instance
        return instance

    def make_again(self) -> None:
        """Makes the instance anew: the first may have been changed by its handler."""
        assert self.job_class is not None  # noqa: S101 (it was made)
        instance = self.job_class.from_data(self.job.data_for(self.job_class))
        object.__setattr__(instance, "_reserved", self.job)
        self.instance = instance
        self.job.call_again()

    def cover(self, timeout: float) -> None:
        """Watches the attempt, which has `timeout` seconds from now; 0 is no limit."""
        shared = self.shared
        limit = timeout + shared.options.grace if timeout else 0
        shared.watch(limit)
        shared.leases.keep(self.job, limit)
        if self.scoreboard is not None:
            self.scoreboard.running(self.job.reservation.fence, limit, self.slot_leases)
            if shared.job_recorder is not None and shared.job_recorder.keeps_log:
                self.job.records = self.scoreboard.ring.note

    def now_known(self, job_class: type[JobDefinition]) -> None:
        """Applies the limits of a class that had to be imported first."""
        self.limits = self.limits_of(job_class)
        before = JobFacts.of(self.job).before()
        if self.limits.forbids(before):
            raise Exhausted
        if self.limits.expired(before):
            raise Expired("it had expired")
        self.admitted(job_class)
        self.cover(self.limits.timeout)
        passed = time.monotonic() - self._handler_began
        self.interrupts.change_timeout(self.limits.timeout, passed)

    def admitted(self, job_class: type[JobDefinition]) -> None:
        """Raises `Full` if no more jobs of a class that was just imported may run."""
        concurrency, most = self.shared.concurrency, job_class.concurrency
        if concurrency is None or most is None:
            return
        name = job_class.own_name()
        seconds = concurrency.admit(self.job, self.name, name, most)
        if seconds is not None:
            raise Full(name, seconds)

    def has_succeeded(self) -> bool:
        """Notes that the handler returned; returns whether to call the job's own success hook."""
        job = self.job
        completed = bool(job.state) and job.is_completing and job.learn_completion(collect)
        self.is_handled = self.interrupts.fired is None  # swallowed: not done
        kind: Any = type(self.instance)
        has_hook = kind.succeeded is not JobDefinition.succeeded
        return self.is_handled and has_hook and (completed or not job.state)

    def learn_completion(self, error: BaseException | None, patience: float = PATIENCE) -> None:
        """Learns whether a job that raised had been completed and committed before.

        What it raised may hold a session open until it is dropped.
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
        """Decides what becomes of the job, and fires the event of its exception."""
        job, error, intent = self.job, report.error, report.intent
        self.error = error
        recorder, score = self.shared.job_recorder, self.scoreboard
        if error is not None and recorder is not None and score is not None:
            job.recording = recorder.recorded(score, error, job.attempts())
        if intent is not None and not (job.is_settled or (yield from self._settled(intent))):
            return outcomes.LOST
        if error is not None and (job.is_settled or not outcomes.is_early(error)):
            events.fire(events.JobExceptionOccurred, job, error)  # a listener may settle the job
        if job.is_settled:
            return self._chosen()
        if isinstance(error, JobTimedOut):
            events.fire(events.AttemptTimedOut, job, self.limits.timeout)
        if report.verdict is not None:
            return report.verdict
        if error is None:
            return outcomes.done(report.result)
        verdict: Verdict = yield needs.Decide(error)
        return verdict

    def _chosen(self) -> Verdict:
        job = self.job
        if job.is_lost:
            return outcomes.LOST
        if job.failed_with is not None:
            return outcomes.failed(job.failed_with)
        if job.is_released:
            return outcomes.RELEASED
        return outcomes.DONE  # deleted or buried

    def decide(self, error: BaseException) -> Verdict:
        """Decides on an attempt that raised, by the job's class if it is imported here."""
        delays = self.shared.unknown_delays
        return outcomes.decide(error, JobFacts.of(self.job), self.limits, self._backoff, delays)

    def _backoff(self, failures: int, error: BaseException) -> Sequence[float] | None:
        if self.instance is None:
            return None
        try:
            return self.instance.backoff_after(failures, error)
        except Exception:
            log.exception("%s.backoff raised; the worker's backoff is used", self.job.name)
            return None

    def _brought_about(self, verdict: Verdict) -> Life[JobOutcome]:
        outcome, end = verdict
        job = self.job
        if outcome is JobOutcome.LOST:
            self.shared.lost(job, self.name)
            return outcome
        if not job.state:  # else it settled itself, or a listener did
            try:
                yield _SETTLE_DONE if verdict is outcomes.DONE else needs.Settle(end)
            except Exception as error:  # noqa: BLE001 (sorted there)
                if not (yield from self._settled(end, error)):
                    return JobOutcome.LOST
        if outcome is JobOutcome.FAILED:
            self.error = end.error if isinstance(end.error, BaseException) else self.error
        if self.report.waits or (outcome is JobOutcome.FAILED and job.refusal is None):
            yield needs.CallFailed(verdict)
        if end.refused:
            again = "%s; tried again in %g s, it may be newer than this worker"
            log.warning(again, end.remark, end.delay)
            self.shared.refusals.note(self.name, end.remark)
        elif self.error is not None and outcome in {JobOutcome.DONE, JobOutcome.RELEASED}:
            log.error("%s had settled itself and then raised", job.name, exc_info=self.error)
        if outcome is not JobOutcome.DONE or events.JobProcessed.listeners:
            self.fire_outcome(verdict, self.ran or 0.0)
        return outcome

    def _settled(self, end: End, error: Exception | None = None) -> Life[bool]:
        """Settles the job, which ended in `error` before; false if its lease is lost.

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
                    # A bug in a failed store or a driver must not end the worker.
                    template = "%s cannot be settled; its lease brings it back"
                    log.error(template, job.name, exc_info=error)
                    return False
            try:
                yield needs.Settle(end)
            except Exception as again:  # noqa: BLE001 (sorted above)
                error = again
            else:
                return True

    def fire_outcome(self, verdict: Verdict, seconds: float) -> None:
        job, (outcome, end) = self.job, verdict
        error = end.error
        match outcome:
            case JobOutcome.DONE:
                events.fire(events.JobProcessed, job, seconds)
            case JobOutcome.SKIPPED:
                events.fire(events.JobSkipped, job, end.remark)
            case JobOutcome.GIVEN_BACK:
                events.fire(events.AttemptGivenBack, job, end.remark)
            case JobOutcome.CANCELLED:
                events.fire(events.AttemptCancelled, job, end.remark)
            case JobOutcome.FAILED if isinstance(error, BaseException):
                events.fire(events.JobFailed, job, error, seconds if end.ran else 0.0)
            case JobOutcome.RELEASED:
                events.fire(events.JobReleased, job, seconds)
            case JobOutcome.RETRIED:
                events.fire(events.JobReleasedAfterException, job, error, end.delay, seconds)

    def for_hooks(self) -> JobDefinition | None:
        """Returns the job's instance, made if it has not run; None if it cannot be made."""
        if self.instance is not None:
            return self.instance
        try:
            job_class = self.job_class or self.shared.registry.known(self.name)
            instance = job_class.from_data(self.job.data_for(job_class)) if job_class else None
        except Exception:  # noqa: BLE001 (its data does not fit: it has no hooks)
            return None
        if instance is not None:
            object.__setattr__(instance, "_reserved", self.job)
        return instance


def _is_noted(job: ReservedJob) -> bool:
    ran = job.history.attempts
    return bool(ran) and ran[-1].number == job.attempts() and bool(ran[-1].ended)
