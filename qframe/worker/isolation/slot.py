"""ProcessSlot: one reserved job whose handler runs in a process of its own.

It answers what the life of its attempt needs, each need as a generator. It yields to wait, and the
worker advances its other jobs meanwhile.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from qframe import events
from qframe.contracts.backend import Standing
from qframe.contracts.status import State
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    DirtyExit,
    Interruption,
    JobGivenBack,
    JobTimedOut,
    LeaseLost,
    SettleError,
)
from qframe.features.base import End
from qframe.features.completion import PATIENCE
from qframe.features.reserved import ReservedJob
from qframe.worker import needs
from qframe.worker import outcome as outcomes
from qframe.worker.isolation.child import ChildAttempt, Work
from qframe.worker.isolation.messages import Message, packed_end, unpacked, unpacked_end
from qframe.worker.isolation.supervision import STACKS, Steps, SupervisedChild
from qframe.worker.needs import Answers, Report, lived_in_steps
from qframe.worker.outcome import JobOutcome, Verdict
from qframe.worker.recorder.isolated import JobRecorder
from qframe.worker.slots.base import Slot, SlottedRunner

log = logging.getLogger("qframe")

_NO_ROOM = 2.0
"""Seconds to wait if there was no room for one more process."""
_PATIENCE = 5.0
"""Seconds a pool gives this process more than it gives the job's."""
_GLANCE = 0.02
RECORDED = (DirtyExit, JobTimedOut, MemoryError)
"""The errors of a job of which its recording is kept."""


class ProcessSlot(Slot):
    """One attempt. `steps` is its generator, `until` when to advance it at the latest."""

    steps: Steps[None]
    until = 0.0
    runs = False
    fired: Interruption | None = None
    """What its handler was to end by."""
    _child: SupervisedChild | None = None
    _error: Message | None = None
    """The error in the process's report."""
    _verdict: Verdict | None = None
    """What is to become of the job, if the process has decided."""
    _waits = False
    """Whether the process waits for the outcome."""
    _intent: End | None = None
    """How the job has settled itself."""
    _recorder: JobRecorder | None = None
    _lag = 0.0
    """Seconds from the fork to the handler's begin, if they were many."""
    _knows_stop = False
    """Whether the process was informed that the worker stops."""
    _was_ended = False
    """Whether the process was told to end."""

    def __init__(
        self,
        runner: SlottedRunner,
        job: ReservedJob,
        fork: Callable[[ProcessSlot, Work], SupervisedChild],
        recorder: Callable[[], JobRecorder | None],
        give_back: Callable[[JobRecorder], None],
    ) -> None:
        super().__init__(runner, job)
        self._give_recorder, self._give_back = recorder, give_back
        self._fork = fork
        """Forks a process that does some work; raises `OSError` if the system allows no more."""

    def begin(self) -> None:
        self.steps = self._to_its_end()

    def abandon(self, seconds: float) -> None:
        """Only waits for the process's end, at most so long."""
        self.steps.close()
        self.steps = self._dismissed(seconds)

    def end(self, error: Interruption) -> None:
        """Ends the handler, if it runs and was not ended before; also from a signal handler."""
        if self.runs and self.fired is None:
            self.fired = error
            self._look()

    def ring(self) -> float:
        """Ends the process if it is late, and returns when it will be; from a signal handler."""
        return math.inf if self._child is None else self._child.deadline()

    def _to_its_end(self) -> Steps[None]:
        try:
            life = lived_in_steps(self, self.life, _ANSWERS, self.need)
            self.attempt.outcome = yield from life
        except Exception:
            log.exception("%s cannot be settled; its lease brings it back", self.job.name)
        self.is_left = self._child is not None and self._child.is_stuck
        yield from self._dismissed(self._grace)
        self.is_left = False
        if self._recorder is not None:  # no process uses it any more
            self._give_back(self._recorder)

    # -- while it runs ----------------------------------------------------------------------------

    def perform(self, _: needs.Run) -> Steps[Report]:
        """Calls the handler in a process of its own, and reports how it ended."""
        attempt, job = self.attempt, self.job
        events.fire(events.JobForking, job)
        attempt.began = time.monotonic()
        self.runs = True
        recorder = attempt.recorder = self._recorder = self._give_recorder()
        if recorder is not None:
            recorder.begin(attempt.began)
        try:
            try:
                process = self._child = self._fork(self, ChildAttempt.go)
                if recorder is not None:
                    recorder.forked(process.pid)
                    process.on_late = recorder.is_late
                job.says_completing = partial(process.has_unread, "completing")
            except OSError as full:
                return (yield from self._without_room(full))
            self.cover(attempt.limits.timeout)
            reported = yield from process.waiting(self._handle, self._look_and_record)
        finally:
            self.runs = False
            attempt.recorder = None  # for this process only
            job.says_completing = None
        attempt.has_ended()
        waits = self._waits
        if reported and not waits:
            yield from self._dismissed(self._grace)
        error = unpacked(self._error)
        if not reported:
            error = None if job.is_lost else self._why(process)
        if error is not None:  # it may have been amid a step
            job.reservation.unsent = True
            if recorder is not None and isinstance(error, RECORDED):
                job.recording = recorder.recording(
                    self._how(process, error), error, job.attempts(), process.exit
                )
        return Report(error, None, self._verdict, self._intent, waits)

    def _without_room(self, full: OSError) -> Steps[Report]:
        log.warning("no process can be forked for %s: %s", self.job.name, full)
        until = time.monotonic() + _NO_ROOM
        while time.monotonic() < until and not (self.fired or self.runner.signals.quit):
            yield until
        return Report(JobGivenBack(f"no process can be forked: {full}"))

    def _look_and_record(self) -> float:
        """Returns when the recorder is to look again."""
        self._look()
        recorder, now = self._recorder, time.monotonic()
        if recorder is None:
            return math.inf
        if now >= recorder.due:
            recorder.look(now)
        return recorder.due

    def _how(self, process: SupervisedChild, error: BaseException) -> str:
        timeout = f"{self.attempt.limits.timeout:g} s"
        if isinstance(error, MemoryError):
            return "ran out of memory (MemoryError)"
        if process.was_late:
            return f"killed after its timeout of {timeout}"
        if isinstance(error, JobTimedOut) or process.exit is None:
            return f"timed out after {timeout}"
        return process.exit.how()

    def _look(self) -> None:
        if self._child is None:
            return
        if self.job.is_lost:
            self._child.kill()
        elif self.fired is not None and not self._was_ended:
            self._was_ended = True
            self._child.end_by(self.fired, self.runner.options.grace)
        elif self.runner.signals.quit and not self._knows_stop:
            self._knows_stop = True
            self._child.announce_stop()

    def cover(self, timeout: float) -> None:
        """Watches the attempt, which has `timeout` seconds from its start; 0 is no limit."""
        limit = timeout + self.runner.options.grace if timeout else 0
        attempt = self.attempt
        left = max(0.001, attempt.began + self._lag + limit - time.monotonic()) if limit else 0
        if self._child is not None:
            self._child.allow(left)
        self.runner.leases.keep(self.job, left)
        if attempt.scoreboard is not None:
            # The pool watches this process, which itself ends the job's.
            ours = left + STACKS + _PATIENCE if left else 0
            attempt.scoreboard.running(self.job.reservation.fence, ours, attempt.slot_leases)

    def _handle(self, message: Message) -> bool:
        """Takes in a message; returns whether it was the report."""
        try:
            return self._noted(message)
        except (BackendUnavailable, SettleError) as error:
            log.warning("%s: %s", self.job.name, error)
        except Exception:
            log.exception("%s %s: what its process says is odd", self.job.name, self.job.uuid)
        return False

    def _noted(self, message: Message) -> bool:  # noqa: C901 (a case each)
        match message.pop("kind", ""):
            case "report":
                self._error, self._waits = message["error"], message["waits"]
                end = unpacked_end(message["end"])
                self._verdict = Verdict(JobOutcome(message["outcome"]), end)
                return True
            case "intent":
                self._intent = unpacked_end(message)
            case "began":
                self._lag = message["lag"]
                self.cover(self.attempt.limits.timeout)
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
            case "steps":
                self.job.attach_steps()
        return False

    def _learn_class(self, what: str, message: Message) -> None:
        """Takes in the limits of a class that only the process has imported."""
        if what == "bounded":
            self._admit(message["name"], message["concurrency"])
        else:
            self.attempt.limits.timeout = message["timeout"]
            self.cover(self.attempt.limits.timeout)

    def _admit(self, name: str, concurrency: int) -> None:
        """Answers whether one more job of a class may run that only the process knows."""
        limits, seconds = self.runner.concurrency, None
        try:
            if limits is not None:
                seconds = limits.admit(self.job, self.attempt.name, name, concurrency)
                self.cover(self.attempt.limits.timeout)
        except BackendUnavailable:
            seconds = _NO_ROOM
            raise
        finally:
            if self._child is not None:
                self._child.send({"delay": seconds})

    def _let_complete(self, *, answers: bool) -> None:
        """Leaves the job alone while the process completes it in a transaction."""
        try:
            self.job.completing()
        finally:
            if answers and self._child is not None:
                self._child.send({"ours": not self.job.is_lost})

    def _why(self, process: SupervisedChild) -> BaseException:
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
            timeout, grace = self.attempt.limits.timeout, self.runner.options.grace
            return JobTimedOut(
                f"ran longer than its timeout of {timeout:g} s, did not end in {grace:g} s more, "
                "and was killed"
            )
        silence = "" if process.exit.is_killed else " without saying how the job did"
        return DirtyExit(f"the process of the job {process.exit.words()}{silence}")

    def learn(self, learn: needs.Learn) -> Steps[None]:
        """Learns whether a transaction committed in which the process completed the job."""
        job, until = self.job, time.monotonic() + PATIENCE
        try:
            while job.is_completing and time.monotonic() < until:
                if job.context.backend.standing(job.reservation) is not Standing.LOCKED:
                    break
                yield time.monotonic() + _GLANCE
        except BackendUnavailable as unanswered:
            log.debug("%s: %s", job.name, unanswered)
        self.attempt.learn_completion(learn.error, 0.0)

    # -- what becomes of it -----------------------------------------------------------------------

    def decide(self, decide: needs.Decide) -> Steps[Verdict]:
        """Asks one more process, since the job's own has died; none if its end says all."""
        if outcomes.is_early(decide.error):
            return self.attempt.decide(decide.error)
        yield from self._one_more(lambda there: there.stand_in(decide.error))
        return self._verdict or self.attempt.decide(decide.error)

    def settle(self, settle: needs.Settle) -> Steps[None]:
        """Ends the job with the next request, and waits for the reply if that may fail."""
        answers: list[bool] = []

        def on_result(ours: bool) -> None:
            answers.append(ours)
            self.until = 0.0

        job, waits = self.job, settle.end.state is not State.COMPLETE
        self.runner.settler.defer(job, settle.end, on_result if waits else None)
        while waits and not answers:
            yield math.inf
        if False in answers:
            raise LeaseLost(f"{job.name} {job.uuid}: {LOST_LEASE}")

    def call_failed(self, need: needs.CallFailed) -> Steps[None]:
        """Sends the outcome to the job's process, or to one more if it has none."""
        (outcome, end), took = need.verdict, self.attempt.ran or 0.0
        if self._waits and self._child is not None:
            outcome_message = {"outcome": outcome, "end": packed_end(end), "seconds": took}
            yield from self._child.sending(outcome_message)
            yield from self._dismissed(self._patience)
        elif outcome is JobOutcome.FAILED and self.job.refusal is None:
            yield from self._one_more(lambda there: there.call_failed(need.verdict, took))

    def pause(self, pause: needs.Wait) -> Steps[None]:
        until = time.monotonic() + pause.seconds
        while time.monotonic() < until:
            yield until

    @property
    def _grace(self) -> float:
        return max(1.0, self.runner.options.grace)

    @property
    def _patience(self) -> float:
        options = self.runner.options
        return options.timeout + options.grace if options.timeout else 0

    def _one_more(self, work: Work) -> Steps[None]:
        """Has one more process do what the job's own cannot do any more, and waits for it."""
        yield from self._dismissed(self._patience)
        try:
            self._child = self._fork(self, work)
        except OSError as error:
            log.warning("no process can be forked: %s", error)
        else:
            self._child.allow(self._patience)
            yield from self._child.waiting(self._handle)

    def _dismissed(self, seconds: float) -> Steps[None]:
        """Waits for the process's end; it has so many seconds."""
        done, self._waits = self._child, False
        if done is None:
            return
        known = done.exit is not None
        yield from done.ending(seconds)
        self._child = None
        if done.exit is not None:
            self.attempt.used(done.exit.seconds, done.exit.megabytes)
        if not known and done.exit is not None and not done.exit.is_clean:
            log.warning(
                "%s %s had ended, then its process %s",
                self.job.name,
                self.job.uuid,
                done.exit.words(),
            )


_ANSWERS: Answers = {
    needs.Begin: lambda *_: True,
    needs.Run: ProcessSlot.perform,
    needs.Learn: ProcessSlot.learn,
    needs.Decide: ProcessSlot.decide,
    needs.Settle: ProcessSlot.settle,
    needs.CallFailed: ProcessSlot.call_failed,
    needs.Wait: ProcessSlot.pause,
}
