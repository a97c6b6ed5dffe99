"""SlotLoop: one run of a worker of many jobs. Fetcher does it in a thread, beside an event loop."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from qframe import events
from qframe.contracts.backend import Capability
from qframe.drivers import heartbeat
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable, JobGivenBack
from qframe.features.reserved import ReservedJob
from qframe.jobs import completing
from qframe.worker import presence
from qframe.worker.control import EVERY
from qframe.worker.loop import Loop
from qframe.worker.options import MOST_AT_ONCE, StopReason
from qframe.worker.outcome import JobOutcome
from qframe.worker.presence import Sight
from qframe.worker.slots.base import Slot, SlottedRunner
from qframe.worker.slots.overseer import Overseer
from qframe.worker.slots.runner import SlotRunner

log = logging.getLogger("qframe")

_BLOCKED = 1.0
"""Seconds after which a loop that is to end its jobs counts as blocked for good."""
_PAUSE = 0.2
_TOLD = 4
_TOLD_OF_BRIEF = 25
_WAITED_FOR = 12
"""Jobs started in one request, without and with waiting for its reply.

The first run while the next are on their way. With 12, 50 slots do 4,100 jobs a second that sleep
for 10 ms, and with 4, 4,350; of jobs that are over at once they do a third more with 25.
"""


class SlotLoop(Loop):
    """Puts jobs into slots as long as there are free ones, until it is to stop.

    It reserves, starts and settles for all jobs, and sends at once what has come up meanwhile.
    """

    runner: SlottedRunner
    _at_once = _WAITED_FOR
    _scaled = 0
    """The number of slots it was last told to have."""
    _ends_since = math.inf
    """Since when it takes no more."""

    # -- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Starts jobs in free slots and holds others; waits if there is nothing to do."""
        self._note_ended()
        self.control.look()
        self._scale()
        if self.control.ends:
            return True
        if not self._may_work():
            self._stand_by()
            return bool(self.control.active or self.runner.busy) or self._found_more()
        did = self._exchange()
        if self._lost_since or not self._answered:
            self._backend_answers()
        if not did and not self.runner.settler.has_ends:
            self._wait_for_work()
            return bool(self.runner.busy) or self._found_more()
        return True

    def _exchange(self) -> bool:
        """Sends what has come up, and takes jobs for the room; returns whether there was one."""
        starting = self._startable()
        if starting:
            self._start(starting)
        queues, found = self.control.active, []
        limit = self._room()
        if limit > 0 and queues:
            events.fire(events.JobPopping, self.connection.name, queues)
            found = self.runner.settler.reserve(queues, limit)
            self._held.extend(found)
        elif not starting:
            self.runner.settler.flush()
        return bool(starting or found)

    def _start(self, starting: list[Slot]) -> None:
        self._idle = False
        jobs = [slot.job for slot in starting]
        settler = self.runner.settler
        try:
            is_known = settler.start_all(jobs, wait=self._waits_for(starting, jobs))
        except BackendUnavailable:
            for job in reversed(jobs):
                if not (job.has_started() or job.is_settled):
                    self.runner.let_go(job)
                    self._held.appendleft(job)
            raise
        told = _TOLD_OF_BRIEF if self._prefetch.are_brief else _TOLD
        self._at_once = _WAITED_FOR if is_known else told
        refused = self._refused()
        for job in jobs:
            if job.is_lost:
                self.runner.let_go(job)
        self.runner.take(
            [each for each in starting if not (each.job.is_lost or each.job in refused)]
        )

    def _waits_for(self, starting: Sequence[Slot], jobs: Sequence[ReservedJob]) -> bool:
        """Whether the thread waits for the reply to these starts before the jobs run."""
        waits, runner = completing.waits, self.runner
        attempts = [each.attempt for each in starting]
        seen = [each for each in attempts if waits.get(each.name, True) and runner.sees_start(each)]
        return bool(seen) or runner.take_permits(jobs)

    def _refused(self) -> list[ReservedJob]:
        """Holds jobs again whose start was refused, to try another slot lease."""
        refused = self.runner.settler.refused
        for job, result in reversed(refused):
            self.runner.was_refused(job, result)
            if not job.is_settled:
                self._held.appendleft(job)
        return [job for job, _ in refused]

    def _here(self) -> list[ReservedJob]:
        return [*self._held, *self.runner.running.copy()]

    def _startable(self) -> list[Slot]:
        """Returns the held jobs there are slots for; settles those that must not run."""
        starting: list[Slot] = []
        while self._held and len(starting) < min(self._at_once, self.runner.free):
            job = self._held.popleft()
            events.fire(events.JobPopped, job)
            slot = self.runner.slot(job)
            try:
                starts = slot.is_startable()
                if starts and not self.runner.has_room(slot.attempt):
                    continue
            except BackendUnavailable:
                self._held.appendleft(job)
                for each in reversed(starting):
                    self.runner.unsaid(each.job)
                    self._held.appendleft(each.job)
                raise
            if starts:
                starting.append(slot)
            elif slot.need is not None:
                self.runner.settle_unstarted(slot)
        return starting

    def _room(self) -> int:
        """Returns how many more to hold: as many as there are slots, or will be in a moment.

        None while half of the latter are held: the thread then starts jobs rather than waits for
        more.
        """
        options = self.options
        taken = self.runner.busy
        room = self.runner.slots - taken - len(self._held)
        if Capability.AHEAD in self.connection.capabilities and not options.once:
            ahead = self._ahead()
            room = room + ahead if 2 * len(self._held) <= ahead else 0
        if options.once or options.max_jobs:
            most = 1 if options.once else options.max_jobs
            room = min(room, most - self.jobs - taken - len(self._held))
        return room

    def _ahead(self) -> int:
        return min(self._prefetch.limit(), self.runner.slots) - 1

    def _note_ended(self) -> None:
        runner = self.runner
        while runner.ended:
            slot = runner.ended.popleft()
            runner.leave(slot)
            self._prefetch.ran(slot.seconds)
            if slot.attempt.outcome is not JobOutcome.LOST:
                runner.count(slot.attempt)
                self.jobs += 1

    def _scale(self) -> None:
        told = self.control.slots if self._member is None else self._member.scoreboard.slots
        if not 1 <= told <= MOST_AT_ONCE or told == self._scaled:
            return
        self._scaled, before = told, self.runner.slots
        try:
            self.runner.scale(told)
        except OSError as error:
            log.warning("scaling to %d jobs at once: %s; it stays at %d", told, error, before)
            return
        self._prefetch.slots = told
        if told != before:
            events.fire(events.WorkerScaled, self.connection.name, self._given, told)
        if told < before:
            self._give_back_held()  # there may be no room for it soon

    def _seen(self) -> Sight:
        return super()._seen()._replace(slots=self.runner.slots)

    # -- waiting ----------------------------------------------------------------------------------

    def _wait_for_work(self) -> None:
        runner = self.runner
        if not (self._idle or runner.busy):
            self._idle = True
            events.fire(events.WorkerIdle, self.connection.name, self._given)
        self._hear_signals()
        told = self.signals.quit or self.signals.paused != self._paused or self._ended_by
        if told or (not runner.busy and self._is_all()):
            return
        has_room = self._room() > 0
        queues = self._open() if has_room else ()
        timeout = self._seconds_to_wait(looks=has_room)
        runner.settler.read_replies()
        try:
            self._sleep(timeout, () if self._held else queues)
        finally:
            self._memory_seen = time.monotonic() if queues else self._memory_seen

    def _hear_signals(self) -> None:
        """From now on a signal ends the wait that follows."""
        self.signals.drain()

    @abstractmethod
    def _sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        """Waits for the end of a job, a signal, or a job of these queues."""

    def _stand_by(self) -> None:
        """Paused or vetoed: holds nothing, settles what ends, and waits."""
        self.runner.settler.flush()
        self._give_back_held()
        self._sleep(EVERY)

    def _rest(self) -> None:
        """Nothing: others may run."""

    # -- its end ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Takes no more, and settles running jobs as they end."""
        self._ends_since = time.monotonic()
        super()._let_go()
        self._note_ended()
        runner = self.runner
        while runner.busy > runner.left or runner.settler.has_ends:
            if not self._settle_ended():
                return
            self._sleep(_PAUSE)
            self._note_ended()

    def _settle_ended(self) -> bool:
        """Sends what has come up; false if the backend has been away for too long."""
        has_ends = self.runner.settler.has_ends
        try:
            self.runner.settler.flush()
        except BackendUnavailable as error:
            self._backend_lost(error)
            return not self._gave_up_settling()
        if has_ends and self._lost_since:
            self._backend_answers()
        return True

    def _gave_up_settling(self) -> bool:
        return time.monotonic() - self._lost_since >= self.connection.retry_after


class Fetcher(SlotLoop):
    """Talks to the backend in a thread; its own thread runs the event loop."""

    runner: SlotRunner
    _reason = StopReason.INTERRUPTED
    _error: BaseException | None = None

    def run(self) -> StopReason:
        loop = self.runner.jobs_loop
        overseer = Overseer(self.runner)
        overseer.start()
        thread = start_thread("qframe-fetcher", self._fetch)
        try:
            loop.run()
        except OSError as error:
            self.signals.leave_if_closed("a job")
            self._reason = StopReason.LOST_BACKEND
            self._leave(f"the event loop is broken: {error}")
        finally:
            thread.join()
            overseer.stop()
            loop.close(self.options.grace)
        if self._error is not None:
            raise self._error
        return self._reason

    def _fetch(self) -> None:
        try:
            heartbeat.use(self._beats)
            try:
                self._reason = super().run()
                self._drain()
            finally:
                super()._let_go()
                self.connection.backend.leave()
        except BaseException as error:  # noqa: BLE001 (raised where the worker was called)
            self._error = error
        finally:
            self.runner.jobs_loop.stop()
            self.runner.signals.arm(0.0)  # for a loop without a wakeup: a job closed its files
            if self.runner.stuck is not None and self.runner.jobs_loop.blocked() > _BLOCKED:
                self._leave("a job that does not end blocks the event loop")

    def _let_go(self) -> None:
        """Nothing: the thread that holds the jobs does it."""

    # -- jobs that run beside it ------------------------------------------------------------------

    def _note_ended(self) -> None:
        super()._note_ended()
        self._ended_by = self.runner.stuck or self.runner.signals.interrupted

    def _sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        runner = self.runner
        runner.sleeps = True
        try:
            if runner.ended or runner.settler.has_ends:
                return
            if queues:
                self.connection.backend.wait(queues, seconds, self.signals.fileno())
            else:
                self.signals.wait(seconds)
        finally:
            runner.sleeps = False

    # -- its end ----------------------------------------------------------------------------------

    def _settle_ended(self) -> bool:
        if self.runner.stuck is not None:
            late = time.monotonic() - self._ends_since > self.options.grace
            self._give_back(unlimited=late)
        return super()._settle_ended()

    def _give_back(self, *, unlimited: bool) -> None:
        """Gives back the jobs beside a stuck one that would not end, either."""
        blocked = self.runner.jobs_loop.blocked() > _BLOCKED
        for each in self.runner.going:
            cannot = blocked and each.interrupts.is_on_loop
            if not each.is_left and (cannot or (unlimited and each.interrupts.due == math.inf)):
                why = "its loop is blocked" if cannot else "another job does not end"
                self.runner.settle_without(each, JobGivenBack(f"its worker ends: {why}"))

    def _leave(self, why: str) -> NoReturn:
        """Ends the process if the loop cannot be ended; leases bring back what runs on it."""
        name, reason = self.connection.name, self._reason
        events.fire(events.WorkerStopping, name, self._given, reason, reason.exit_code, self.jobs)
        self._beats.end(self._presence.leave, presence.PARTING)
        with contextlib.suppress(OSError):
            os.write(2, f"qframe: {why}: leaving\n".encode())  # jobs may have taken `sys.stderr`
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(reason.exit_code or 1)
