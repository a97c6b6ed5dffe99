"""Child: the process of an isolated job runs it, and reports how it ended and is to be settled.

It settles nothing. If the job's `failed`, or listeners that its modules have added, need the
outcome, it waits for the worker's message.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Self

from qframe import events
from qframe.dispatch.draft import send_dropped
from qframe.exceptions import (
    ConfigurationError,
    Interruption,
    JobCancelled,
    JobGivenBack,
    QframeError,
)
from qframe.jobs import current, execution, tracing
from qframe.jobs.definition import JobDefinition
from qframe.metrics import pushes
from qframe.payload import envelope
from qframe.worker import handlers
from qframe.worker.attempt import Attempt
from qframe.worker.isolation.job import ChildChannel, IsolatedJob
from qframe.worker.isolation.messages import packed, packed_end, unpacked_end
from qframe.worker.isolation.spawn import flush
from qframe.worker.needs import RUN, CallFailed, Report, lived
from qframe.worker.outcome import Full, JobOutcome, Verdict
from qframe.worker.runner import Runner
from qframe.worker.signals import Signals

_STDERR = 2
INTERRUPT = signal.SIGUSR1
GIVE_BACK = signal.SIGUSR2
CANCEL = signal.SIGVTALRM
SHOW_STACKS = signal.SIGQUIT
_LAG = 0.1
"""Seconds before the handler begins above which the child reports the delay."""
CHILD_SIGNALS = (INTERRUPT, GIVE_BACK, CANCEL, SHOW_STACKS)
"""The signals that the worker sends to the job's process."""


class ChildAttempt(Attempt):
    """The attempt in the child. Its first method called is the work of this process."""

    job: IsolatedJob

    def __init__(self, parent: Attempt, channel: ChildChannel) -> None:
        self._is_added = events.hand_over()
        shared = parent.shared
        signals = ChildSignals().__enter__()
        runner = Runner(
            shared.connection, shared.registry, shared.options, signals, shared.unknown_delays
        )
        super().__init__(runner, IsolatedJob(parent.job, channel), parent.job_class)
        self._runner = runner
        current.running.set(self.job)
        if parent.recorder is not None:
            parent.recorder.begin_here(self.job)
        if tracing.active.tracing is not None:
            tracing.active.tracing.forked(parent.job)
        self.name = envelope.job_name(self.job.payload)
        self.limits = parent.limits
        self.report = parent.report
        self.lifespan = shared.lifespan
        self._channel = channel
        self._forked = parent.began

    def go(self) -> None:
        events.fire(events.JobForked, self.job)
        events.fire(events.JobProcessing, self.job)
        self.began = time.monotonic()
        lag = self.began - self._forked
        if lag > _LAG:
            self._channel.send({"kind": "began", "lag": lag})
        self.report = self._performed()
        if self.job.is_completing:
            self.learn_completion(self.report.error)
        features = self.shared.connection.context.features_of(self.job.payload)
        if not any(each.keeps_result or each.passes_result for each in features):
            self.report = Report(self.report.error)  # nobody asks for its result
        self._keep_checkpoints()
        self._agree(lived(self, self.judged(self.report), self._runner.answers))

    def _performed(self) -> Report:
        """Runs the job; if there is a lifespan, within it, on one event loop."""
        lifespan = self.lifespan
        if lifespan is None:
            return self._runner.perform(self, RUN)
        try:
            with (
                execution.kept_event_loop(),
                lifespan.around(
                    execution.run_on_kept_loop, lambda: False, closing=self._runner.closing
                ),
            ):
                return self._runner.perform(self, RUN)
        except ConfigurationError as error:  # it cannot be entered
            return Report(error)

    def _keep_checkpoints(self) -> None:
        """Keeps the last checkpoints of a job that goes on later, which only this process knows."""
        if self.report.error is not None and not self.job.is_settled:
            with suppress(QframeError):
                self.job.flush_checkpoints()

    def stand_in(self, error: BaseException) -> None:
        """Decides on the job in place of its own process, which died of `error`."""
        self.report = Report(error)
        self.instance = self.for_hooks()
        self.limits = self.limits_of(self.job_class)
        self._agree(self.decide(error))

    def call_failed(self, verdict: Verdict, seconds: float) -> None:
        """Calls the job's hooks, and the listeners here, with the outcome."""
        self.job.was_settled(verdict.end)
        if verdict.outcome is JobOutcome.FAILED:
            self._runner.call_failed(self, CallFailed(verdict))
        self.fire_outcome(verdict, seconds)
        if self.job.has_started():
            events.fire(events.JobAttempted, self.job, self.report.error)
        self.instance = None
        _leave_nothing_unsent()

    def _agree(self, verdict: Verdict) -> None:
        waits = verdict.outcome in {JobOutcome.FAILED, JobOutcome.RETRIED} or self._is_added()
        if not waits:
            self.instance = None  # drops and sends what only it held
        _leave_nothing_unsent()
        self._channel.send(
            {
                "kind": "report",
                "error": packed(self.report.error),
                "outcome": verdict.outcome,
                "end": packed_end(verdict.end),
                "waits": waits,
            }
        )
        if not waits:
            return
        answer = self._channel.receive()
        if answer is None:  # the worker cannot settle it
            self.job.mark_lost()
            events.fire(events.JobLeaseLost, self.job)
            events.fire(events.JobAttempted, self.job, self.report.error)
        else:
            end = unpacked_end(answer["end"], (verdict.end.error, self.report.error))
            self.call_failed(Verdict(JobOutcome(answer["outcome"]), end), answer["seconds"])

    def now_known(self, job_class: type[JobDefinition]) -> None:
        """Sends the limits to the worker, which applies them, too."""
        self._channel.send({"kind": "known", "timeout": self.limits_of(job_class).timeout})
        super().now_known(job_class)

    def admitted(self, job_class: type[JobDefinition]) -> None:
        """Asks the worker, which takes and keeps the slot lease."""
        name, most = job_class.own_name(), job_class.concurrency
        if most is not None:
            self._channel.send({"kind": "bounded", "name": name, "concurrency": most})
            answer = self._channel.receive()
            seconds = 0.0 if answer is None else answer["delay"]
            if seconds is not None:
                raise Full(name, seconds)

    def for_hooks(self) -> JobDefinition | None:
        """Returns the job's instance; may import its class first."""
        with suppress(Exception):  # there is no hook to call
            self.job_class = self.job_class or self.shared.registry.find(self.name)
        return super().for_hooks()


Work = Callable[[ChildAttempt], None]


def _leave_nothing_unsent() -> None:
    send_dropped()
    pushes.write_all()
    if tracing.active.tracing is not None:
        tracing.active.tracing.leaving()
    flush()


class ChildSignals(Signals):
    """The signals of the job's process. What stops the worker lets the job finish."""

    _waiting: Interruption | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.handle([CANCEL], self._cancel)
        with suppress(OSError, ValueError, RuntimeError):
            faulthandler.enable(_STDERR)
            handlers.show_stacks(SHOW_STACKS)
        return self

    def running(self, timeout: float) -> None:
        """The job runs from now on; raises what came before."""
        super().running(timeout)
        if self._waiting is not None and not self._closes:
            self._end_job(self._waiting, None)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a handler)
        """Lets the job know; unlike SIG_IGN, programs that it starts do not inherit it."""
        self.quit = True

    def _pause(self, _number: int, frame: FrameType | None) -> None:
        self._end_job(JobGivenBack("the worker was asked twice to stop"), frame)

    def _cancel(self, _number: int, frame: FrameType | None) -> None:
        self._end_job(JobCancelled("cancelled while it ran"), frame)

    def _end_job(self, error: Interruption, frame: FrameType | None) -> None:
        self._waiting = error
        super()._end_job(error, frame)
