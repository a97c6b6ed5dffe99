"""`--isolate`, the worker's side: a process is forked for each job, and all is settled here.

The worker is single-threaded, so that it may fork: while a job's process runs, it waits for that to
speak, to end, or to be late, and keeps the lease meanwhile.
"""

from __future__ import annotations

import importlib
import logging
import socket
import time
from collections.abc import Callable

from qframe import events
from qframe.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    DirtyExit,
    JobGivenBack,
    JobTimedOut,
    SettleError,
)
from qframe.features.base import End
from qframe.jobs import project
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.worker import outcome as outcomes
from qframe.worker import process_tree
from qframe.worker.isolation.child import ChildAttempt, Work
from qframe.worker.isolation.job import ChildChannel
from qframe.worker.isolation.messages import Message, packed_end, unpacked, unpacked_end
from qframe.worker.isolation.spawn import Spawner
from qframe.worker.isolation.supervision import STACKS, SupervisedChild
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import Outcome, Verdict
from qframe.worker.runner import Attempt, Report, Runner

log = logging.getLogger("qframe")

_NO_ROOM = 2.0
"""Seconds to wait where there was no room for one more process."""
_PATIENCE = 5.0
"""Seconds a pool gives this process more than this one gives the job's."""


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

    _spawner: Spawner | None = None

    def close(self) -> None:
        """Fork no more."""
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None

    def fork(self, attempt: Attempt, work: Work) -> SupervisedChild:
        """Fork a process that does `work`; raises `OSError` where there can be no more."""
        if self._spawner is None:
            self._spawner = Spawner()
        others = process_tree.children()
        ours, theirs = socket.socketpair()

        def begin(unblock: Callable[[], object]) -> None:
            ours.close()
            there = ChildAttempt(attempt, ChildChannel(theirs))
            unblock()
            work(there)

        try:
            pid = self._spawner.fork(begin)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return SupervisedChild(self, pid, others, ours)


class IsolatedAttempt(Attempt):
    """One reserved job, its handler run in a process of its own."""

    runner: IsolatingRunner
    _child: SupervisedChild | None = None
    _error: Message | None = None
    """What the job's process says it raised."""
    _verdict: Verdict | None = None
    """What the process says is to become of the job."""
    _waits = False
    """Whether the process waits to be told what did."""
    _intent: End | None = None
    """How the job has settled itself."""

    def run(self) -> Outcome:
        """Bring the job to its outcome."""
        try:
            return super().run()
        finally:
            self._dismiss(max(1.0, self.runner.options.grace))

    def tell_processing(self) -> None:
        """Tell the listeners of qframe itself; others hear of it in the job's process."""
        events.tell_own(events.JobProcessing, self.job)

    def perform(self) -> Report:
        """Run the handler, in a process of its own, and say how it ended."""
        runner, job = self.runner, self.job
        events.fire(events.JobForking, job)
        self.began = time.monotonic()
        runner.signals.running(0)
        try:
            process = self._child = runner.fork(self, ChildAttempt.go)
            self.cover(self.limits.timeout)
            reported = process.wait(self._heard, job)
        except OSError as full:
            log.warning("no process can be forked for %s: %s", job.name, full)
            runner.signals.wait(_NO_ROOM)
            return Report(JobGivenBack(f"no process can be forked: {full}"))
        finally:
            runner.signals.not_running()
        error = unpacked(self._error)
        if not reported:
            self._child = None
            error = None if job.is_lost else self._why(process)
        if error is not None:  # in the midst of a step, perhaps
            job.reservation.unsent = True
        self._learn_completion(error)
        return Report(error)

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from its beginning; 0 is no limit."""
        limit = timeout + self.runner.options.grace if timeout else 0
        left = max(0.001, self.began + limit - time.monotonic()) if limit else 0
        if self._child is not None:
            self._child.allow(left)
        self.runner.leases.keep(self.job, left)
        if self.scoreboard is not None:
            # The pool looks after this process, which ends the job's itself.
            ours = left + STACKS + _PATIENCE if left else 0
            self.scoreboard.running(self.job.reservation.fence, ours)

    def _heard(self, message: Message) -> bool:
        """Hear the process; says whether that was its report."""
        try:
            match message.pop("say"):
                case "report":
                    self._error, self._waits = message["error"], message["waits"]
                    end = unpacked_end(message["end"])
                    self._verdict = Verdict(Outcome(message["outcome"]), end)
                    return True
                case "intent":
                    self._intent = unpacked_end(message)
                case "known":
                    self.name = self._name
                    self.limits.timeout = message["timeout"]
                    self.cover(self.limits.timeout)
                case "completing":
                    self._let_complete()
                case "still open":
                    self.job.still_open()
                case "renew":
                    self.job.renew()
                case "progress":
                    self.job.progress(message["done"], message["text"])
        except (BackendUnavailable, SettleError) as error:
            log.warning("%s: %s", self.job.name, error)
        return False

    def _let_complete(self) -> None:
        """Keep out of the way of a transaction in which the process completes the job."""
        try:
            self.job.completing()
        finally:
            if self._child is not None:
                self._child.tell({"ours": not self.job.is_lost})

    def _why(self, process: SupervisedChild) -> BaseException:
        """Say what became of a process that did not say it."""
        fired, end = self.runner.signals.fired, process.end(0, self._heard)
        if fired is not None:
            return fired
        if process.was_late:
            timeout, grace = self.limits.timeout, self.runner.options.grace
            return JobTimedOut(
                f"ran longer than its timeout of {timeout:g} s, did not end in {grace:g} s more, "
                "and was killed"
            )
        silence = "" if end.is_killed else " without saying how the job did"
        return DirtyExit(f"the process of the job {end.words()}{silence}")

    # -- what becomes of it -----------------------------------------------------------------------

    def conclude(self, report: Report) -> Verdict:
        """Settle the job as it has told, and say what is to become of it."""
        intent = None if self.job.is_settled else self._intent
        if intent is not None and not self.runner.settled(self.job, intent, self.name):
            return outcomes.LOST
        return super().conclude(report)

    def decide(self, report: Report) -> Verdict:
        """Take what the job's process says, or one more that is asked where it has died."""
        error = report.error
        if self._verdict is None and error is not None and not outcomes.is_early(error):
            self._fork(lambda there: there.stand_in(error))
        return self._verdict or super().decide(report)

    def _tell(self, outcome: Outcome, end: End, seconds: float) -> None:
        """Tell the job's process, where it waits or there is a `failed` to be called; then here."""
        if self._waits and self._child is not None:
            self._child.tell({"outcome": outcome, "end": packed_end(end), "seconds": seconds})
            self._dismiss(self._patience)
        elif outcome is Outcome.FAILED and self.job.refusal is None:
            self._fork(lambda there: there.tell(Verdict(outcome, end), seconds))
        super()._tell(outcome, end, seconds)

    def tell_failed(self, error: BaseException) -> None:
        """Leave it to the job's process."""

    @property
    def _patience(self) -> float:
        options = self.runner.options
        return options.timeout + options.grace if options.timeout else 0

    def _fork(self, work: Work) -> None:
        """Have one more process do what the job's own cannot do any more, and wait for that."""
        self._dismiss(self._patience)
        try:
            self._child = self.runner.fork(self, work)
        except OSError as error:
            log.warning("no process can be forked: %s", error)
        else:
            self._child.allow(self._patience)
            self._child.wait(self._heard)

    def _dismiss(self, seconds: float) -> None:
        """Wait for the process's end; it has so many seconds."""
        done, self._child, self._waits = self._child, None, False
        if done is not None:
            end = done.end(seconds, self._heard)
            if not end.is_clean:
                log.warning(
                    "%s %s had ended, then its process %s",
                    self.job.name,
                    self.job.uuid,
                    end.words(),
                )


IsolatingRunner.attempt = IsolatedAttempt
