"""`--isolate`, the worker's side: a process is forked for each job, and all is settled here.

The worker is single-threaded, so that it may fork: while a job's process runs, it waits for that to
speak, to end, or to be late, and keeps the lease meanwhile.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import socket
import time
from collections.abc import Callable, Sequence

from qframe import events
from qframe.connection import Connection
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    DirtyExit,
    JobGivenBack,
    JobTimedOut,
    SettleError,
)
from qframe.features.base import End
from qframe.features.status import Encoded
from qframe.jobs import project
from qframe.jobs.registry import Registry
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.worker.isolation import child
from qframe.worker.isolation.channel import ChildChannel, ParentChannel
from qframe.worker.isolation.errors import Message, packed, unpacked, unpacked_end
from qframe.worker.isolation.spawn import Spawner
from qframe.worker.isolation.supervision import STACKS, SupervisedChild
from qframe.worker.limits import Own
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import Outcome
from qframe.worker.runner import Attempt, Report, Runner, Scoreboard
from qframe.worker.signals import Signals
from qframe.worker.watchdog import Watchdog

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_PATIENCE = 5.0
"""Seconds a pool gives this process more than this one gives the job's."""

Work = Callable[[Attempt, ChildChannel, Callable[[], None]], int]


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
    """Takes jobs to their outcome, each run in a process of its own. On the main thread only."""

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        options: WorkerOptions,
        signals: Signals,
        unknown_delays: Sequence[float] = (),
        *,
        heartbeat: Heartbeat,
        scoreboard: Scoreboard | None = None,
    ) -> None:
        super().__init__(
            connection, registry, options, signals, unknown_delays,
            heartbeat=heartbeat, scoreboard=scoreboard,
        )  # fmt: skip
        self._heartbeat = heartbeat
        self.current: IsolatedAttempt | None = None
        self._spawner: Spawner | None = None
        self._pause = _FIRST_PAUSE
        events.listen(events.JobEvent)(self._hear)

    def _watchdog(self) -> Watchdog:
        return Watchdog(enabled=False)

    def _hear(self, event: events.JobEvent) -> None:
        if self.current is not None:
            self.current.share(event)

    def close(self) -> None:
        """Fork no more."""
        events.forget(self._hear)
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None

    def fork(self, attempt: Attempt, work: Work) -> SupervisedChild:
        """Fork a process that does `work`; raises `OSError` where there can be no more."""
        if self._spawner is None:
            self._spawner = Spawner()
        ours, theirs = socket.socketpair()

        def begin(unblock: Callable[[], None]) -> int:
            ours.close()
            return work(attempt, ChildChannel(theirs), unblock)

        try:
            process = self._spawner.fork(begin)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pause = _FIRST_PAUSE
        return SupervisedChild(self, self._heartbeat, process, ParentChannel(ours))

    def pause(self) -> None:
        """There was no room for one more process: wait, longer each time."""
        self.signals.wait(self._pause)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)


class IsolatedAttempt(Attempt):
    """One reserved job, its handler run in a process of its own."""

    runner: IsolatingRunner
    _child: SupervisedChild | None = None
    _serves = False
    """Whether the child waits to be asked."""
    _listens = False
    """Whether listeners there are to hear what becomes of the job."""
    _said: Message | None = None
    """Its report."""
    _answer: Message
    _intent: End | None = None
    _was_forked = True

    def run(self) -> Outcome:
        """Bring the job to its outcome."""
        self.runner.current = self
        try:
            outcome = super().run()
        finally:
            self.runner.current = None
            self._dismiss()
        if not self._was_forked:
            self.runner.pause()
        return outcome

    def tell_processing(self) -> None:
        """Leave it to the job's process."""

    def perform(self) -> Report:
        """Run the handler, in a process of its own, and say how it ended."""
        runner, job = self.runner, self.job
        events.fire(events.JobForking, job)
        self.began = time.monotonic()
        runner.signals.running(0)
        try:
            process = self._child = runner.fork(self, child.run)
        except OSError as error:
            runner.signals.not_running()
            log.warning("no process can be forked for %s: %s", job.name, error)
            self._was_forked = False
            return Report(JobGivenBack(f"no process can be forked: {error}"))
        try:
            events.tell_own(events.JobProcessing, job)
            self.cover(self.limits.timeout)
            process.wait(self._heard, job)
        finally:
            runner.signals.not_running()
        return self._reported(process)

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from its beginning; 0 is no limit."""
        limit = timeout + self.runner.options.grace if timeout else 0
        left = max(0.001, self.began + limit - time.monotonic()) if limit else 0
        if self._child is not None:
            self._child.allow(left)
        self.runner.leases.keep(self.job, left)
        if self.runner.scoreboard is not None:
            # The pool looks after this process, which ends the job's itself.
            ours = left + STACKS + _PATIENCE if left else 0
            self.runner.scoreboard.running(self.job.reservation.fence, ours)

    # -- what the process says --------------------------------------------------------------------

    def _heard(self, message: Message) -> bool:
        """Hear the process; says whether that was its report, or its answer."""
        match message.pop("say"):
            case "report":
                self._said = message
                self._serves, self._listens = message["serves"], message["listens"]
                return True
            case "answer":
                self._answer, self._listens = message, message["listens"]
                return True
            case "intent":
                self._intent = unpacked_end(message)
            case "limits":
                self.name = self._name
                self.limits = self._limits(Own(**message))
                self.cover(self.limits.timeout)
            case said:
                self._do(said, message)
        return False

    def _do(self, said: str, message: Message) -> None:
        """Do what does not end the job."""
        try:
            if said == "renew":
                self.job.renew()
            elif said == "progress":
                self.job.progress(message["done"], message["text"])
        except (BackendUnavailable, SettleError) as error:
            log.warning("%s: %s", self.job.name, error)

    def _reported(self, process: SupervisedChild) -> Report:
        said, job = self._said, self.job
        error, result = None, None
        if said is not None:
            error = unpacked(said["error"])
            result = None if said["result"] is None else Encoded(*said["result"])
        elif not job.is_lost:
            error = self._why(process)
        if error is not None:  # in the midst of a step, perhaps
            job.reservation.unsent = True
        return Report(error, result, self._intent)

    def _why(self, process: SupervisedChild) -> BaseException:
        """Say what became of a process that did not say it."""
        fired = self.runner.signals.fired
        if fired is not None:
            return fired
        if process.was_late:
            timeout, grace = self.limits.timeout, self.runner.options.grace
            return JobTimedOut(
                f"ran longer than its timeout of {timeout:g} s, did not end in {grace:g} s more, "
                "and was killed"
            )
        end = process.end(0)
        silence = "" if end.is_killed else " without saying how the job did"
        return DirtyExit(f"the process of the job {end.words()}{silence}")

    # -- what the process is asked ----------------------------------------------------------------

    def backoff(self, failures: int, error: BaseException) -> Sequence[float] | None:
        """Ask the job's class, in the job's process or in one more."""
        seconds: Sequence[float] | None = self._ask("backoff", error, failures=failures).get(
            "seconds"
        )
        return seconds

    def tell_failed(self, error: BaseException) -> None:
        """Call the job's `failed`, in the job's process or in one more."""
        self._ask("failed", error)

    def share(self, event: events.JobEvent) -> None:
        """Tell those listeners that only the job's process has."""
        if self._listens and self._serves and not isinstance(event, events.JobExceptionOccurred):
            values = [getattr(event, field.name) for field in dataclasses.fields(event)[1:]]
            error = next((each for each in values if isinstance(each, BaseException)), None)
            fields = [None if each is error else each for each in values]
            kind, state = type(event).__name__, self.job.state
            self._ask("event", error, kind=kind, fields=fields, state=state)

    def _ask(self, what: str, error: BaseException | None, **more: object) -> Message:
        """Have the process do something; gives nothing where it has ended before that was done."""
        process = self._serving()
        if process is None:
            return {}
        options = self.runner.options
        process.allow(options.timeout + options.grace if options.timeout else 0)
        known = self._known(error)
        process.tell({"ask": what, "as": known, "error": None if known else packed(error), **more})
        if process.wait(self._heard):
            return self._answer
        self._serves = False
        log.warning("%s: the process asked for %s %s", self.job.name, what, process.end(0).words())
        return {}

    def _serving(self) -> SupervisedChild | None:
        """Give the process that can be asked: the job's, or else one more."""
        if not self._serves:
            self._dismiss()
            try:
                self._child = self.runner.fork(self, child.stand_in)
            except OSError as error:
                log.warning("no process can be forked: %s", error)
                return None
            self._serves = True
        return self._child

    def _known(self, error: BaseException | None) -> str:
        """Name an error that came from the process; "" for any other."""
        if error is None or self._said is None:
            return ""
        if error is self.report.error:
            return "raised"
        return "failed" if self._intent is not None and error is self._intent.error else ""

    def _dismiss(self) -> None:
        """Wait for the process's end."""
        done, self._child, self._serves = self._child, None, False
        if done is not None and done.exit is None:
            end = done.end(max(1.0, self.runner.options.grace))
            if not end.is_clean:
                words = end.words()
                log.warning(
                    "%s %s had ended, then its process %s", self.job.name, self.job.uuid, words
                )


IsolatingRunner.attempt = IsolatedAttempt
