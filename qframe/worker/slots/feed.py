"""Feed: one run of a worker of many jobs; a thread takes them, this one runs the event loop."""

from __future__ import annotations

import logging
import math
import os
import sys
import time

from qframe import events
from qframe.contracts.backend import Capability
from qframe.drivers import heartbeat
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable, JobGivenBack
from qframe.worker import presence
from qframe.worker.control import EVERY
from qframe.worker.loop import Loop
from qframe.worker.options import StopReason
from qframe.worker.outcome import Outcome
from qframe.worker.slots.overseer import Overseer
from qframe.worker.slots.runner import SlotAttempt, SlotRunner

log = logging.getLogger("qframe")

_BLOCKED = 1.0
"""Seconds after which a loop that is to end its jobs counts as blocked for good."""
_PAUSE = 0.2
_AT_ONCE = 12
"""Jobs that are started in one exchange: the first run while the next are on their way."""


class Feed(Loop):
    """Puts jobs into slots as long as there are free ones, until it is to stop.

    The exchanges with the backend are this thread's alone: it reserves, starts and settles for all
    jobs, and says at once what has come up meanwhile.
    """

    runner: SlotRunner
    _reason = StopReason.INTERRUPTED
    _error: BaseException | None = None

    def run(self) -> StopReason:
        """Work, and say why it stopped."""
        loop = self.runner.jobs_loop
        overseer = Overseer(self.runner)
        overseer.start()
        thread = start_thread("qframe-feed", self._feed)
        try:
            loop.run()
        finally:
            thread.join()
            overseer.stop()
            loop.close(self.options.grace)
        if self._error is not None:
            raise self._error
        return self._reason

    def _feed(self) -> None:
        try:
            heartbeat.use(self._beats)
            try:
                self._reason = super().run()
                self._drain()
            finally:
                super()._let_go()
                self.connection.backend.close()  # this thread's connection
        except BaseException as error:  # noqa: BLE001 (raised where the worker was called)
            self._error = error
        finally:
            self.runner.jobs_loop.stop()
            if self.runner.stuck is not None and self.runner.jobs_loop.blocked() > _BLOCKED:
                self._leave_the_loop()

    def _let_go(self) -> None:
        """Leave it to the thread that holds the jobs."""

    # -- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Start jobs in free slots and hold others; wait where there is nothing to be done."""
        self._note_ended()
        self._control.look()
        if self._control.restart:
            return True
        if not self._may_work():
            self._stand_by()
            return bool(self._control.active or self.runner.busy) or self._found_more()
        did = self._exchange()
        if self._lost_since or not self._answered:
            self._backend_answers()
        if not did and not self.runner.exchange.has_ends:
            self._wait_for_work()
            return bool(self.runner.busy) or self._found_more()
        return True

    def _exchange(self) -> bool:
        """Say what has come up, and take what there is room for; says whether there was a job."""
        starting = self._startable()
        queues = self._control.active
        limit = self._room(len(starting))
        if limit > 0 and queues:
            events.fire(events.JobPopping, self.connection.name, queues)
        jobs = [attempt.job for attempt in starting]
        try:
            found = self.runner.exchange.start_all(jobs, queues, limit)
        except BackendUnavailable:
            for job in reversed(jobs):
                if not (job.has_started() or job.is_settled):
                    self._held.appendleft(job)
            raise
        self._held.extend(found)
        if starting:
            self._idle = False
            self.runner.take([attempt for attempt in starting if attempt.job.has_started()])
        return bool(starting or found)

    def _startable(self) -> list[SlotAttempt]:
        """Give the held jobs there are slots for; those that are not to be run are settled."""
        starting: list[SlotAttempt] = []
        while self._held and len(starting) < min(_AT_ONCE, self.runner.free):
            job = self._held.popleft()
            events.fire(events.JobPopped, job)
            attempt = SlotAttempt(self.runner, job)
            try:
                verdict = attempt.refused()
            except BackendUnavailable:
                self._held.appendleft(job)
                self._held.extendleft(reversed([each.job for each in starting]))
                raise
            if verdict is None:
                starting.append(attempt)
            else:
                self.runner.settle(attempt, verdict)
        return starting

    def _room(self, starting: int) -> int:
        """Give how many more to hold: as many as there are slots, or will be in a moment."""
        options = self.options
        taken = self.runner.busy + starting
        room = options.concurrency - taken - len(self._held)
        if Capability.AHEAD in self.connection.capabilities and not options.once:
            room += min(self._prefetch.limit(), options.concurrency) - 1
        if options.once or options.max_jobs:
            most = 1 if options.once else options.max_jobs
            room = min(room, most - self.jobs - taken - len(self._held))
        return room

    def _note_ended(self) -> None:
        """Free the slots of those that have ended, and count them."""
        runner = self.runner
        while runner.ended:
            attempt = runner.ended.popleft()
            runner.leave(attempt)
            self._prefetch.ran(attempt.seconds)
            if attempt.outcome is not Outcome.LOST:
                runner.counts.count(attempt.name, attempt.job.queue, attempt.outcome)
                self.jobs += 1
        self._ended_by = runner.stuck or runner.signals.interrupted

    # -- waiting ----------------------------------------------------------------------------------

    def _wait_for_work(self) -> None:
        """Wait for a job, or for the end of one."""
        runner = self.runner
        if not (self._idle or runner.busy):
            self._idle = True
            events.fire(events.WorkerIdle, self.connection.name, self._given)
        self.signals.drain()
        told = self.signals.quit or self.signals.paused != self._paused or self._ended_by
        if told or (self.options.stop_when_empty and not runner.busy):
            return
        queues = self._control.active if self._room(0) > 0 else ()
        timeout = self._seconds_to_wait()
        runner.sleeps = True
        try:
            if runner.ended or runner.exchange.has_ends:
                return
            if queues and not self._held:
                self.connection.backend.wait(queues, timeout, self.signals.fileno())
            else:
                self.signals.wait(timeout)
        finally:
            runner.sleeps = False
            self._memory_seen = time.monotonic() if queues else self._memory_seen

    def _stand_by(self) -> None:
        """Paused or vetoed: hold nothing, settle what ends, and wait."""
        self.runner.exchange.flush()
        self._give_back_held()
        self._sleep(EVERY)

    def _sleep(self, seconds: float) -> None:
        """Wait for the end of a job."""
        runner = self.runner
        runner.sleeps = True
        if not (runner.ended or runner.exchange.has_ends):
            self.signals.wait(seconds)
        runner.sleeps = False

    def _rest(self) -> None:
        """Others may run."""

    # -- its end ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Take no more, and settle what still runs as it ends."""
        self._give_back_held_quietly()
        runner = self.runner
        began = time.monotonic()
        while runner.busy > runner.left or runner.exchange.has_ends:
            self._note_ended()
            if runner.stuck is not None:
                self._give_back(unlimited=time.monotonic() - began > self.options.grace)
            try:
                runner.exchange.flush()
            except BackendUnavailable as error:
                self._backend_lost(error)
                if self._gave_up_settling():
                    return
            self._sleep(_PAUSE)
            self._note_ended()

    def _give_back_held_quietly(self) -> None:
        try:
            self._give_back_held()
        except BackendUnavailable as error:
            log.warning("what is held comes back when its lease ends: %s", error)

    def _gave_up_settling(self) -> bool:
        return time.monotonic() - self._lost_since >= self.connection.retry_after

    def _give_back(self, *, unlimited: bool) -> None:
        """Give back the neighbours of a job that does not end which would not, either."""
        blocked = self.runner.jobs_loop.blocked() > _BLOCKED
        for each in self.runner.attempts:
            cannot = blocked and each.interrupts.is_on_loop
            if not each.is_left and (cannot or (unlimited and each.interrupts.due == math.inf)):
                why = "its loop is blocked" if cannot else "another job does not end"
                self.runner.settle_without(each, JobGivenBack(f"its worker ends: {why}"))

    def _leave_the_loop(self) -> None:
        """End the process: the thread that would is in a job that does not end."""
        name, reason = self.connection.name, self._reason
        events.fire(events.WorkerStopping, name, self._given, reason, reason.exit_code, self.jobs)
        self._beats.end(self._presence.leave, presence.PARTING)
        sys.stderr.write("qframe: a job that does not end blocks the event loop: leaving\n")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(reason.exit_code)
