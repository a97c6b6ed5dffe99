"""`--isolate`, the worker's side: a process is forked for each job, and every settle is done here.

The worker is single-threaded, so that it may fork: while a job's process runs, it waits for that to
speak, to end, or to be late, and keeps the lease meanwhile.
"""

from __future__ import annotations

import importlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from qframe import events, project, tracebacks
from qframe.contracts import Job, Queue
from qframe.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    DirtyExit,
    JobTimedOut,
    QframeError,
    Unsupported,
)
from qframe.manager import QueueManager
from qframe.queueable import Queueable
from qframe.registry import Registry
from qframe.worker import child, proxy
from qframe.worker.channel import ChildChannel, Message, ParentChannel, unpacked
from qframe.worker.options import WorkerOptions
from qframe.worker.process import Exit, Nursery, Process
from qframe.worker.retry import Limits
from qframe.worker.runner import Attempt, Outcome, Runner
from qframe.worker.signals import Signals
from qframe.worker.supervision import STACKS, Watch
from qframe.worker.watchdog import Watchdog

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_PATIENCE = 5.0
"""Seconds a pool gives this process more than this one gives the job's."""

Work = Callable[[ChildChannel, Callable[[], None]], int]


def preload(manager: QueueManager, options: WorkerOptions) -> None:
    """Import what every job's process is to have; raises `ConfigurationError`."""
    project.put_on_path()
    if options.preload is True:
        if not manager.settings.jobs:
            raise ConfigurationError(
                "preload imports the modules that `jobs` lists in the configuration: there are none"
            )
        manager.registry.load()
        return
    for name in options.preload or ():
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"preload: {name!r} cannot be imported: {tracebacks.brief(error)}"
            ) from error


class IsolatingRunner(Runner):
    """Takes jobs to their outcome, each in a process of its own. On the main thread only."""

    def __init__(
        self,
        queue: Queue,
        registry: Registry,
        options: WorkerOptions,
        signals: Signals,
        delays_of_unknown: list[float],
    ) -> None:
        super().__init__(queue, registry, options, signals, delays_of_unknown)
        self.attempt = _IsolatedAttempt
        self.watchdog = Watchdog(enabled=False)
        self.told: Job | None = None
        """The job whose own process has told it that it failed."""
        self._nursery: Nursery | None = None
        self._pause = _FIRST_PAUSE

    def close(self) -> None:
        """Fork no more."""
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def fork(self, work: Work) -> tuple[Process, ParentChannel]:
        """Fork a process that does `work`; raises `OSError` where there can be no more."""
        if self._nursery is None:
            self._nursery = Nursery()
        ours, theirs = socket.socketpair()

        def begin(unblock: Callable[[], None]) -> int:
            ours.close()
            return work(ChildChannel(theirs), unblock)

        try:
            process = self._nursery.fork(begin)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pause = _FIRST_PAUSE
        return process, ParentChannel(ours)

    def breathe(self) -> None:
        """There was no room for one more process: wait, longer each time."""
        self.signals.wait(self._pause)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)

    def after_failure(
        self, job: Job, instance: Queueable | None, error: BaseException, seconds: float
    ) -> Outcome:
        """Tell the job in a process of its own, and the listeners."""
        del instance
        if self.told is not job:
            self.ask(lambda *args: child.tell_failed(self, job, error, *args))
        events.fire(events.JobFailed, job, error, seconds)
        return Outcome.FAILED

    def ask(self, work: Work) -> Message | None:
        """Have something done with a job in a process of its own; gives what that had to say."""
        try:
            process, channel = self.fork(work)
        except OSError as error:
            log.warning("no process can be forked: %s", error)
            return None
        answers: list[Message] = []
        timeout = self.options.timeout
        watch = Watch(self, process, channel, answers.append)
        watch.allow(timeout + self.options.grace if timeout else 0)
        end = watch.until_end()
        if not answers:
            log.warning("the process that was to tell a job of its failure %s", end.words())
        return answers[-1] if answers else None


class _IsolatedAttempt(Attempt):
    """One started attempt, its handler run in a process of its own."""

    runner: IsolatingRunner
    _watch: Watch
    _report: Message | None = None

    def run(self) -> Outcome:
        runner, job = self.runner, self.job
        events.fire(events.JobForking, job)
        self.began = time.monotonic()
        runner.signals.running(0)
        try:
            process, channel = runner.fork(lambda *to: child.run(self, runner, *to))
        except OSError as error:
            runner.signals.not_running()
            log.warning("no process can be forked for %s: %s", job.name, error)
            outcome = self._give_back(f"no process can be forked: {error}")
            runner.breathe()
            return outcome
        self._watch = Watch(runner, process, channel, self._heard, job)
        events.tell_own(events.JobProcessing, job)
        self._cover(self.limits.timeout)
        try:
            end = self._watch.until_end()
            if runner.slip is not None:
                runner.slip.settling()
            outcome = self._ended(end)
        finally:
            runner.signals.not_running()
            runner.leases.drop()
            if runner.slip is not None:
                runner.slip.settled(done=runner.finished is job)
        return outcome

    def _take_over(self, told: Message) -> None:
        """Take over the limits of the job's class."""
        told = {key: value for key, value in told.items() if key != "say"}
        known = _Told(ask=self._asked_backoff, **told)
        self.instance = cast("Queueable", known)
        self.limits = Limits(cast("type[Queueable]", known), self.message, self.runner.options)

    def _cover(self, timeout: float) -> None:
        limit = timeout + self.runner.options.grace if timeout else 0
        left = max(0.001, self.began + limit - time.monotonic()) if limit else 0
        self._watch.allow(left)
        self.runner.leases.keep(self.job, left)
        if self.runner.slip is not None:
            # The pool looks after this process, which ends the job's itself.
            ours = left + STACKS + _PATIENCE if left else 0
            self.runner.slip.running(self.job, self.job_class, timeout, ours)

    def _asked_backoff(self, error: BaseException) -> float | None:
        """Ask the class's method, in a process of its own."""
        limits, job = self.limits, self.job

        def ask(instance: Queueable | None) -> float:
            return limits.backoff(instance, job, error)

        answer = self.runner.ask(lambda *to: child.ask_backoff(self.runner, job, ask, *to))
        return None if answer is None else float(answer["seconds"])

    # -- what the process says ------------------------------------------------------------------

    def _heard(self, message: Message) -> Message | None:
        said = message["say"]
        if said == "do":
            return self._do(message)
        if said == "event":
            return self._tell(message)
        if said == "limits":
            self.runner.ran = self.name
            self._take_over(message)
            self._cover(self.limits.timeout)
        elif said == "telling":
            self.runner.told = self.job
            options = self.runner.options
            self._watch.allow(options.timeout + options.grace if options.timeout else 0)
        else:
            self._report = message
            self._watch.hurry(max(1.0, self.runner.options.grace))
        return None

    def _do(self, message: Message) -> Message | None:
        """Do a step of the job's; what it raises is raised there."""
        step, arguments = str(message["step"]), dict(message["arguments"])
        answer: Message = {}
        try:
            if step not in proxy.STEPS:
                raise Unsupported(f"a job cannot {step}")
            proxy.unpack(step, arguments)
            getattr(self.job, step)(**arguments)
        except QframeError as error:
            answer = proxy.raised(error)
        except Exception as error:
            log.exception("%s of %s", step, self.job.name)
            answer = proxy.raised(error)
        return None if step in proxy.UNANSWERED else {**answer, "state": proxy.state_of(self.job)}

    def _tell(self, message: Message) -> Message | None:
        """Tell the listeners here; those of an exception may settle the job."""
        kind = events.kinds().get(message["event"])
        fields = [
            unpacked(value["error"]) if isinstance(value, dict) and "error" in value else value
            for value in message["fields"].values()
        ]
        if kind is events.LeaseLost:
            self.runner.lost(self.job, self.runner.ran)
        elif kind is not None:
            events.fire(kind, self.job, *fields)
        return {"state": proxy.state_of(self.job)} if message.get("answer") else None

    # -- what became of it ----------------------------------------------------------------------

    def _ended(self, end: Exit) -> Outcome:
        runner, job, report = self.runner, self.job, self._report
        if report is None:
            return self._silent(end)
        if report["say"] == "unsettled":
            raise BackendUnavailable(str(unpacked(report["error"])))
        outcome = Outcome(report["outcome"])
        if outcome is Outcome.CANCELLED and runner.cancellation is not None:
            runner.cancellation.done(job)
        if not end.is_clean:
            how = end.words()
            log.warning("%s %s was %s; then its process %s", job.name, job.uuid, outcome, how)
        if outcome is Outcome.DONE and job.is_lost:
            runner.lost(job, runner.ran)
            return Outcome.LOST
        if outcome is Outcome.DONE and not job.is_settled and not runner.done(job):
            return Outcome.LOST
        return outcome

    def _silent(self, end: Exit) -> Outcome:
        """Take what became of a process that did not say it."""
        job = self.job
        if self.job_class is not None:
            self._take_over(child.limits_of(self.job_class))
        error = self._why(end)
        seconds = time.monotonic() - self.began
        if job.is_settled:
            outcome = self._settled_by_hand(error, seconds)
        else:
            outcome = self._outcome(error, seconds)
        events.fire(events.JobAttempted, job, error)
        return outcome

    def _why(self, end: Exit) -> BaseException:
        fired = self.runner.signals.fired
        if fired is not None:
            return fired
        if self._watch.was_late:
            timeout, grace = self.limits.timeout, self.runner.options.grace
            return JobTimedOut(
                f"ran longer than its timeout of {timeout:g} s, did not end in {grace:g} s more, "
                "and was killed"
            )
        silence = "" if end.is_killed else " without saying how the job did"
        return DirtyExit(f"the process of the job {end.words()}{silence}")


@dataclass(frozen=True)
class _Told:
    """What a class says of its limits, for a process that does not have the class."""

    tries: int | None
    timeout: float | None
    max_exceptions: int | None
    fail_on_timeout: bool
    asks_backoff: bool
    backoff: list[float] | None
    ask: Callable[[BaseException], float | None]

    def backoff_after(self, _attempt: int, error: BaseException) -> list[float] | None:
        """Give the backoff as `Queueable` does."""
        if not self.asks_backoff:
            return self.backoff
        seconds = self.ask(error)
        return None if seconds is None else [seconds]
