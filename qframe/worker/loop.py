"""Loop: one run of a worker, the loop of Laravel's `Worker::daemon`."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from qframe import events
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.contracts.step import Result, Step
from qframe.drivers import heartbeat, sockets
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    BackendUnavailable,
    BackendUnusable,
    Interruption,
    JobCancelled,
    JobInterrupted,
    JobTimedOut,
    SettleError,
)
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.metrics import by_tag
from qframe.metrics.kept import Metrics
from qframe.payload import tracebacks
from qframe.worker import measuring, memory, presence, roster
from qframe.worker.attempt import Attempt
from qframe.worker.control import EVERY, Control
from qframe.worker.measuring import Measuring
from qframe.worker.options import StopReason, WorkerOptions
from qframe.worker.outcome import JobOutcome
from qframe.worker.pool.child import PoolMember
from qframe.worker.prefetch import Prefetch
from qframe.worker.presence import Doing, Presence, Sight
from qframe.worker.queues import WorkedQueues
from qframe.worker.runner import Runner
from qframe.worker.signals import Signals

log = logging.getLogger("qframe")

_MEMORY_EVERY = 0.1
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Loop:
    """Reserves jobs, has the runner run them, and waits if there are none, until it is to stop.

    `begin`, `run` and `end` are called once each, in this order; `end` even if one before raised.
    """

    def __init__(
        self,
        connection: Connection,
        queues: WorkedQueues,
        options: WorkerOptions,
        signals: Signals,
        runner: Runner,
        beats: Heartbeat,
        told: Callable[[roster.Entry], None] | None = None,
        member: PoolMember | None = None,
    ) -> None:
        self.connection = connection
        self.options = options
        self.signals = signals
        self.runner = runner
        self.jobs = 0
        self._given = options.queues or (connection.default_queue,)
        self._beats = beats
        self._member = member
        pool = None if member is None else member.parent
        entry = roster.introduced(options, connection.name, self._given, pool)
        self.control = Control(
            connection.store,
            connection.name,
            queues.names,
            force=options.force,
            find=queues.find if queues.patterns else None,
            worker=entry.id,
            scales=entry.scales and member is None,  # in a pool, the pool takes the order
        )
        self._look_every = 0.0 if queues.patterns else connection.backend.look_every
        metrics = Metrics(connection.store, connection.name) if connection.is_measured else None
        self._presence = Presence(
            connection.store,
            entry,
            runner.recorder,
            self._seen,
            told,
            metrics,
        )
        self._measuring = (
            None if metrics is None else Measuring(connection, metrics, entry.id, queues.names)
        )
        if runner.by_tag is not None and self._measuring is not None:
            of_tags = by_tag.metrics_of(connection.store, connection.name)
            self._presence.also = (of_tags, runner.by_tag.recorder)
            self._measuring.also = of_tags
        self._held: deque[ReservedJob] = deque()
        self._concurrency = runner.concurrency
        if self._concurrency is not None and self._concurrency.of_queues:
            runner.settler.reserve_after = self._reserve_within_bounds
        self._kept_waiting = False
        self._prefetch = Prefetch(options.concurrency)
        self._ended_by: Interruption | None = None
        self._idle = False
        self._paused = False
        self._answered = False
        self._lost_since = 0.0
        self._lost_pause = _FIRST_PAUSE
        self._memory_seen = 0.0
        self._too_big = False
        self._began = time.monotonic()
        self._once_until = self._began + options.sleep
        self._ends_by_itself = bool(options.once or options.max_time or options.max_jobs)

    def mark_version(self, version: str) -> None:
        """Marks a deploy, once the backend answers, if this version is another one."""
        if self._measuring is not None:
            self._measuring.version = version

    def begin(self) -> None:
        """Reads restart and pause before anything else. Raises `BackendUnusable`.

        It waits for a backend that is down, but not for one that cannot be used.
        """
        heartbeat.use(self._beats)
        try:
            self.control.look()
        except BackendUnusable:
            raise
        except BackendUnavailable:
            log.debug("the backend does not answer yet")

    def run(self) -> StopReason:
        """Works, and returns why it stopped."""
        sockets.keep_connections()
        self._beats.add(presence.EVERY, self._presence.beat, first=0)
        events.fire(events.WorkerStarting, self.connection.name, self._given)
        while True:
            try:
                ran = self._turn()
            except BackendUnavailable as error:
                if isinstance(error, BackendUnusable) and not self._answered:
                    raise
                ran = True
                self._backend_lost(error)
            except Exception as error:
                self.signals.leave_if_closed("a job")
                # A driver with a bug of its own: log it, and try again as if the backend were gone.
                log.exception("the connection %r failed", self.connection.name)
                ran = True
                self._backend_lost(BackendUnavailable(tracebacks.brief(error)))
            reason = self._reason_to_stop(ran=ran)
            if reason is not None:
                return reason

    def end(self) -> None:
        """Deletes the last job and gives back held jobs."""
        self.runner.at_rest()
        self._let_go()
        self.runner.close()
        heartbeat.use(None)
        sockets.keep_connections(keeps=False)
        self._beats.end(self._presence.leave, presence.PARTING)

    def _let_go(self) -> None:
        try:
            self.runner.settler.flush()
            self._give_back_held()
            if self._concurrency is not None:
                self._concurrency.slot_leases.close()
        except BackendUnavailable as error:
            log.warning("what is held comes back when its lease ends: %s", error)

    def _give_back_held(self) -> None:
        if self._answered:
            self.connection.backend.wait((), 0)  # and jobs reserved while waiting
        while self._held:
            try:
                self._held.pop().settle(End(State.WAITING))
            except SettleError:
                continue

    # -- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Runs one job, or waits for one; returns whether there was one."""
        self.control.look()
        if self.control.ends:
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
            events.fire(kind, self.connection.name, self._given)
        if paused or not events.Looping.listeners:
            return not paused
        return events.fire(events.Looping, self.connection.name, self.control.active)

    def _stand_by(self) -> None:
        """Paused or vetoed: holds nothing, and waits."""
        self._rest()
        self.runner.settler.flush()
        self._give_back_held()
        self.signals.wait(EVERY)

    def _rest(self) -> None:
        self.runner.at_rest()

    def _next_job(self) -> ReservedJob | None:
        if not self._held:
            queues = self.control.active
            if not queues:  # no queue matches a pattern yet
                self.runner.settler.flush()
                return None
            events.fire(events.JobPopping, self.connection.name, queues)
            self.runner.watchdog.spare()
            self._held.extend(self.runner.settler.reserve(queues, self._limit()))
            if not self._held:
                return None
        job = self._held.popleft()
        if events.JobPopped.listeners:
            events.fire(events.JobPopped, job)
        return job

    def _limit(self) -> int:
        """Returns how many jobs to reserve: never more than will run."""
        options = self.options
        limit = self._prefetch.limit()
        if options.once or options.rest or Capability.AHEAD not in self.connection.capabilities:
            limit = 1
        if options.max_jobs:
            limit = min(limit, max(1, options.max_jobs - self.jobs))
        return limit

    def _reserve_within_bounds(
        self, first: Sequence[Step], queues: Sequence[str], limit: int = 1
    ) -> tuple[list[ReservedJob], list[Result]]:
        assert self._concurrency is not None  # noqa: S101 (there are limits)
        return self._concurrency.reserve_after(first, queues, limit, self._here())

    def _here(self) -> list[ReservedJob]:
        """Returns the jobs that count against the limits of their queues."""
        return [*self._held]

    def _open(self) -> Sequence[str]:
        """Returns the queues from which a job may be taken now."""
        queues = self.control.active
        return queues if self._concurrency is None else self._concurrency.open(queues, self._here())

    def _run(self, job: ReservedJob) -> Attempt:
        self._idle = False
        try:
            attempt = self.runner.run(job)
        except BackendUnavailable:
            if not (job.has_started() or job.is_settled):
                self._held.appendleft(job)  # its lease may last longer than the backend is away
            raise
        self._ended_by = attempt.ended_by
        if attempt.outcome is not JobOutcome.LOST:
            self._prefetch.ran(time.monotonic() - attempt.began)
            self.jobs += 1
        if self.options.rest and not self.signals.quit:
            self._rest()
            self.runner.settler.flush()
            self.signals.wait(self.options.rest)
        return attempt

    def _wait_for_work(self) -> None:
        self._rest()
        if not self._idle:
            self._idle = True
            events.fire(events.WorkerIdle, self.connection.name, self._given)
        # Drained before the wait, since the way from its end to the job's start must be short.
        # Earlier signals show below; later ones end the wait.
        self.signals.drain()
        told = self.signals.quit or self.signals.paused != self._paused
        if told or self._is_all():
            return
        timeout = self._seconds_to_wait()
        queues = self._open()
        if not queues:
            self.signals.wait(timeout)
        elif not self._is_too_big():
            self.connection.backend.wait(queues, timeout, self.signals.fileno())
            self._memory_seen = time.monotonic()  # the next job must not wait for a memory check

    def _seconds_to_wait(self, *, looks: bool = True) -> float:
        """Returns the seconds until something is to be checked, even if no job comes.

        `looks`: include the check of full queues, which is made as jobs are taken.
        """
        can_wait = Capability.WAIT in self.connection.capabilities
        timeout = max(self.control.every, self._look_every) if can_wait else self.options.sleep
        now = time.monotonic()
        if looks and self._concurrency is not None:
            timeout = min(timeout, self._concurrency.seconds(self.control.active))
        if self.options.once:
            timeout = min(timeout, self._once_until - now)
        if self.options.max_time:
            timeout = min(timeout, self._began + self.options.max_time - now)
        return max(0.0, timeout)

    def _is_all(self) -> bool:
        """Whether `--stop-when-empty` may end the worker now."""
        if not self.options.stop_when_empty:
            return False
        self._kept_waiting = self._concurrency is not None and self._concurrency.keeps_waiting(
            self.control.active, self._here()
        )
        return not self._kept_waiting

    def _found_more(self) -> bool:
        """Whether a worker about to end has more to do: a new queue, or jobs that had to wait."""
        if not self.options.stop_when_empty:
            return False
        kept, self._kept_waiting = self._kept_waiting, False
        return kept or self.control.finds_more()

    def _seen(self) -> Sight:
        """Returns what the worker does; called from another thread."""
        attempts = [*self.runner.running.copy().values()]
        return Sight(tuple(Doing(each.job, each.began) for each in attempts), self._paused)

    # -- reasons to stop --------------------------------------------------------------------------

    def _reason_to_stop(self, *, ran: bool) -> StopReason | None:
        """Returns the first reason there is, in Laravel's order."""
        now = time.monotonic()
        calm = ran and not self._ends_by_itself and now - self._memory_seen < _MEMORY_EVERY
        if calm and not (
            self.signals.quit or self.control.ends or self._lost_since or self._ended_by is not None
        ):
            return None
        return self._told_to_stop() or self._worn_out(now) or self._had_enough(now, ran=ran)

    def _told_to_stop(self) -> StopReason | None:
        match self._ended_by:
            case JobTimedOut():
                return StopReason.TIMED_OUT
            case JobInterrupted() | JobCancelled():
                return StopReason.JOB_INTERRUPTED
            case Interruption():
                return StopReason.INTERRUPTED
        if not self.signals.quit:
            return None
        number = self.signals.stop_signal
        events.fire(events.WorkerInterrupted, self.connection.name, self._given, number)
        return StopReason.INTERRUPTED

    def _worn_out(self, now: float) -> StopReason | None:
        if self._is_too_big():
            return StopReason.MEMORY
        if self.control.ends:
            return self.control.ends
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

    def _is_too_big(self) -> bool:
        """Whether memory exceeds the limit, checked now and then."""
        now = time.monotonic()
        if now - self._memory_seen >= _MEMORY_EVERY:
            self._memory_seen = now
            limit = self.options.memory
            self._too_big = bool(limit) and memory.resident() > limit
        return self._too_big

    # -- a backend that is gone -------------------------------------------------------------------

    def _backend_lost(self, error: BackendUnavailable) -> None:
        """Logs it once, then tries again with growing, jittered pauses."""
        self.signals.leave_if_closed("a job")
        self._rest()
        if not self._lost_since:
            self._lost_since = time.monotonic()
            self._lost_pause = _FIRST_PAUSE
            self.control.backend_is_lost()
            log.debug("backend lost: %s", tracebacks.brief(error))
            events.fire(events.BackendLost, self.connection.name, self._given, error)
        self._pause(self._lost_pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
        self._lost_pause = min(_LONGEST_PAUSE, self._lost_pause * 2)

    def _pause(self, seconds: float) -> None:
        self.signals.wait(seconds)

    def _backend_answers(self) -> None:
        if not self._answered and self._measuring is not None:
            self._beats.add(measuring.EVERY, self._measuring.beat, first=0)
        self._answered = True
        if self._lost_since:
            seconds = time.monotonic() - self._lost_since
            self._lost_since = 0.0
            events.fire(events.BackendRestored, self.connection.name, self._given, seconds)

    def _gave_up(self, now: float) -> bool:
        limit = self.connection.settings.give_up_after
        return bool(limit) and now - self._lost_since >= limit
