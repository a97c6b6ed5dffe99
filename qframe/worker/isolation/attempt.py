"""IsolatedAttempt: one reserved job whose handler runs in a process of its own.

It is written as what is done one after the other. Where it has to wait it yields, and the worker
looks after its other jobs.
"""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from qframe import events
from qframe.contracts.backend import Standing
from qframe.contracts.status import State
from qframe.exceptions import (
    BackendUnavailable,
    DirtyExit,
    Interruption,
    JobGivenBack,
    JobTimedOut,
    SettleError,
)
from qframe.features.base import End
from qframe.features.reserved import PATIENCE
from qframe.jobs.tracing import active
from qframe.worker import outcome as outcomes
from qframe.worker.isolation.child import ChildAttempt, Work
from qframe.worker.isolation.messages import Message, packed_end, unpacked, unpacked_end
from qframe.worker.isolation.supervision import STACKS, Steps, SupervisedChild
from qframe.worker.outcome import Outcome, Verdict
from qframe.worker.runner import Attempt, Report
from qframe.worker.slots.base import SlottedAttempt, SlottedRunner

log = logging.getLogger("qframe")

_NO_ROOM = 2.0
"""Seconds to wait where there was no room for one more process."""
_PATIENCE = 5.0
"""Seconds a pool gives this process more than this one gives the job's."""
_GLANCE = 0.02
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_TO_BE_ASKED = Verdict(Outcome.FAILED, End(State.FAILED))
"""Stands for what one more process is to say, as the job's own has died."""


class Forking(SlottedRunner):
    """A runner whose attempts have processes."""

    @abstractmethod
    def fork(self, attempt: Attempt, work: Work) -> SupervisedChild:
        """Fork a process that does `work`; raises `OSError` where there can be no more."""


class IsolatedAttempt(SlottedAttempt):
    """One reserved job. `life` is what is to be done for it, `until` when at the latest."""

    runner: Forking
    life: Steps[None]
    until = 0.0
    runs = False
    """Whether its handler runs."""
    fired: Interruption | None = None
    """What its handler was to end by."""
    _child: SupervisedChild | None = None
    _error: Message | None = None
    """What the job's process says it raised."""
    _verdict: Verdict | None = None
    """What the process says is to become of the job."""
    _waits = False
    """Whether the process waits to be told what did."""
    _intent: End | None = None
    """How the job has settled itself."""
    _took = 0.0
    """Seconds its handler took."""
    _lag = 0.0
    """Seconds after its fork in which its handler has begun, where they were many."""
    _is_told = False
    """Whether the process was told to end."""

    def begin(self) -> None:
        """Bring a job that was started to its outcome."""
        self.life = self._to_its_end(self._started_apart())

    def begin_unstarted(self, verdict: Verdict) -> None:
        """Carry out what is to become of a job that is not started."""
        self.life = self._to_its_end(self._settled(verdict))

    def abandon(self, seconds: float) -> None:
        """Do nothing more than wait for the process's end, so long at most."""
        self.life.close()
        self.life = self._dismissed(seconds)

    def end(self, error: Interruption) -> None:
        """End the handler, if it runs, and was not told so before; from a signal handler, too."""
        if self.runs and self.fired is None:
            self.fired = error
            self._look()

    def ring(self) -> float:
        """End the process if it is late, and say when it will be; from a signal handler."""
        return math.inf if self._child is None else self._child.deadline()

    def _to_its_end(self, steps: Steps[Outcome]) -> Steps[None]:
        try:
            self.outcome = yield from steps
        except Exception:
            log.exception("%s cannot be settled; its lease brings it back", self.job.name)
        self.is_left = self._child is not None and self._child.is_stuck
        yield from self._dismissed(self._grace)
        self.is_left = False

    def _started_apart(self) -> Steps[Outcome]:
        job = self.job
        try:
            # Others than listeners of qframe itself hear of it in the job's process.
            self.count_start()
            if active.tracing is not None:
                active.tracing.processing(self.runner.connection, job, here=False)
            events.tell_own(events.JobProcessing, job)
            report = yield from self._performed()
            verdict = yield from self._concluded(report)
            outcome = self.outcome = yield from self._settled(verdict)
            if outcome is Outcome.CANCELLED:
                self.runner.cancellation.granted(job)
        finally:
            self.over()
        events.fire(events.JobAttempted, job, report.error)
        return outcome

    # -- while it runs ----------------------------------------------------------------------------

    def _performed(self) -> Steps[Report]:
        """Run the handler, in a process of its own, and say how it ended."""
        runner, job = self.runner, self.job
        events.fire(events.JobForking, job)
        self.began = time.monotonic()
        self.runs = True
        try:
            try:
                process = self._child = runner.fork(self, ChildAttempt.go)
                job.says_completing = partial(process.is_saying, "completing")
            except OSError as full:
                return (yield from self._without_room(full))
            self.cover(self.limits.timeout)
            reported = yield from process.waiting(self._heard, self._look)
        finally:
            self.runs = False
            job.says_completing = None
        self.ran = self._took = time.monotonic() - self.began
        self.has_ended()
        if self.scoreboard is not None:
            self.scoreboard.settling()
        if reported and not self._waits:
            yield from self._dismissed(self._grace)
        error = unpacked(self._error)
        if not reported:
            error = None if job.is_lost else self._why(process)
        if error is not None:  # in the midst of a step, perhaps
            job.reservation.unsent = True
        yield from self._completion_learned(error)
        return Report(error)

    def _without_room(self, full: OSError) -> Steps[Report]:
        log.warning("no process can be forked for %s: %s", self.job.name, full)
        until = time.monotonic() + _NO_ROOM
        while time.monotonic() < until and not (self.fired or self.runner.signals.quit):
            yield until
        return Report(JobGivenBack(f"no process can be forked: {full}"))

    def _look(self) -> None:
        """End the process where its job is to end."""
        if self._child is None:
            return
        if self.job.is_lost:
            self._child.kill()
        elif self.fired is not None and not self._is_told:
            self._is_told = True
            self._child.end_by(self.fired, self.runner.options.grace)

    def cover(self, timeout: float) -> None:
        """Look after the attempt, which has `timeout` seconds from its beginning; 0 is no limit."""
        limit = timeout + self.runner.options.grace if timeout else 0
        left = max(0.001, self.began + self._lag + limit - time.monotonic()) if limit else 0
        if self._child is not None:
            self._child.allow(left)
        self.runner.leases.keep(self.job, left)
        if self.scoreboard is not None:
            # The pool looks after this process, which ends the job's itself.
            ours = left + STACKS + _PATIENCE if left else 0
            self.scoreboard.running(self.job.reservation.fence, ours, self.permits)

    def _heard(self, message: Message) -> bool:
        """Hear the process; says whether that was its report."""
        try:
            return self._noted(message)
        except (BackendUnavailable, SettleError) as error:
            log.warning("%s: %s", self.job.name, error)
        except Exception:
            log.exception("%s %s: what its process says is odd", self.job.name, self.job.uuid)
        return False

    def _noted(self, message: Message) -> bool:
        match message.pop("say", ""):
            case "report":
                self._error, self._waits = message["error"], message["waits"]
                end = unpacked_end(message["end"])
                self._verdict = Verdict(Outcome(message["outcome"]), end)
                return True
            case "intent":
                self._intent = unpacked_end(message)
            case "began":
                self._lag = message["lag"]
                self.cover(self.limits.timeout)
            case "known" | "bounded" as what:
                self._learn_class(what, message)
            case "completing":
                self._let_complete(answers=message["waits"])
            case "still open":
                self.job.still_open()
            case "renew":
                self.job.renew()
            case "progress":
                self.job.progress(message["done"], message["text"])
            case "log":
                self.job.note_log(message["line"])
        return False

    def _learn_class(self, what: str, message: Message) -> None:
        """Hear of a class that only the process has imported."""
        if what == "bounded":
            self._admit(message["name"], message["concurrency"])
        else:
            self.name = self._name
            self.limits.timeout = message["timeout"]
            self.cover(self.limits.timeout)

    def _admit(self, name: str, concurrency: int) -> None:
        """Tell the process whether one more of its class, which is known only there, may run."""
        bounds, seconds = self.runner.bounds, None
        try:
            if bounds is not None:
                seconds = bounds.admit(self.job, self._name, name, concurrency)
                self.cover(self.limits.timeout)
        except BackendUnavailable:
            seconds = _NO_ROOM
            raise
        finally:
            if self._child is not None:
                self._child.tell({"delay": seconds})

    def _let_complete(self, *, answers: bool) -> None:
        """Keep out of the way of a transaction in which the process completes the job."""
        try:
            self.job.completing()
        finally:
            if answers and self._child is not None:
                self._child.tell({"ours": not self.job.is_lost})

    def _why(self, process: SupervisedChild) -> BaseException:
        """Say what became of a process that did not say it."""
        if process.exit is None:
            job = self.job
            log.error(
                "%s %s: its process %d cannot be killed; the job is settled without it, its slot "
                "is taken until it is gone",
                job.name,
                job.uuid,
                process.pid,
            )
        if self.fired is not None:
            return self.fired
        if process.exit is None or process.was_late:
            timeout, grace = self.limits.timeout, self.runner.options.grace
            return JobTimedOut(
                f"ran longer than its timeout of {timeout:g} s, did not end in {grace:g} s more, "
                "and was killed"
            )
        silence = "" if process.exit.is_killed else " without saying how the job did"
        return DirtyExit(f"the process of the job {process.exit.words()}{silence}")

    def _completion_learned(self, error: BaseException | None) -> Steps[None]:
        """Learn what became of a transaction within which the process has completed the job."""
        job, until = self.job, time.monotonic() + PATIENCE
        try:
            while job.is_completing and time.monotonic() < until:
                if job.context.backend.standing(job.reservation) is not Standing.LOCKED:
                    break
                yield time.monotonic() + _GLANCE
        except BackendUnavailable as unanswered:
            log.debug("%s: %s", job.name, unanswered)
        self._learn_completion(error, 0.0)

    # -- what becomes of it -----------------------------------------------------------------------

    def _concluded(self, report: Report) -> Steps[Verdict]:
        """Settle the job as it has told, and say what is to become of it."""
        intent = None if self.job.is_settled else self._intent
        if intent is not None and not (yield from self._said(intent)):
            return outcomes.LOST
        verdict, error = self.conclude(report), report.error
        if verdict is not _TO_BE_ASKED or error is None:
            return verdict
        yield from self._one_more(lambda there: there.stand_in(error))
        return self._verdict or super().decide(report)

    def decide(self, report: Report) -> Verdict:
        """Take what the job's process says; one more is to be asked where it has died."""
        error = report.error
        if self._verdict is None and error is not None and not outcomes.is_early(error):
            return _TO_BE_ASKED
        return self._verdict or super().decide(report)

    def _settled(self, verdict: Verdict) -> Steps[Outcome]:
        """Carry a verdict out, and tell of it."""
        outcome, end = verdict
        job = self.job
        if outcome is Outcome.LOST:
            self.runner.lost(job, self.name)
            return outcome
        if not job.is_settled and not (yield from self._said(end)):
            return Outcome.LOST
        if self._waits and self._child is not None:
            told = {"outcome": outcome, "end": packed_end(end), "seconds": self._took}
            yield from self._child.telling(told)
            yield from self._dismissed(self._patience)
        elif outcome is Outcome.FAILED and job.refusal is None:
            yield from self._one_more(lambda there: there.tell(verdict, self._took))
        self._tell(outcome, end, self._took)
        return outcome

    def _said(self, end: End) -> Steps[bool]:
        """End the job with the next exchange, and wait for what comes of that where it may fail.

        False where the job was not ours any more.
        """
        answers: list[bool] = []

        def told(ours: bool) -> None:
            answers.append(ours)
            self.until = 0.0

        waits = end.state is not State.COMPLETE
        try:
            yield from self._deferred(end, told if waits else None)
            while waits and not answers:
                yield math.inf
        except SettleError as error:
            log.warning("%s", error)
            answers.append(False)
        if False in answers:
            self.runner.lost(self.job, self.name)
        return False not in answers

    def _deferred(self, end: End, told: Callable[[bool], None] | None) -> Steps[None]:
        """Have the next exchange end the job; its features may have to ask the backend before.

        Tries again while that does not answer and the lease may still hold.
        """
        pause, give_up = _FIRST_PAUSE, time.monotonic() + self.runner.connection.retry_after
        while True:
            try:
                self.runner.exchange.defer(self.job, end, told)
            except BackendUnavailable as error:
                if time.monotonic() + pause > give_up:
                    raise
                if pause == _FIRST_PAUSE:
                    log.warning("%s cannot be settled yet: %s", self.job.name, error)
                yield time.monotonic() + pause
                pause = min(_LONGEST_PAUSE, pause * 2)
            else:
                return

    def tell_failed(self, error: BaseException) -> None:
        """Leave it to the job's process."""

    @property
    def _grace(self) -> float:
        return max(1.0, self.runner.options.grace)

    @property
    def _patience(self) -> float:
        options = self.runner.options
        return options.timeout + options.grace if options.timeout else 0

    def _one_more(self, work: Work) -> Steps[None]:
        """Have one more process do what the job's own cannot do any more, and wait for that."""
        yield from self._dismissed(self._patience)
        try:
            self._child = self.runner.fork(self, work)
        except OSError as error:
            log.warning("no process can be forked: %s", error)
        else:
            self._child.allow(self._patience)
            yield from self._child.waiting(self._heard)

    def _dismissed(self, seconds: float) -> Steps[None]:
        """Wait for the process's end; it has so many seconds."""
        done, self._waits = self._child, False
        if done is None:
            return
        known = done.exit is not None
        yield from done.ending(seconds)
        self._child = None
        if not known and done.exit is not None and not done.exit.is_clean:
            log.warning(
                "%s %s had ended, then its process %s",
                self.job.name,
                self.job.uuid,
                done.exit.words(),
            )
