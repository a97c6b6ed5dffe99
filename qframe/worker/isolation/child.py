"""The process of an isolated job: runs it, reports how that went, and does what it is asked then.

It settles nothing. Asked by the worker, it tells the job that it has failed, gives the backoff that
a method makes, and tells listeners that the job's modules have added.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Self

from qframe import events
from qframe.dispatch.pending import send_dropped
from qframe.exceptions import Interruption, JobCancelled, JobGivenBack, QframeError
from qframe.features import status
from qframe.jobs.definition import JobDefinition
from qframe.payload import envelope
from qframe.worker import outcome
from qframe.worker.isolation.channel import ChildChannel
from qframe.worker.isolation.errors import Message, packed, unpacked
from qframe.worker.isolation.job import IsolatedJob
from qframe.worker.isolation.spawn import FAILED
from qframe.worker.limits import Own
from qframe.worker.runner import Attempt, Runner
from qframe.worker.signals import Signals
from qframe.worker.watchdog import Watchdog

_STDERR = 2
GIVE_BACK = signal.SIGUSR2
INTERRUPT = signal.SIGUSR1
CANCEL = signal.SIGVTALRM
SHOW_STACKS = signal.SIGQUIT
"""What the worker sends to the job's process."""
ENDINGS: Mapping[type[BaseException], signal.Signals] = {
    JobGivenBack: GIVE_BACK,
    JobCancelled: CANCEL,
}
"""How the worker ends the job's process, where it does not interrupt it."""


def run(parent: Attempt, channel: ChildChannel, unblock: Callable[[], None]) -> int:
    """Run the attempt and report how it went; gives the exit code."""
    with ChildSignals() as signals:
        unblock()
        here = _ChildAttempt(parent, channel, signals)
        events.fire(events.JobForked, here.job)
        events.fire(events.JobProcessing, here.job)
        here.began = time.monotonic()
        return _ended(here.go)


def stand_in(parent: Attempt, channel: ChildChannel, unblock: Callable[[], None]) -> int:
    """Do what the job's own process was to be asked, which has died or never was."""
    with ChildSignals() as signals:
        unblock()
        return _ended(_ChildAttempt(parent, channel, signals).serve)


def _ended(work: Callable[[], None]) -> int:
    try:
        work()
    except QframeError:  # the worker cannot be told
        return FAILED
    return 0


class _ChildRunner(Runner):
    """What the attempt shares with none here."""

    def _watchdog(self) -> Watchdog:
        return Watchdog(enabled=False)


class _ChildAttempt(Attempt):
    """The attempt here; its limits are told the worker before the handler begins."""

    job: IsolatedJob

    def __init__(self, parent: Attempt, channel: ChildChannel, signals: Signals) -> None:
        runner = parent.runner
        self._is_added = events.hand_over()
        super().__init__(
            _ChildRunner(runner.connection, runner.registry, runner.options, signals),
            IsolatedJob(parent.job, channel),
            parent.job_class,
        )
        self._name = envelope.job_name(self.job.payload)
        self.limits = parent.limits
        self._channel = channel
        self._errors: dict[str, BaseException | None] = {}
        """What has been told of errors here, by the word for it."""

    def go(self) -> None:
        """Run the handler, say how it ended, and do what is asked then."""
        report, job = self.perform(), self.job
        error = report.error
        if error is not None and (job.is_settled or not outcome.is_early(error)):
            events.fire(events.JobExceptionOccurred, job, error)
        self._errors = {"raised": error, "failed": job.failed_with}
        result = None
        if error is None and report.result is not None and status.StatusFeature.key in job.payload:
            result = status.as_json(report.result)
        serves = error is not None or job.is_settled or self._is_added()
        if not serves:
            self.instance = None  # what only it held is dropped, and sent
        self._say({"say": "report", "error": packed(error), "result": result, "serves": serves})
        if serves:
            self.serve()

    def serve(self) -> None:
        """Do what the worker asks, until that is all."""
        while (asked := self._channel.hear()) is not None:
            answer: Message = {}
            error = self._errors.get(asked["as"]) or unpacked(asked["error"])
            match asked["ask"], error:
                case "backoff", BaseException():
                    self.instance = self.instance or self._anew()
                    answer["seconds"] = self.backoff(asked["failures"], error)
                case "failed", BaseException():
                    self.job.became("failed", error)
                    self.tell_failed(error)
                case "event", _:
                    self.job.became(asked["state"], error)
                    fields = (error if each is None else each for each in asked["fields"])
                    events.fire(events.kinds()[asked["kind"]], self.job, *fields)
            self._say({"say": "answer", **answer})
        self.instance, self._errors = None, {}
        _leave_nothing_unsent()

    def _say(self, message: Message) -> None:
        _leave_nothing_unsent()
        self._channel.tell({**message, "listens": self._is_added()})

    def cover(self, timeout: float) -> None:
        """Leave it to the worker."""

    def _now_known(self, job_class: type[JobDefinition]) -> None:
        self._channel.tell({"say": "limits", **Own.of(job_class)._asdict()})
        super()._now_known(job_class)

    def _anew(self) -> JobDefinition | None:
        with suppress(Exception):  # there is nobody to tell
            self.job_class = self.job_class or self.runner.registry.find(self._name)
        return super()._anew()


def _leave_nothing_unsent() -> None:
    """Send what was dispatched and dropped, and what was printed."""
    send_dropped()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


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
