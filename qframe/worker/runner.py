"""Runs one reserved job: start, handler, outcome, settle. What feeds it is the loop's business."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from qframe import events, execution, payload
from qframe.contracts import Job, Queue
from qframe.exceptions import (
    BackendUnavailable,
    Interruption,
    InvalidArguments,
    InvalidPayload,
    JobGivenBack,
    JobTimedOut,
    SettleError,
    UnknownJob,
)
from qframe.queueable import Queueable
from qframe.registry import Registry
from qframe.worker import retry
from qframe.worker.leases import LeaseKeeper
from qframe.worker.options import WorkerOptions
from qframe.worker.retry import Limits
from qframe.worker.signals import Signals
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
    LOST = "lost"


class _Unrunnable(Exception):
    """The job's class or arguments do not exist here; never raised by the job's own code."""


class _Exhausted(Exception):
    """The job had been started as often as it may be before this start."""


class _Skip(Exception):
    """The job is to be skipped."""


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
        self.leases = LeaseKeeper(queue)
        self.watchdog = Watchdog(enabled=signals.on_main_thread)
        self.finished: Job | None = None
        self.ended_by: Interruption | None = None
        """What ended the last job from outside; its process is not to be trusted any more."""

    def run(self, job: Job) -> Outcome:
        """Bring a held job to its outcome.

        Raises `BackendUnavailable` when the backend does not answer; the lease returns the job.
        """
        try:
            message = job.payload
            name = payload.job_name(message)
        except InvalidPayload as error:
            return self.fail(job, None, error, 0.0)
        job_class = self.registry.known(name)
        limits = Limits(job_class, message, self.options)
        if job_class is not None:
            outcome = self._refused(job, limits, job.attempts())
            if outcome is not None:
                return outcome
        if not self._start(job):
            # Only held, and so not counted: another worker has it now, as it should.
            log.debug("%s %s was held too long and has gone to another worker", job.name, job.uuid)
            return Outcome.LOST
        return _Attempt(self, job, name, job_class, message, limits).run()

    def at_rest(self) -> None:
        """No job follows at once: neither stage of a timeout has anything to end."""
        self.watchdog.cancel()
        self.signals.at_rest()

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
        events.fire(events.LeaseLost, job)

    # -- before the handler ---------------------------------------------------------------------

    def _start(self, job: Job) -> bool:
        self.watchdog.spare()
        started = self.queue.start(job, finished=self.finished)
        self.note_finished()
        return started

    def _refused(self, job: Job, limits: Limits, attempts: int) -> Outcome | None:
        """Settle a job that must not be run: out of tries, or expired."""
        if limits.exhausted(attempts, job.history):
            return self.fail(job, None, retry.exceeded(job, limits), 0.0)
        if limits.expires_at is not None and not attempts and time.time() > limits.expires_at:
            return self.skip(job, "it had expired")
        return None

    # -- outcomes -------------------------------------------------------------------------------

    def skip(self, job: Job, reason: str) -> Outcome:
        """End a job without running it and without failing it."""
        if not self.settled(job, job.delete):
            return Outcome.LOST
        events.fire(events.JobSkipped, job, reason)
        return Outcome.SKIPPED

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
            instance = job_class.from_data(job.payload.get("data")) if job_class else None
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
                events.fire(events.LeaseLost, job)
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


class _Attempt:
    """One started attempt."""

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
        runner = self.runner
        events.fire(events.JobProcessing, self.job)
        try:
            error = self._perform()
        except Interruption as late:  # it came while the attempt was ending
            runner.signals.not_running()
            error = None if self.handled else late
        seconds = time.monotonic() - self.began
        fired = runner.signals.fired
        if fired is not None:
            runner.ended_by = fired
            if not self.handled:
                error = fired  # also where the job swallowed it
        try:
            outcome = self._outcome(error, seconds)
        finally:
            runner.leases.drop()
        events.fire(events.JobAttempted, self.job, error)
        return outcome

    def _perform(self) -> BaseException | None:
        """Run the handler under its timeout; gives what it raised."""
        signals = self.runner.signals
        try:
            self._cover(self.limits.timeout)
            signals.running(self.limits.timeout)
            self.instance = self._made()
            execution.perform(self.instance)
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

    def _made(self) -> Queueable:
        """Find the class, importing it if it must be, and make the job from its data."""
        try:
            if self.job_class is None:
                self.job_class = self.runner.registry.find(self.name)
                self._now_known()
            instance = self.job_class.from_data(self.message.get("data"))
        except (UnknownJob, InvalidArguments) as error:
            raise _Unrunnable from error
        object.__setattr__(instance, "_reserved", self.job)  # also on a frozen job
        return instance

    def _now_known(self) -> None:
        """Apply the limits of a class that had to be imported first."""
        runner = self.runner
        self.limits = Limits(self.job_class, self.message, runner.options)
        before = self.job.attempts() - 1
        if self.limits.exhausted(before, self.job.history):
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
            runner.leases.drop()
            runner.finished = job
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
            events.fire(events.LeaseLost, job)
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
