"""Runs one reserved job: start, handler, outcome, settle. What feeds it is the loop's business."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from qframe import events, execution, payload
from qframe.contracts import Job, Queue, State
from qframe.exceptions import (
    BackendUnavailable,
    CannotDecrypt,
    Interruption,
    InvalidArguments,
    InvalidPayload,
    InvalidSignature,
    JobCancelled,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    SettleError,
    UnknownJob,
)
from qframe.queueable import Queueable
from qframe.registry import Registry
from qframe.signing import Signer
from qframe.worker import retry
from qframe.worker.cancellation import Cancellation
from qframe.worker.leases import LeaseKeeper
from qframe.worker.options import WorkerOptions
from qframe.worker.retry import Limits
from qframe.worker.sentinel import Sentinel
from qframe.worker.signals import Signals
from qframe.worker.slip import Slip
from qframe.worker.tally import Tally
from qframe.worker.watchdog import Watchdog

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.1


class Outcome(StrEnum):
    """How one reservation ended."""

    DONE = "done"
    SKIPPED = "skipped"
    RELEASED = "released"
    RETRIED = "retried"
    FAILED = "failed"
    GIVEN_BACK = "given back"
    CANCELLED = "cancelled"
    LOST = "lost"


class _Unrunnable(Exception):
    """The job's class or arguments do not exist here; never raised by the job's own code."""


class _Exhausted(Exception):
    """The job had been started as often as it may be before this start."""


class _Skip(Exception):
    """The job is to be skipped."""


def _nothing() -> None:
    pass


class Runner:
    """Takes reserved jobs one at a time, each to its one outcome.

    A job that was done is deleted together with the start of the next, or by `flush`: until then
    it is in `finished`, its lease still long.
    """

    def __init__(
        self,
        queue: Queue,
        registry: Registry,
        options: WorkerOptions,
        signals: Signals,
        delays_of_unknown: list[float],
    ) -> None:
        self.queue = queue
        self.registry = registry
        self.options = options
        self.signals = signals
        self.delays_of_unknown = delays_of_unknown
        self.middleware = queue.middleware()
        self.leases = LeaseKeeper(queue)
        self.leases.lost = self._found_lost
        self._reported: Job | None = None
        self.watchdog = Watchdog(enabled=signals.on_main_thread)
        self.sentinel: Sentinel | None = None
        self.attempt: type[Attempt] = Attempt
        self.finished: Job | None = None
        self.ran = ""
        """The name of the last job, "" where its class is not known: for the counters."""
        self.tally = Tally()
        self.beat: Callable[[], None] = _nothing
        """To be called now and then by who waits for a job where no threads may be."""
        self.slip: Slip | None = None
        """Where the pool this worker belongs to reads what runs."""
        self.cancellation: Cancellation | None = None
        self.ended_by: Interruption | None = None
        """What ended the last job from outside; its process is not to be trusted any more."""
        self.signer: Signer | None = None
        """Checks the payloads; None where no signing key is configured."""

    def run(self, job: Job) -> Outcome:
        """Bring a held job to its outcome.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        if self.signer is not None and (refused := self._distrusted(job, self.signer)) is not None:
            return refused
        try:
            message = job.payload
            name: Any = message.get("job")
            job_class = self.registry.known(name) if type(name) is str else None
            if job_class is None:
                name = payload.job_name(message)
                job_class = self.registry.known(name)
        except InvalidPayload as error:
            self.ran = ""
            return self.fail(job, None, error, 0.0)
        self.ran = "" if job_class is None else name
        limits = Limits(job_class, message, self.options)
        attempts = job.attempts()
        if attempts and self.slip is not None:
            self._recollect(job, limits, attempts)
        outcome = self._needless(job, message)
        if outcome is None and job_class is not None and (attempts or limits.end_at_a_moment):
            outcome = self._refused(job, limits, attempts)
        if outcome is not None:
            return outcome
        if not self._start(job, message):
            # Only held, and so not counted: another worker has it now, as it should.
            log.debug("%s %s was held too long and has gone to another worker", job.name, job.uuid)
            return Outcome.LOST
        return self.attempt(self, job, name, job_class, message, limits).run()

    def at_rest(self) -> None:
        """No job follows at once: neither stage of a timeout has anything to end."""
        self.watchdog.cancel()
        self.signals.at_rest()

    def close(self) -> None:
        """Run no more."""
        self.leases.end()
        if self.sentinel is not None:
            self.sentinel.close()

    def done(self, job: Job) -> bool:
        """Delete a job that is done, most with the start of the next; false where it was lost."""
        if not job.defers:
            return self.settled(job, job.delete)
        self.leases.drop()
        self.finished = job
        return True

    def flush(self) -> None:
        """Delete the finished job now."""
        if self.finished is not None:
            try:
                self.finished.delete()
            except SettleError:
                self._ran_twice(self.finished)
            self.note_finished()

    def note_finished(self) -> None:
        """The finished job was taken along by an exchange: look whose lease had been lost."""
        self.finished = None
        for job in self.queue.refused():
            self._ran_twice(job)

    def _ran_twice(self, job: Job) -> None:
        log.warning(
            "%s %s was done, but its lease had passed to another worker: it runs twice",
            job.name,
            job.uuid,
        )
        name = payload.job_name(job.payload)
        known = (name, job.queue, "done") in self.tally
        self.lost(job, name if known else "", was_done=True)

    def lost(self, job: Job, name: str, *, was_done: bool = False) -> None:
        """Count a job whose lease was lost, and tell the listeners, once."""
        if self._reported is job:
            return
        self._reported = job
        self.tally.lost(name, job.queue, was_done=was_done)
        events.fire(events.LeaseLost, job)

    def _found_lost(self, job: Job) -> None:
        """Hear from the lease keeper, while the job runs, that its lease was lost."""
        self.lost(job, self.ran)
        if self.queue.ends_lost_jobs:
            error = JobInterrupted("its lease was lost, with the connection that held it")
            self.signals.end(error, lambda: self.leases.kept is job)

    # -- before the handler ---------------------------------------------------------------------

    def _recollect(self, job: Job, limits: Limits, attempts: int) -> None:
        """Let a job that may end now learn from the pool why its last attempt had no end."""
        if limits.fails_on_timeout or limits.exhausted(attempts, job.history):
            job.recollect()

    def _start(self, job: Job, message: dict[str, Any]) -> bool:
        self.watchdog.spare()
        started = self.queue.start(job, finished=self.finished)
        self.note_finished()
        if started and ("track" in message or "unique" in message):
            job.note_start()
        return started

    def _refused(self, job: Job, limits: Limits, attempts: int) -> Outcome | None:
        """Settle a job that must not be run: out of tries, or expired."""
        if limits.exhausted(attempts, job.history) or (
            attempts and limits.timed_out_for_good(job.history)
        ):
            return self.fail(job, None, retry.exceeded(job, limits), 0.0)
        if limits.expires_at is not None and not attempts and time.time() > limits.expires_at:
            return self.skip(job, "it had expired")
        return None

    def _needless(self, job: Job, message: dict[str, Any]) -> Outcome | None:
        """Skip a job that need not be run any more."""
        if "unique" in message and job.is_replaced():
            return self.skip(job, "debounced: a later dispatch took its place")
        if "chain" in message and job.is_over():
            return self.skip(job, "done before: its chain has gone on")
        return None

    def _distrusted(self, job: Job, signer: Signer) -> Outcome | None:
        """Fail a job whose signature is not right: no class is looked up, not even to tell it."""
        try:
            signer.check(job.raw_body, job.queue)
        except InvalidSignature as refused:
            self.ran, error = "", refused
        else:
            return None
        if not self.settled(job, lambda: job.fail(error)):
            return Outcome.LOST
        events.fire(events.JobFailed, job, error, 0.0)
        return Outcome.FAILED

    # -- outcomes -------------------------------------------------------------------------------

    def skip(self, job: Job, reason: str) -> Outcome:
        """End a job without running it and without failing it."""
        job.ends_as(State.SKIPPED, reason)
        if not self.settled(job, job.delete):
            return Outcome.LOST
        events.fire(events.JobSkipped, job, reason)
        return Outcome.SKIPPED

    def cancel(self, job: Job, reason: str) -> Outcome:
        """End a job that was cancelled while it ran."""
        job.ends_as(State.CANCELLED, reason)
        if not self.settled(job, job.delete):
            return Outcome.LOST
        if self.cancellation is not None:
            self.cancellation.done(job)
        events.fire(events.JobCancelled, job, reason)
        return Outcome.CANCELLED

    def fail(
        self,
        job: Job,
        instance: Queueable | None,
        error: BaseException,
        seconds: float,
        *,
        ran: bool = True,
    ) -> Outcome:
        """Record, remove, then tell the job and the listeners, once."""
        if not self.settled(job, lambda: job.fail(error, ran=ran)):
            return Outcome.LOST
        return self.after_failure(job, instance, error, seconds)

    def after_failure(
        self, job: Job, instance: Queueable | None, error: BaseException, seconds: float
    ) -> Outcome:
        """Tell the job, where it can be made, and the listeners."""
        if instance is None:
            instance = self._made(job)
        if instance is not None:
            timeout = self.options.timeout
            self.watchdog.cover(timeout + self.options.grace if timeout else 0)
            execution.tell(instance, "failed", error)
        events.fire(events.JobFailed, job, error, seconds)
        return Outcome.FAILED

    def _made(self, job: Job) -> Queueable | None:
        """Make a job that is failed without being run, so that its `failed` is called."""
        try:
            job_class = self.registry.known(payload.job_name(job.payload))
            instance = job_class.from_data(job.data_for(job_class)) if job_class else None
        except Exception:  # noqa: BLE001 (its data does not fit, or is none: there is nobody to tell)
            return None
        if instance is not None:
            object.__setattr__(instance, "_reserved", job)
        return instance

    def settled(self, job: Job, settle: Callable[[], None]) -> bool:
        """Settle, trying again while the backend does not answer and the lease may still hold.

        False, after the event `LeaseLost`, when the job was no longer ours.
        """
        self.watchdog.spare()
        give_up = time.monotonic() + self.queue.retry_after
        pause = _FIRST_PAUSE
        while True:
            try:
                settle()
            except SettleError as error:
                log.warning("%s", error)
                self.lost(job, self.ran)
                return False
            except BackendUnavailable as error:
                if time.monotonic() + pause > give_up:
                    raise
                if pause == _FIRST_PAUSE:
                    log.warning("%s cannot be settled yet: %s", job.name, error)
                self.signals.wait(pause)
                pause = min(2.0, pause * 2)
            except Exception:
                # A failed store, or a driver, with a bug of its own must not end the worker.
                log.exception("%s cannot be settled; its lease brings it back", job.name)
                return False
            else:
                return True


class Attempt:
    """One started attempt, its handler run in this process."""

    perform: Callable[[Queueable, Sequence[Any]], Any] = staticmethod(execution.perform)

    def __init__(
        self,
        runner: Runner,
        job: Job,
        name: str,
        job_class: type[Queueable] | None,
        message: dict[str, Any],
        limits: Limits,
    ) -> None:
        self.runner = runner
        self.job = job
        self.name = name
        self.job_class = job_class
        self.message = message
        self.limits = limits
        self.instance: Queueable | None = None
        self.began = time.monotonic()
        self.handled = False

    def run(self) -> Outcome:
        """Run the handler and settle the job."""
        runner = self.runner
        events.fire(events.JobProcessing, self.job)
        try:
            error = self._perform()
        except Interruption as late:  # it came while the attempt was ending
            runner.signals.not_running()
            error = None if self.handled else late
        if runner.sentinel is not None:
            runner.sentinel.look()
        seconds = time.monotonic() - self.began
        slip = runner.slip
        if slip is not None:
            slip.settling()
        fired = runner.signals.fired
        if fired is not None:
            runner.ended_by = fired
            if not self.handled:
                error = fired  # also where the job swallowed it
        try:
            outcome = self._outcome(error, seconds)
        finally:
            runner.leases.drop()
            if slip is not None:
                slip.settled(done=runner.finished is self.job)
        events.fire(events.JobAttempted, self.job, error)
        return outcome

    def _perform(self) -> BaseException | None:
        """Run the handler under its timeout; gives what it raised."""
        signals = self.runner.signals
        try:
            self._cover(self.limits.timeout)
            signals.running(self.limits.timeout)
            self.instance = self._made()
            result = self.perform(self.instance, self.runner.middleware)
            if result is not None and "track" in self.message:
                self.job.keep_result(result)
            self.handled = signals.fired is None  # a job that swallowed its end was not done
            if self.handled and not self.job.is_settled:
                execution.tell(self.instance, "succeeded")
        except BaseException as error:  # noqa: BLE001 (whatever a job raises is its outcome)
            return None if self.handled else error
        finally:
            signals.not_running()
        return None

    def _cover(self, timeout: float) -> None:
        limit = timeout + self.runner.options.grace if timeout else 0
        self.runner.watchdog.cover(limit)
        self.runner.leases.keep(self.job, limit)
        if self.runner.slip is not None:
            self.runner.slip.running(self.job, self.job_class, timeout, limit)

    def _made(self) -> Queueable:
        """Find the class, importing it if it must be, and make the job from its data."""
        try:
            if self.job_class is None:
                self.job_class = self.runner.registry.find(self.name)
                self._now_known()
            instance = self.job_class.from_data(self.job.data_for(self.job_class))
        except (UnknownJob, InvalidArguments, CannotDecrypt) as error:
            raise _Unrunnable from error
        object.__setattr__(instance, "_reserved", self.job)  # also on a frozen job
        return instance

    def _now_known(self) -> None:
        """Apply the limits of a class that had to be imported first."""
        runner = self.runner
        runner.ran = self.name
        self.limits = Limits(self.job_class, self.message, runner.options)
        before = self.job.attempts() - 1
        if self.limits.exhausted(before, self.job.history) or (
            before and self.limits.timed_out_for_good(self.job.history.without_last())
        ):
            raise _Exhausted
        expires = self.limits.expires_at
        if expires is not None and self.job.attempts() == 1 and time.time() > expires:
            raise _Skip("it had expired")
        passed = time.monotonic() - self.began
        self._cover(self.limits.timeout)
        runner.signals.change_timeout(self.limits.timeout, passed)

    # -- outcomes -------------------------------------------------------------------------------

    def _outcome(self, error: BaseException | None, seconds: float) -> Outcome:
        runner, job = self.runner, self.job
        if error is None and not job.is_settled:
            if not runner.done(job):
                return Outcome.LOST
            events.fire(events.JobProcessed, job, seconds)
            return Outcome.DONE
        if error is not None:
            early = self._early_end(error)
            if early is not None:
                return early
            events.fire(events.JobExceptionOccurred, job, error)
        if job.is_settled:
            return self._settled_by_hand(error, seconds)
        assert error is not None  # noqa: S101 (the first branch took the other case)
        return self._failed(error, seconds)

    def _early_end(self, error: BaseException) -> Outcome | None:
        """Take the ends that are no failures: skipped, given back, or not runnable here."""
        runner, job = self.runner, self.job
        if isinstance(error, JobGivenBack) and not job.is_settled:
            return self._give_back(str(error))
        if isinstance(error, JobCancelled) and not job.is_settled:
            return runner.cancel(job, str(error))
        if isinstance(error, _Exhausted):
            error = retry.exceeded(job, limits=self.limits, before=True)
            return runner.fail(job, None, error, 0.0, ran=False)
        if isinstance(error, _Unrunnable) and error.__cause__ is not None:
            return self._unrunnable(error.__cause__)
        if (isinstance(error, _Skip) or execution.skipped(error)) and not job.is_settled:
            return runner.skip(job, str(error) or "DontHandle")
        return None

    def _give_back(self, reason: str, delay: float = 0, *, refused: bool = False) -> Outcome:
        job = self.job
        if not self.runner.settled(job, lambda: job.give_back(delay, refused=refused)):
            return Outcome.LOST
        events.fire(events.JobGivenBack, job, reason)
        return Outcome.GIVEN_BACK

    def _unrunnable(self, cause: BaseException) -> Outcome:
        """Give a job that is unknown here back a few times: it may be newer than this worker."""
        if isinstance(cause, CannotDecrypt):
            return self.runner.fail(self.job, None, cause, 0.0, ran=False)
        delays = self.runner.delays_of_unknown
        refusals = self.job.history.refusals
        if refusals < len(delays):
            delay = delays[refusals]
            log.warning("%s; tried again in %g s, it may be newer than this worker", cause, delay)
            return self._give_back(str(cause), delay, refused=True)
        return self.runner.fail(self.job, None, cause, 0.0, ran=False)

    def _settled_by_hand(self, error: BaseException | None, seconds: float) -> Outcome:
        """Take the outcome the job, or a listener, chose; an error after that is only reported."""
        job = self.job
        if job.is_lost:
            self.runner.lost(job, self.runner.ran)
            return Outcome.LOST
        if error is not None and job.failed_with is None:
            log.error("%s had settled itself and then raised", job.name, exc_info=error)
        if job.failed_with is not None:
            return self.runner.after_failure(job, self.instance, job.failed_with, seconds)
        if job.is_released:
            events.fire(events.JobReleased, job, seconds)
            return Outcome.RELEASED
        events.fire(events.JobProcessed, job, seconds)  # deleted or buried
        return Outcome.DONE

    def _failed(self, error: BaseException, seconds: float) -> Outcome:
        """Try again after the backoff, or fail for good."""
        runner, job, limits = self.runner, self.job, self.limits
        if isinstance(error, JobTimedOut):
            events.fire(events.JobTimedOut, job, limits.timeout)
        if limits.ends_with(error, job):
            return runner.fail(job, self.instance, error, seconds)
        delay = limits.backoff(self.instance, job, error)
        how, what = retry.ending(error), retry.words(error)
        if not runner.settled(job, lambda: job.retry(delay, how, what)):
            return Outcome.LOST
        events.fire(events.JobReleasedAfterException, job, error, delay, seconds)
        return Outcome.RETRIED
