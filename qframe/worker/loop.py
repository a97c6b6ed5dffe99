"""Worker: the loop of Laravel's `Worker::daemon`."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable

from qframe import events, execution, manager, tracebacks
from qframe.contracts import Capability, Job
from qframe.exceptions import (
    BackendUnavailable,
    BackendUnusable,
    ConfigurationError,
    SettleError,
)
from qframe.manager import QueueManager
from qframe.worker import memory, roster
from qframe.worker.ahead import Ahead
from qframe.worker.cancellation import Cancellation
from qframe.worker.control import EVERY, Control
from qframe.worker.member import Member
from qframe.worker.options import StopReason, WorkerOptions
from qframe.worker.presence import Presence, Sight
from qframe.worker.runner import Outcome, Runner
from qframe.worker.selection import Selection
from qframe.worker.sentinel import Sentinel
from qframe.worker.signals import Signals

log = logging.getLogger("qframe")

_MEMORY_EVERY = 0.1
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Worker:
    """Works the queues of one connection until there is a reason to stop.

    `run()` is what `qframe work` calls; it gives the exit code. Off the main thread it runs
    without signals, and so without timeouts, and says so; `stop()` ends it from any thread.
    Raises `ConfigurationError` for a connection that is unknown, holds no jobs, or cannot list its
    queues where one is to be matched by a pattern.
    """

    heeds_signals = True
    """False in a program, such as a test, whose signals are its own; then there are no timeouts."""

    def __init__(
        self, queues: QueueManager | None = None, options: WorkerOptions | None = None
    ) -> None:
        self.manager = queues or manager.default()
        self.options = options or WorkerOptions()
        self.queue = self.manager.connection(self.options.connection)
        self.queues = self.options.queues or (self.queue.default_queue,)
        if Capability.RESERVE not in self.queue.capabilities:
            raise ConfigurationError(
                f"the connection {self.queue.name!r} ({self.queue.settings.driver}) holds no jobs "
                "to work on"
            )
        self.selection = Selection(self.queues, self.queue.queues)
        if self.selection.patterns and Capability.LIST not in self.queue.capabilities:
            raise ConfigurationError(
                f"the connection {self.queue.name!r} ({self.queue.settings.driver}) cannot list "
                f"its queues: name them instead of {self.selection.patterns[0]!r}"
            )
        for name in self.selection.names:
            self.queue.check_queue(name)
        self.jobs = 0
        self.stop_reason: StopReason | None = None
        self.told: Callable[[roster.Entry], None] | None = None
        """Hears, from another thread and within about a second, what the worker is doing."""
        self.member: Member | None = None
        """The pool this worker belongs to."""
        self._held: deque[Job] = deque()
        self._ahead = Ahead()
        self._idle = False
        self._job_began = 0.0
        self._paused = False
        self._answered = False
        self._lost_since = 0.0
        self._lost_pause = _FIRST_PAUSE
        self._memory_seen = 0.0
        self._too_big = False
        options = self.options
        self._ends_by_itself = bool(options.once or options.max_time or options.max_jobs)
        self._signals: Signals | None = None
        self._stop_asked = False

    def stop(self) -> None:
        """Ask the worker, from any thread, to stop after its job."""
        self._stop_asked = True
        if self._signals is not None:
            self._signals.tell_to_stop()

    def load(self) -> None:
        """Import the modules of `jobs`, in this process unless each job has one of its own.

        Raises `ConfigurationError` naming one that cannot be.
        """
        if self.options.isolate:
            from qframe.worker import isolation  # noqa: PLC0415 (only a worker that forks needs it)

            isolation.preload(self.manager, self.options)
        else:
            self.manager.registry.load()

    def run(self) -> int:
        """Work, and give the exit code that says why it stopped."""
        manager.use(self.manager)
        self.load()
        with Signals(raising=not self.options.isolate, heard=self.heeds_signals) as signals:
            self._begin(signals)
            if Capability.RENEW in self.queue.capabilities and not self.options.isolate:
                self.runner.leases.begin()
            if signals.on_main_thread and not self.options.isolate:
                self.runner.sentinel = Sentinel()
            self.presence.begin(threaded=not self.options.isolate)
            try:
                with execution.kept_event_loop():
                    reason = self._loop()
            finally:
                self._end()
            self.stop_reason = reason
        events.fire(
            events.WorkerStopping, self.queue.name, self.queues, reason, reason.exit_code, self.jobs
        )
        return reason.exit_code

    # -- beginning and end ----------------------------------------------------------------------

    def _begin(self, signals: Signals) -> None:
        self._signals = self.signals = signals
        if self._stop_asked:  # before it ran
            signals.tell_to_stop()
        if self.heeds_signals and not signals.on_main_thread:
            log.warning("the worker is not on the main thread: no signals, no timeouts")
        self.runner = self._runner()(
            self.queue,
            self.manager.registry,
            self.options,
            signals,
            self.manager.settings.unknown_job_delays,
        )
        self.manager.keyring.prepare()
        self.runner.signer = self.manager.signer
        store = self.manager.store(self.queue.name)
        self.control = Control(
            store,
            self.queue.name,
            self.selection.names,
            force=self.options.force,
            find=self.selection.find if self.selection.patterns else None,
        )
        self.presence = Presence(
            store,
            roster.introduced(self.options.name, self.queue.name, self.queues),
            self.runner.tally,
            lambda: Sight(self.runner.leases.job, self._job_began, self._paused),
            close=self.manager.close,
            told=self.told,
        )
        self.runner.beat = self.presence.beat
        self.runner.cancellation = Cancellation(store, signals, self.runner.leases)
        self.runner.leases.watch = self.runner.cancellation.look
        self._first_look()
        if self.member is not None:
            self._join(self.member, signals)
        self._began = time.monotonic()
        self._once_until = self._began + self.options.sleep
        events.fire(events.WorkerStarting, self.queue.name, self.queues)

    def _join(self, member: Member, signals: Signals) -> None:
        """Tell the pool that signals are heard; one for a pause may have come too early for it."""
        signals.heed_hang_up()
        self.runner.slip = member.slip
        member.follow(self.stop)
        member.slip.ready()
        signals.paused = signals.paused or member.slip.paused

    def _runner(self) -> type[Runner]:
        if not self.options.isolate:
            return Runner
        if not self.signals.on_main_thread:
            raise ConfigurationError("isolate forks, which only the main thread may: run it there")
        from qframe.worker.isolation import IsolatingRunner  # noqa: PLC0415 (as in `load`)

        return IsolatingRunner

    def _first_look(self) -> None:
        """Read restart and pause before anything else.

        A backend that is only down is waited for, one that cannot be used is not.
        """
        try:
            self.control.look()
        except BackendUnusable:
            raise
        except BackendUnavailable:
            log.debug("the backend does not answer yet")

    def _end(self) -> None:
        """Leave nothing behind: the last job deleted, those held given back at once."""
        self.runner.at_rest()
        try:
            self.runner.flush()
            self._give_back_held()
        except BackendUnavailable as error:
            log.warning("what is held comes back when its lease ends: %s", error)
        self.runner.close()
        self.presence.end()
        self._signals = None
        self._stop_asked = False

    def _give_back_held(self) -> None:
        self.queue.let_go()
        while self._held:
            job = self._held.pop()
            try:
                job.give_back()
            except SettleError:
                continue

    # -- the loop -------------------------------------------------------------------------------

    def _loop(self) -> StopReason:
        while True:
            try:
                ran = self._turn()
            except BackendUnavailable as error:
                if isinstance(error, BackendUnusable) and not self._answered:
                    raise
                ran = True
                self._backend_lost(error)
            except Exception as error:
                # A driver with a bug of its own: reported, and tried again like one that is gone.
                log.exception("the connection %r failed", self.queue.name)
                ran = True
                self._backend_lost(BackendUnavailable(tracebacks.brief(error)))
            reason = self._reason_to_stop(ran=ran)
            if reason is not None:
                return reason

    def _turn(self) -> bool:
        """Run one job, or wait for one; says whether there was one."""
        self.control.look()
        if self.control.restart:
            return True
        if not self._may_work():
            self._stand_by()
            return bool(self.control.active) or self._found_more()
        job = self._next_job()
        if self._lost_since or not self._answered:
            self._backend_answers()
        if job is None:
            self._wait_for_work()
            return self._found_more()
        self._run(job)
        return True

    def _may_work(self) -> bool:
        paused = self.signals.paused or self.control.paused
        if paused != self._paused:
            self._paused = paused
            kind = events.WorkerPaused if paused else events.WorkerResumed
            events.fire(kind, self.queue.name, self.queues)
        return not paused and events.fire(events.Looping, self.queue.name, self.control.active)

    def _stand_by(self) -> None:
        """Paused or vetoed: hold nothing, and wait."""
        if self.options.isolate:
            self.presence.beat()
        self.runner.at_rest()
        self.runner.flush()
        self._give_back_held()
        self.signals.wait(EVERY)

    def _next_job(self) -> Job | None:
        if not self._held:
            queues = self.control.active
            if not queues:  # no pattern matches one yet
                self.runner.flush()
                return None
            events.fire(events.JobPopping, self.queue.name, queues)
            self.runner.watchdog.spare()
            finished = self.runner.finished
            self._held.extend(self.queue.reserve(queues, self._limit(), finished=finished))
            self.runner.note_finished()
            if not self._held:
                return None
        job = self._held.popleft()
        events.fire(events.JobPopped, job)
        return job

    def _limit(self) -> int:
        """Give how many to reserve: never more than will be run."""
        limit = 1 if self.options.once or self.options.rest else self._ahead.limit()
        if self.options.max_jobs:
            limit = min(limit, max(1, self.options.max_jobs - self.jobs))
        return limit

    def _run(self, job: Job) -> None:
        self._idle = False
        began = self._job_began = time.monotonic()
        outcome = self.runner.run(job)
        self._ahead.ran(time.monotonic() - began)
        if outcome is not Outcome.LOST:
            self.jobs += 1
            runner = self.runner
            tally = runner.tally
            ended = (runner.ran, job.queue, outcome._value_)
            tally[ended] = tally.get(ended, 0) + 1
        if self.options.rest and not self.signals.quit:
            self.runner.at_rest()
            self.runner.flush()
            self.signals.wait(self.options.rest)

    def _wait_for_work(self) -> None:
        if self.options.isolate:
            self.presence.beat()
        self.runner.at_rest()
        if not self._idle:
            self._idle = True
            events.fire(events.WorkerIdle, self.queue.name, self.queues)
        # Before the wait, as the way from its end to the job's start is to be short. What was told
        # until here shows; what is told from here on ends the wait.
        self.signals.drain()
        told = self.signals.quit or self.signals.paused != self._paused
        if told or self.options.stop_when_empty:
            return
        can_wait = Capability.WAIT in self.queue.capabilities
        timeout = self.queue.look_every if can_wait else self.options.sleep
        now = time.monotonic()
        if self.options.once:
            timeout = min(timeout, self._once_until - now)
        if self.options.max_time:
            timeout = min(timeout, self._began + self.options.max_time - now)
        if not self.control.active:
            self.signals.wait(timeout)
            return
        if self._is_too_big():
            return
        self.queue.wait(self.control.active, max(0.0, timeout), self.signals.fileno())
        self._memory_seen = time.monotonic()  # what comes now is not to wait for a look at it

    def _found_more(self) -> bool:
        """Whether there are queues, new to a worker about to end, that a pattern matches."""
        return self.options.stop_when_empty and self.control.finds_more()

    # -- reasons to stop ------------------------------------------------------------------------

    def _reason_to_stop(self, *, ran: bool) -> StopReason | None:
        """Give the first reason there is, in Laravel's order."""
        now = time.monotonic()
        calm = ran and not self._ends_by_itself and now - self._memory_seen < _MEMORY_EVERY
        if calm and not (
            self.signals.quit
            or self.control.restart
            or self._lost_since
            or self.runner.ended_by is not None
        ):
            return None
        return self._told_to_stop() or self._worn_out(now) or self._had_enough(now, ran=ran)

    def _told_to_stop(self) -> StopReason | None:
        if self.runner.ended_by is not None:
            return self._ended_from_outside()
        if not self.signals.quit:
            return None
        number = self.signals.stop_signal
        events.fire(events.WorkerInterrupted, self.queue.name, self.queues, number)
        return StopReason.INTERRUPTED

    def _worn_out(self, now: float) -> StopReason | None:
        if self._is_too_big():
            return StopReason.MEMORY
        if self.control.restart:
            return StopReason.RESTART
        return StopReason.LOST_BACKEND if self._lost_since and self._gave_up(now) else None

    def _had_enough(self, now: float, *, ran: bool) -> StopReason | None:
        options = self.options
        if options.stop_when_empty and not ran:
            return StopReason.EMPTY
        if options.once and (self.jobs or now >= self._once_until):
            return StopReason.ONCE
        if options.max_time and now - self._began >= options.max_time:
            return StopReason.MAX_TIME
        if options.max_jobs and self.jobs >= options.max_jobs:
            return StopReason.MAX_JOBS
        return None

    def _ended_from_outside(self) -> StopReason:
        kind = type(self.runner.ended_by).__name__
        return {
            "JobTimedOut": StopReason.TIMED_OUT,
            "JobInterrupted": StopReason.JOB_INTERRUPTED,
            "JobCancelled": StopReason.JOB_INTERRUPTED,
        }.get(kind, StopReason.INTERRUPTED)

    def _is_too_big(self) -> bool:
        """Whether it has grown too big for good, looked at now and then."""
        now = time.monotonic()
        if now - self._memory_seen >= _MEMORY_EVERY:
            self._memory_seen = now
            limit = self.options.memory
            self._too_big = bool(limit) and memory.resident() > limit
        return self._too_big

    # -- a backend that is gone -----------------------------------------------------------------

    def _backend_lost(self, error: BackendUnavailable) -> None:
        """Say so once, then try again with growing, jittered pauses."""
        self.runner.at_rest()
        self._held.clear()
        if not self._lost_since:
            self._lost_since = time.monotonic()
            self._lost_pause = _FIRST_PAUSE
            log.debug("backend lost: %s", tracebacks.brief(error))
            events.fire(events.BackendLost, self.queue.name, self.queues, error)
        self.signals.wait(self._lost_pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
        self._lost_pause = min(_LONGEST_PAUSE, self._lost_pause * 2)

    def _backend_answers(self) -> None:
        self._answered = True
        if self._lost_since:
            seconds = time.monotonic() - self._lost_since
            self._lost_since = 0.0
            events.fire(events.BackendRestored, self.queue.name, self.queues, seconds)

    def _gave_up(self, now: float) -> bool:
        limit = self.queue.settings.give_up_after
        return bool(limit) and now - self._lost_since >= limit
