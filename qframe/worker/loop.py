"""Loop: one run of a worker, the loop of Laravel's `Worker::daemon`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

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
from qframe.jobs import definition, execution
from qframe.jobs.chunk import MOST, Chunk
from qframe.metrics import by_tag
from qframe.metrics.kept import Metrics
from qframe.payload import tracebacks
from qframe.worker import chunks, measuring, memory, presence, roster
from qframe.worker.attempt import Attempt
from qframe.worker.control import EVERY, Control
from qframe.worker.lifespan import Lifespan
from qframe.worker.measuring import Measuring
from qframe.worker.memory import MemoryLimit
from qframe.worker.options import MOST_AT_ONCE, StopReason, WorkerOptions
from qframe.worker.outage import Outage
from qframe.worker.outcome import JobOutcome
from qframe.worker.pool.child import PoolMember
from qframe.worker.prefetch import Prefetch
from qframe.worker.presence import Doing, Presence, Sight
from qframe.worker.queues import WorkedQueues
from qframe.worker.runner import Runner
from qframe.worker.side_tasks import WatchedFact
from qframe.worker.signals import Signals
from qframe.worker.slots.base import SlottedRunner
from qframe.worker.stacks import ASKED, StackAnswers

log = logging.getLogger("qframe")

_AHEAD = Capability.AHEAD | Capability.COUNTS
"""What a backend needs for messages to be held before there is a slot for them."""
_DRAIN_EVERY = 0.2


class Loop:
    """Reserves jobs, has the runner run them, and waits if there are none, until it is to stop.

    A `SlottedRunner` runs jobs beside the loop, another runner one job when it is called.

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
        on_written: Callable[[roster.Entry], None] | None = None,
        member: PoolMember | None = None,
    ) -> None:
        self.connection = connection
        self.options = options
        self.signals = signals
        self.runner = runner
        self._slotted = runner if isinstance(runner, SlottedRunner) else None
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
        if runner.cancellation.lists:
            self.control.watch(runner.cancellation.key, runner.cancellation.heard)
        self.control.watch(runner.holds.key, runner.holds.heard)
        self._look_every = 0.0 if queues.patterns else connection.backend.look_every
        metrics = Metrics(connection.store, connection.name) if connection.is_measured else None
        asked = WatchedFact(ASKED, connection.store, self.control).last_known
        answers = StackAnswers(connection.store, entry.id, asked, runner.stacks_elsewhere)
        self._presence = Presence(
            connection.store,
            entry,
            runner.recorder,
            self._seen,
            on_written,
            metrics,
            answers.look,
        )
        self._measuring = (
            None if metrics is None else Measuring(connection, metrics, entry.id, queues.names)
        )
        if runner.by_tag is not None and self._measuring is not None:
            of_tags = by_tag.metrics_of(connection.store, connection.name)
            self._presence.also = (of_tags, runner.by_tag.recorder)
            self._measuring.also = of_tags
        self._held: deque[ReservedJob] = deque()
        self._gathered: Sequence[ReservedJob] = ()
        """The jobs of a chunk that waits for more."""
        self._concurrency = runner.concurrency
        if self._concurrency is not None and self._concurrency.of_queues:
            runner.settler.reserve_after = self._reserve_within_limits
        self._kept_waiting = False
        self._prefetch = Prefetch(options.concurrency)
        self._slots_asked = 0
        self._idle = False
        self._paused = False
        self._rested = 0
        """How many jobs had ended at the last rest."""
        self._answered = False
        self._drained_at = 0.0
        self._outage = Outage(connection, self._given)
        self._memory = MemoryLimit(options.memory)
        self._began = time.monotonic()
        self._once_until = self._began + options.sleep
        self._ends_by_itself = bool(options.once or options.max_time or options.max_jobs)

    def mark_version(self, version: str) -> None:
        """Names the version in the worker's entry, and marks a deploy if it is another one.

        The mark is made once the backend answers.
        """
        self._presence.entry = self._presence.entry.model_copy(update={"version": version})
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
        """Works, and returns why it stopped. Raises `ConfigurationError` for a wrong lifespan."""
        lifespan = self._own_lifespan()
        if lifespan is None:
            return self._ran_with_resources()
        run, signals = execution.run_on_kept_loop, self.signals
        stop, closing = signals.request_stop, self.runner.closing
        with lifespan.around(run, lambda: signals.quit, stop, closing) as goes_on:
            signals.look_after(lifespan)
            return self._ran_with_resources() if goes_on else StopReason.INTERRUPTED

    def _ran_with_resources(self) -> StopReason:
        try:
            return self._ran()
        finally:
            if self.runner.resources is not None:
                self.runner.resources.close(execution.run_on_kept_loop, self.runner.closing)

    def _own_lifespan(self) -> Lifespan | None:
        """Returns the lifespan to enter in this process, if any."""
        return self.runner.lifespan if self.runner.runs_here else None

    def _ran(self) -> StopReason:
        sockets.keep_connections()
        self._beats.add(presence.EVERY, self._presence.beat, first=0)
        events.fire(events.WorkerStarting, self.connection.name, self._given)
        try:
            reason = self._work()
            if self._slotted is not None:
                self._drain(self._slotted)
        finally:
            self.runner.at_rest()
            self._let_go()
        return reason

    def end(self) -> None:
        self.runner.close()
        heartbeat.use(None)
        sockets.keep_connections(keeps=False)
        self._beats.end(self._presence.leave, presence.PARTING)

    def _work(self) -> StopReason:
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

    # -- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Runs jobs, or waits for one; returns whether there was one, or still is."""
        runner, slotted = self.runner, self._slotted
        if slotted is not None:
            self._note_ended(slotted)
        self.control.look()
        if self.control.ends:
            return True
        if slotted is not None:
            self._scale(slotted)
        if not self._may_work():
            self._stand_by()
            return bool(self.control.active or runner.busy) or self._found_more()
        if self.options.rest and self.jobs > self._rested and not self.signals.quit:
            self._rest()
            return True
        if self._run_next() if slotted is None else self._exchange(slotted):
            return True
        self._wait_for_work()
        return bool(runner.busy) or self._found_more()

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
        """Paused or vetoed: holds nothing, settles what ends, and waits."""
        self.runner.at_rest()
        self._receive_no_more()
        self.runner.settler.flush()
        self._give_back_held()
        self.runner.sleep(EVERY)

    def _rest(self) -> None:
        self._rested = self.jobs
        self.runner.at_rest()
        self._receive_no_more()
        self.runner.settler.flush()
        self.runner.pause(self.options.rest)

    # -- reserving --------------------------------------------------------------------------------

    def _room(self) -> int:
        """Returns how many jobs to reserve: never more than will run.

        A runner that refills reserves while it holds some: as many as there are slots, or will be
        in a moment, but none while half of the latter are held, since it then starts jobs rather
        than waits for more.
        """
        options, runner, held = self.options, self.runner, len(self._held)
        refills, busy = runner.refills, runner.busy
        if not self.control.active or not (refills or (runner.slots > busy and not held)):
            return 0
        room = runner.slots - busy - held
        if _AHEAD in self.connection.capabilities and not (options.once or options.rest):
            limit = self._prefetch.limit()
            ahead = (min(limit, runner.slots) if refills else limit) - 1
            room = room + ahead if 2 * held <= ahead else 0
        if options.once or options.max_jobs:
            most = 1 if options.once else options.max_jobs
            room = min(room, most - self.jobs - busy - held)
        return room

    def _reserve(self, room: int) -> bool:
        queues = self.control.active
        events.fire(events.JobPopping, self.connection.name, queues)
        found = self.runner.settler.reserve(queues, room)
        self._held.extend(found)
        return bool(found)

    def _reserve_within_limits(
        self, first: Sequence[Step], queues: Sequence[str], limit: int = 1
    ) -> tuple[list[ReservedJob], list[Result]]:
        assert self._concurrency is not None  # noqa: S101 (there are limits)
        return self._concurrency.reserve_after(first, queues, limit, self._here())

    def _here(self) -> list[ReservedJob]:
        """Returns the jobs that count against the limits of their queues."""
        return [*self._held, *self._gathered, *self.runner.running.copy()]

    def _open(self) -> Sequence[str]:
        """Returns the queues from which a job may be taken now."""
        queues = self.control.active
        return queues if self._concurrency is None else self._concurrency.open(queues, self._here())

    # -- one job after the other ------------------------------------------------------------------

    def _run_next(self) -> bool:
        """Runs one job, held or reserved now; false if there is none."""
        if not self._held:
            room = self._room()
            if room > 0:
                self.runner.watchdog.spare()
                self._reserve(room)
            else:
                self._receive_no_more()
                self.runner.settler.flush()
        if self._outage.since or not self._answered:
            self._backend_answers()
        if not self._held:
            return False
        job = self._held.popleft()
        if events.JobPopped.listeners:
            self.runner.tell_popped(job)
        self._idle = False
        name = job.message.get("job") if definition.chunked and job.message else None
        named = definition.chunked
        if type(name) is str and (name in named or name.rpartition(".")[2] in named):  # no calls
            chunk = chunks.chunk_of(self.runner, name)
            if chunk is not None:
                self._run_chunk(job, chunk)
                return True
        self._run(job)
        return True

    def _run_chunk(self, first: ReservedJob, chunk: Chunk) -> None:
        """Runs a job, together with others of its class unless it may have ended its last worker.

        A worker that stops when its queues are empty does not wait for more.
        """
        if chunks.may_have_ended_worker(first):
            self._run(first)
            return
        options, within = self.options, chunk.within
        most = 1 if options.once else options.max_jobs - self.jobs if options.max_jobs else MOST
        if options.stop_when_empty:
            within = 0.0
        elif options.max_time:
            left = self._began + options.max_time - time.monotonic()
            within = min(within, max(0.0, left))
        gathering = chunks.Gathering(
            self.runner, first, min(chunk.size, most), within, self._held,
            self._reserved_from, self._may_gather,
        )  # fmt: skip
        jobs = self._gathered = gathering.jobs
        is_complete = False
        try:
            is_complete = gathering.collect()
        finally:
            self._gathered = ()
            if not is_complete:
                self._held.extendleft(reversed(jobs))
        if is_complete:
            self._give_back_surplus()
            for job in jobs[1:] if events.JobPopped.listeners else ():
                self.runner.tell_popped(job)
            if len(jobs) == 1:
                self._run(jobs[0])
            elif jobs:
                self._run_together(jobs)

    def _may_gather(self) -> bool:
        self.control.look()
        paused = self.signals.paused or self.control.paused
        return not (paused or self.signals.quit or self.control.ends)

    def _reserved_from(self, queue: str, limit: int) -> Sequence[ReservedJob] | None:
        """Reserves more for a chunk; None if nothing may be taken from the queue now."""
        if queue not in self._open():
            return None
        events.fire(events.JobPopping, self.connection.name, [queue])
        return self.runner.settler.reserve([queue], limit)

    def _give_back_surplus(self) -> None:
        """Gives back jobs that a chunk had no use for, but for those that soon run here."""
        surplus = [self._held.pop() for _ in range(len(self._held) - self._prefetch.limit())]
        for job in reversed(surplus):
            with suppress(SettleError):
                self.runner.settler.give_back(job, End(State.WAITING))

    def _run_together(self, jobs: Sequence[ReservedJob]) -> Sequence[Attempt]:
        """Runs the jobs of a chunk; returns their attempts."""
        began = time.monotonic()
        try:
            attempts = chunks.run(self.runner, jobs)
        except BackendUnavailable:
            left = [job for job in jobs if not (job.has_started() or job.is_settled)]
            self._held.extendleft(reversed(left))
            raise
        ran = sum(each.outcome is not JobOutcome.LOST for each in attempts)
        self._prefetch.ran((time.monotonic() - began) / max(1, ran))
        self.jobs += ran
        return attempts

    def _run(self, job: ReservedJob) -> Attempt:
        try:
            attempt = self.runner.run(job)
        except BackendUnavailable:
            if not (job.has_started() or job.is_settled):
                self._held.appendleft(job)  # its lease may last longer than the backend is away
            raise
        if attempt.outcome is not JobOutcome.LOST:
            self._prefetch.ran(time.monotonic() - attempt.began)
            self.jobs += 1
        return attempt

    # -- jobs in slots ----------------------------------------------------------------------------

    def _exchange(self, runner: SlottedRunner) -> bool:
        """Starts held jobs in free slots, reserves for the room; false if there was nothing to do.

        It sends at once what has come up meanwhile.
        """
        started = runner.start_held(self._held, are_brief=self._prefetch.are_brief)
        room = self._room()
        found = room > 0 and self._reserve(room)
        if started:
            self._idle = False
        elif room <= 0:
            runner.settler.flush()
        if self._outage.since or not self._answered:
            self._backend_answers()
        return started or found or runner.settler.has_ends

    def _note_ended(self, runner: SlottedRunner) -> None:
        for slot in runner.collect():
            self._prefetch.ran(slot.seconds)
            if slot.attempt.outcome is not JobOutcome.LOST:
                runner.count(slot.attempt)
                self.jobs += 1

    def _scale(self, runner: SlottedRunner) -> None:
        asked = self.control.slots if self._member is None else self._member.scoreboard.slots
        if not 1 <= asked <= MOST_AT_ONCE or asked == self._slots_asked:
            return
        self._slots_asked, before = asked, runner.slots
        try:
            runner.scale(asked)
        except OSError as error:
            log.warning("scaling to %d jobs at once: %s; it stays at %d", asked, error, before)
            return
        self._prefetch.slots = asked
        if asked != before:
            events.fire(events.WorkerScaled, self.connection.name, self._given, asked)
        if asked < before:  # there may be no room for it soon
            self._receive_no_more()
            self._give_back_held()

    # -- waiting ----------------------------------------------------------------------------------

    def _wait_for_work(self) -> None:
        runner = self.runner
        runner.at_rest()
        if not (self._idle or runner.busy):
            self._idle = True
            events.fire(events.WorkerIdle, self.connection.name, self._given)
        # Drained before the wait, since the way from its end to the job's start must be short.
        # Earlier signals show below; later ones end the wait.
        runner.drain_signals()
        is_ordered = self.signals.quit or self.signals.paused != self._paused or runner.ended_by
        if is_ordered or (not runner.busy and self._is_all()):
            return
        has_room = self._room() > 0
        timeout = self._seconds_to_wait(looks=has_room)
        queues = self._open() if has_room else ()
        runner.settler.read_replies()
        if queues and not runner.busy and self._memory.is_exceeded():
            return
        runner.sleep(timeout, () if self._held else queues)
        if queues:
            self._memory.looked_at = time.monotonic()  # the next job must not wait for that

    def _seconds_to_wait(self, *, looks: bool) -> float:
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
        doing = tuple(Doing(each.job, each.began) for each in attempts)
        return Sight(doing, self._paused, self.runner.slots)

    @property
    def turned_at(self) -> float:
        """When it came round last, by the monotonic clock; from another thread."""
        return max(self.control.looked_at, self._drained_at)

    def standing(self) -> tuple[bool, str]:
        """Returns whether it takes jobs, or is paused, and what it does; from another thread."""
        names = [each.name for each in self.runner.running.copy().values()]
        doing = (
            f"runs {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1) if names else ""
        )
        if self.signals.quit or self.runner.ended_by is not None or self.control.ends:
            return False, f"stops, {doing}" if doing else "stops"
        if self._outage.since or not self.control.answers:
            return False, f"its backend does not answer, {doing}" if doing else (
                "its backend does not answer"
            )
        if self._paused:
            return True, f"is paused, {doing}" if doing else "is paused"
        return self._answered, doing or ("waits for jobs" if self._answered else "starts")

    # -- reasons to stop --------------------------------------------------------------------------

    def _reason_to_stop(self, *, ran: bool) -> StopReason | None:
        """Returns the first reason there is, in Laravel's order."""
        now = time.monotonic()
        calm = ran and not self._ends_by_itself and now - self._memory.looked_at < memory.EVERY
        if calm and not (
            self.signals.quit
            or self.control.ends
            or self._outage.since
            or self.runner.ended_by is not None
        ):
            return None
        return self._stop_requested() or self._worn_out() or self._had_enough(now, ran=ran)

    def _stop_requested(self) -> StopReason | None:
        match self.runner.ended_by:
            case JobTimedOut():
                return StopReason.TIMED_OUT
            case JobInterrupted() | JobCancelled():
                return StopReason.JOB_INTERRUPTED
            case Interruption():
                return StopReason.INTERRUPTED
        lifespan = self.runner.lifespan
        if lifespan is not None:
            if self._slotted is None:  # a loop of many jobs turns by itself
                lifespan.look(execution.run_on_kept_loop)
            if lifespan.has_ended:
                return StopReason.LIFESPAN
        if not self.signals.quit:
            return None
        number = self.signals.stop_signal
        events.fire(events.WorkerInterrupted, self.connection.name, self._given, number)
        return StopReason.INTERRUPTED

    def _worn_out(self) -> StopReason | None:
        has_first = bool(self._held or self.runner.busy) and not self.jobs
        if self._memory.is_exceeded() and not has_first:  # or a pool would restart it for ever
            return StopReason.MEMORY
        if self.control.ends:
            return self.control.ends
        return StopReason.LOST_BACKEND if self._outage.is_too_long() else None

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

    # -- its end ----------------------------------------------------------------------------------

    def _drain(self, runner: SlottedRunner) -> None:
        """Takes no more, and settles running jobs as they end."""
        began = time.monotonic()
        self._let_go()
        self._note_ended(runner)
        while runner.busy > runner.left or runner.settler.has_ends:
            self._drained_at = time.monotonic()
            runner.give_up_beside_stuck(time.monotonic() - began)
            if not self._settle_ended(runner):
                return
            runner.sleep(_DRAIN_EVERY)
            self._note_ended(runner)

    def _settle_ended(self, runner: SlottedRunner) -> bool:
        """Sends what has come up; false if the backend has been away for too long."""
        has_ends = runner.settler.has_ends
        try:
            runner.settler.flush()
        except BackendUnavailable as error:
            self._backend_lost(error)
            away = time.monotonic() - self._outage.since
            return away < self.connection.retry_after or runner.must_outlast_jobs
        if has_ends and self._outage.since:
            self._backend_answers()
        return True

    def _let_go(self) -> None:
        """Deletes the last jobs and gives back held ones."""
        try:
            with suppress(BackendUnavailable):  # the end of a job is worth a try of its own
                self._receive_no_more()
            self.runner.settler.flush()
            self._give_back_held()
            if self._concurrency is not None:
                self._concurrency.slot_leases.close()
        except BackendUnavailable as error:
            log.warning("reserved jobs become available when their leases end: %s", error)

    def _receive_no_more(self) -> None:
        """Gives back what came while it waited, and lets nothing come as jobs end."""
        if self._answered:
            self.connection.backend.wait((), 0)

    def _give_back_held(self) -> None:
        while self._held:
            try:
                self._held.pop().settle(End(State.WAITING))
            except SettleError:
                continue

    # -- a backend that is gone -------------------------------------------------------------------

    def _backend_lost(self, error: BackendUnavailable) -> None:
        """Logs it once, then tries again with growing, jittered pauses."""
        self.signals.leave_if_closed("a job")
        self.runner.at_rest()
        if not self._outage.since:
            self.control.backend_is_lost()
            self._outage.begins(error)
        self.runner.pause(self._outage.pause())

    def _backend_answers(self) -> None:
        if not self._answered and self._measuring is not None:
            self._beats.add(measuring.EVERY, self._measuring.beat, first=0)
        self._answered = True
        if self._outage.since:
            self._outage.ends()
