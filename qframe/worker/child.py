"""The process of an isolated job: runs the attempt as any worker would, and settles nothing itself.

What would settle the job asks the worker it was forked from to do so.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from qframe import events, execution, payload
from qframe.contracts import Job
from qframe.dispatch import send_dropped
from qframe.exceptions import (
    BackendUnavailable,
    Interruption,
    JobCancelled,
    JobGivenBack,
    QframeError,
)
from qframe.queueable import Queueable
from qframe.worker.channel import ChildChannel, Message, packed
from qframe.worker.process import FAILED
from qframe.worker.proxy import ChildJob
from qframe.worker.runner import Attempt, Outcome, Runner
from qframe.worker.signals import Signals

_STDERR = 2
GIVE_BACK = signal.SIGUSR2
INTERRUPT = signal.SIGUSR1
CANCEL = signal.SIGVTALRM
SHOW_STACKS = signal.SIGQUIT
"""What the worker sends to the job's process."""
ENDINGS: dict[type[BaseException], signal.Signals] = {
    JobGivenBack: GIVE_BACK,
    JobCancelled: CANCEL,
}
"""How the worker ends the job's process, where it does not interrupt it."""


def run(
    attempt: Attempt, parent: Runner, channel: ChildChannel, unblock: Callable[[], None]
) -> int:
    """Run the attempt and report what came of it; gives the exit code."""
    with ChildSignals() as signals:
        unblock()
        events.hand_over(lambda event: _tell_parent(channel, event))
        job = ChildJob(attempt.job, channel)
        runner = _ChildRunner(parent, signals, channel)
        events.fire(events.JobForked, job)
        here = _ChildAttempt(
            runner, job, attempt.name, attempt.job_class, attempt.message, attempt.limits
        )
        report: Message
        try:
            report = {"say": "end", "outcome": here.run()}
        except BackendUnavailable as error:
            report = {"say": "unsettled", "error": packed(error)}
        here.instance = None  # what only it held is dropped, and sent
        return _end(channel, report)


def tell_failed(
    parent: Runner,
    job: Job,
    error: BaseException,
    channel: ChildChannel,
    unblock: Callable[[], None],
) -> int:
    """Tell the job and its listeners that it has failed, where its own process could not."""
    with ChildSignals():
        unblock()
        instance, here = _anew(parent, job, channel)
        if instance is not None:
            execution.tell(instance, "failed", error)
        events.fire(events.JobFailed, here, error, 0.0)
        return _end(channel, {"say": "told"})


def ask_backoff(
    parent: Runner,
    job: Job,
    ask: Callable[[Queueable | None], float],
    channel: ChildChannel,
    unblock: Callable[[], None],
) -> int:
    """Ask the job's own method for the backoff after an error its process did not survive."""
    with ChildSignals():
        unblock()
        instance, _ = _anew(parent, job, channel)
        return _end(channel, {"say": "backoff", "seconds": ask(instance)})


def _anew(parent: Runner, job: Job, channel: ChildChannel) -> tuple[Queueable | None, ChildJob]:
    """Make the job once more, where it can be made."""
    events.hand_over(lambda _: None)
    here = ChildJob(job, channel)
    try:
        job_class = parent.registry.find(payload.job_name(job.payload))
        instance = job_class.from_data(job.data_for(job_class))
    except Exception:  # noqa: BLE001 (there is nobody to tell)
        return None, here
    object.__setattr__(instance, "_reserved", here)
    return instance, here


def _end(channel: ChildChannel, report: Message) -> int:
    """Send what the job dispatched and dropped, and the report."""
    if not channel.is_own:
        return FAILED  # a fork of the job that came back from it
    send_dropped()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        channel.tell(report)
    except QframeError:
        return FAILED
    return 0


def _tell_parent(channel: ChildChannel, event: events.JobEvent) -> None:
    """Have the worker tell its listeners; those of an exception may settle the job."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(event)[1:]:
        value = getattr(event, field.name)
        fields[field.name] = {"error": packed(value)} if _is_error(value) else value
    message = {"say": "event", "event": type(event).__name__, "fields": fields}
    if isinstance(event, events.JobExceptionOccurred) and isinstance(event.job, ChildJob):
        event.job.learn(channel.ask({**message, "answer": True}))
    else:
        channel.later(message)


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException)


class ChildSignals(Signals):
    """The signals of the job's process. What stops the worker lets the job finish."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Interruption | None = None
        self._ran = False

    def __enter__(self) -> Self:
        """Install the handlers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _go_on)
        for number in (signal.SIGCONT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(INTERRUPT, self._interrupt)
        signal.signal(CANCEL, self._cancel)
        signal.signal(GIVE_BACK, self._give_back)
        signal.signal(signal.SIGALRM, self._ring)
        with suppress(OSError, ValueError, RuntimeError):
            faulthandler.enable(_STDERR)
            faulthandler.register(SHOW_STACKS, file=_STDERR)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave all as it is: the process ends."""

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, seconds))

    def running(self, timeout: float) -> None:
        """Note that the job runs from now on; raises what came before."""
        self._ran = True
        super().running(timeout)
        if self._waiting is not None:
            self._end_job(self._waiting, None)

    def _cancel(self, _number: int, frame: FrameType | None) -> None:
        self._end_job(JobCancelled("cancelled while it ran"), frame)

    def _give_back(self, _number: int, frame: FrameType | None) -> None:
        self._end_job(JobGivenBack("the worker was told twice to stop"), frame)

    def _end_job(self, error: Interruption, frame: FrameType | None) -> None:
        if not self._ran:
            self._waiting = error
        super()._end_job(error, frame)


def _go_on(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN it is not what the programs begin with that the job starts."""


class _ChildRunner(Runner):
    """Brings the job to its outcome here, each step of it done by the worker."""

    def __init__(self, parent: Runner, signals: Signals, channel: ChildChannel) -> None:
        super().__init__(
            parent.queue, parent.registry, parent.options, signals, parent.delays_of_unknown
        )
        self.watchdog = parent.watchdog
        self._channel = channel

    def after_failure(
        self, job: Job, instance: Queueable | None, error: BaseException, seconds: float
    ) -> Outcome:
        self._channel.tell({"say": "telling"})
        return super().after_failure(job, instance, error, seconds)


class _ChildAttempt(Attempt):
    """The attempt, whose limits the worker is told before it begins."""

    runner: _ChildRunner

    def _made(self) -> Queueable:
        was_known = self.job_class is not None
        instance = super()._made()
        if not was_known:
            self.runner._channel.tell({"say": "limits", **limits_of(type(instance))})  # noqa: SLF001 (one thing in two parts)
        return instance


def limits_of(job_class: type[Queueable]) -> Message:
    """Give what a class says of its limits; a backoff that is a method has to be asked for."""
    asks = callable(job_class.backoff)
    return {
        "tries": job_class.tries,
        "timeout": job_class.timeout,
        "max_exceptions": job_class.max_exceptions,
        "fail_on_timeout": job_class.fail_on_timeout,
        "asks_backoff": asks,
        "backoff": None if asks or job_class.wire_backoff() is None else _seconds(job_class),
    }


def _seconds(job_class: type[Queueable]) -> list[float]:
    return [float(part) for part in (job_class.wire_backoff() or "").split(",") if part]
