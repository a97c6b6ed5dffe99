"""Chunks: gathers jobs of one class, starts them in one exchange, and calls their handler once.

Each job has its own attempt, whose life pauses at its start and at its run. So tries, chains,
batches, statuses and failures are those of any job.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import GeneratorType
from typing import Any

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Renew, Step
from qframe.dispatch import pusher
from qframe.drivers import process
from qframe.exceptions import (
    BackendUnavailable,
    Interruption,
    JobCancelled,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    RetryLater,
)
from qframe.features.reserved import ReservedJob
from qframe.jobs import current, execution
from qframe.jobs.chunk import Chunk, ChunkCall, results_of
from qframe.jobs.definition import JobDefinition
from qframe.payload import envelope
from qframe.worker import needs
from qframe.worker.attempt import Attempt
from qframe.worker.limits import DIED, TIMED_OUT
from qframe.worker.needs import NOTHING, Report, lived_in_steps
from qframe.worker.outcome import JobOutcome, is_early
from qframe.worker.runner import Runner

log = logging.getLogger("qframe")

_LIMIT_FOR = 600.0
"""Seconds that a class is handled in smaller chunks after one had to be ended from outside."""
_RENEW_EVERY = 0.3
"""Seconds between renewals of jobs that are only held, for about a second each."""
_OF_ALL = (JobGivenBack, RetryLater, KeyboardInterrupt)
"""What a call raises that is about all of its jobs."""
_ENDED_WORKER = {"", DIED, TIMED_OUT}
"""How an attempt ended that ended its worker, or may have."""


def chunk_of(runner: Runner, name: str) -> Chunk | None:
    """Return the chunk of a class, if the runner calls its handlers and knows the class."""
    found = runner.registry.known(name) if runner.runs_here else None
    return None if found is None else found.chunk


def may_have_ended_worker(job: ReservedJob) -> bool:
    """Whether the last attempt of a job has no regular end: it is handled alone."""
    attempts = job.reservation.attempts
    if not attempts:
        return False
    ran = job.history.attempts
    return not ran or ran[-1].number != attempts or ran[-1].ended in _ENDED_WORKER


class Gathering:
    """Collects held jobs of one class and queue for a worker that runs one call at a time.

    `reserve` returns None if nothing may be taken from the queue now, and `may_go_on` whether the
    worker goes on: it may have been stopped or paused.
    """

    def __init__(
        self,
        runner: Runner,
        first: ReservedJob,
        size: int,
        within: float,
        held: deque[ReservedJob],
        reserve: Callable[[str, int], Sequence[ReservedJob] | None],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._runner = runner
        self._held = held
        self._reserve = reserve
        self._may_go_on = may_go_on
        self._backend = runner.connection.backend
        self._name = str(first.message.get("job") if first.message else None)
        self._queue = first.queue
        self.jobs = [first]
        self._size = size
        waited = max(0.0, time.time() - (envelope.due(first.message or {}) or time.time()))
        self._until = time.monotonic() + max(0.0, within - waited)
        self._renewed = time.monotonic()

    def collect(self) -> bool:
        """Return whether to run what was collected; otherwise the worker is to give it back.

        It stops at a job of another class, or one that is handled alone: that must not wait, and
        stays held.
        """
        can_wait = Capability.AHEAD in self._backend.capabilities
        self._size = min(self._size, _allowed(self._runner.connection, self._name) or self._size)
        while not self._take() and len(self.jobs) < self._size:
            found = self._reserve(self._queue, self._size - len(self.jobs))
            if found is None:
                break
            self._held.extend(found)
            left = self._until - time.monotonic()
            if not found and (left <= 0 or not can_wait):
                break
            self._runner.drain_signals()
            if not self._may_go_on():
                return False
            if not found:
                self._runner.at_rest()
                self._runner.sleep(min(left, _RENEW_EVERY), [self._queue])
            self._renew()
        return True

    def _take(self) -> bool:
        """Take what is held and fits; returns whether another job is held that must not wait."""
        others: list[ReservedJob] = []
        while self._held and len(self.jobs) < self._size:
            job = self._held.popleft()
            (self.jobs if self._fits(job) else others).append(job)
        self._held.extendleft(reversed(others))
        return bool(others)

    def _fits(self, job: ReservedJob) -> bool:
        name = (job.message or {}).get("job")
        return job.queue == self._queue and name == self._name and not may_have_ended_worker(job)

    def _renew(self) -> None:
        """Keep the jobs held: nobody has started them."""
        if time.monotonic() - self._renewed < _RENEW_EVERY:
            return
        self._renewed = time.monotonic()
        hold = self._backend.timing.hold
        results = self._backend.apply(*(Step(job.reservation, Renew(hold)) for job in self.jobs))
        for job, result in zip([*self.jobs], results, strict=True):
            if result.lost:
                job.mark_lost()
                self.jobs.remove(job)


def run(runner: Runner, jobs: Sequence[ReservedJob]) -> list[Attempt]:
    """Bring held jobs of a class to their outcomes, together. Returns their attempts.

    Raises `BackendUnavailable` when the backend does not answer; the leases return the jobs.
    """
    answers = {**runner.answers, needs.Begin: _pause, needs.Run: _pause}
    lives = [_ChunkMember(runner, job, answers) for job in jobs]
    try:
        for each in lives:
            each.go_on(None)
        _start(runner, [each for each in lives if each.need is needs.BEGIN])
        running = [each for each in lives if each.need is needs.RUN]
        if running:
            _HandlerCall(runner, running).perform()
            _end(running)
    finally:
        for each in lives:
            each.close()
        runner.signals.look_after(jobs[0])
    runner.ended_by = next((each.attempt.ended_by for each in lives if each.attempt.ended_by), None)
    for each in lives:
        if each.attempt.outcome is not JobOutcome.LOST:
            runner.count(each.attempt)
    return [each.attempt for each in lives]


def _pause(_: Attempt, need: needs.Need) -> GeneratorType[needs.Need, Any, Any]:
    """Answer a need later: the life pauses until the answer is sent into it."""

    def paused() -> Any:  # noqa: ANN401 (a generator)
        return (yield need)

    return paused()  # type: ignore[no-any-return] # made above


class _ChunkMember:
    """One job of a chunk, and its life between two answers."""

    def __init__(self, runner: Runner, job: ReservedJob, answers: needs.Answers) -> None:
        self._runner = runner
        self.job = job
        self.attempt = Attempt(runner, job)
        self.attempt.scoreboard = None  # the pool sees them together
        self._context = current.context_of(job)
        self._life = lived_in_steps(self.attempt, self.attempt.life(), answers, None)
        self.need: needs.Need | None = None
        """What its life waits for; None once it is over."""
        self.report: Report = NOTHING

    @property
    def instance(self) -> JobDefinition:
        instance = self.attempt.instance
        assert instance is not None  # noqa: S101 (it was made)
        return instance

    @property
    def is_over(self) -> bool:
        """Whether it was handled, or has settled itself."""
        return self.attempt.is_handled or self.job.is_settled

    @property
    def is_open(self) -> bool:
        """Whether nothing is known yet of how it ends."""
        return self.report is NOTHING and not self.is_over

    def go_on(self, answer: object) -> None:
        """Send an answer into its life, which goes on to the next need, or to its end."""
        try:
            self.need = self._context.run(self._life.send, answer)
        except StopIteration as ended:
            self.need, self.attempt.outcome = None, ended.value

    def make(self) -> None:
        """Make its instance, in its own context as all its code but the handler."""
        self._context.run(self.attempt.made)

    def make_again(self) -> None:
        """Make its instance anew for another call, unless that failed or the job is over."""
        if self.is_open:
            try:
                self._context.run(self.attempt.make_again)
            except Exception as error:  # noqa: BLE001 (a type of the user's)
                self.report = Report(error)

    def call_succeeded(self) -> None:
        self._context.run(execution.call_hook, self.instance, "succeeded", hooks=self._runner.hooks)

    def close(self) -> None:
        runner, job = self._runner, self.job
        self._life.close()
        runner.leases.drop(job)
        if job.features:
            runner.let_go(job)


def _start(runner: Runner, members: Sequence[_ChunkMember]) -> None:
    """Start the jobs in one exchange, but for those that other limits concern."""
    limited = {each for each in members if runner.limits_of(each.attempt)}
    together = [each.job for each in members if each not in limited]
    if together:
        runner.watchdog.spare()
        runner.settler.start_all(together, wait=True)
        for job, result in runner.settler.refused:
            runner.was_refused(job, result)
    for each in members:
        if each in limited:
            started = runner.start(each.attempt, needs.BEGIN)
        else:
            started = each.job.has_started()
        each.job.start_confirmed = started
        each.go_on(started)


def _end(members: Sequence[_ChunkMember]) -> None:
    """Bring started jobs to their ends: first those that are done, whose ends can wait.

    Those that are given back go to the front of their queue, the first one last.
    """
    left = [each for each in members if each.need is needs.RUN]
    raised = [each for each in left if each.report.error is not None]
    back = [each for each in raised if isinstance(each.report.error, JobGivenBack)]
    for each in left:
        if each.report.error is None:
            each.go_on(each.report)
    for each in raised:
        if not isinstance(each.report.error, JobGivenBack):
            each.go_on(each.report)
    for each in reversed(back):
        each.go_on(each.report)


class _HandlerCall:
    """Calls `handle_many` of started jobs; after an error for each half, until one is alone."""

    def __init__(self, runner: Runner, members: Sequence[_ChunkMember]) -> None:
        self._runner = runner
        self._members = members
        self._score = runner.scores[0] if runner.scores else None
        self._is_over = False
        """Whether a handler was ended from outside, which ends the worker."""
        self._has_failed = False
        self._made: Sequence[_ChunkMember] = ()
        """The jobs that the calls are about."""
        self._is_noted = False
        """Whether the pool knows of the calls."""

    def perform(self) -> None:
        began = time.thread_time()
        try:
            made = self._made = [each for each in self._members if self._is_made(each)]
            for each in made:
                self._runner.leases.keep(each.job, 0)  # however many calls there will be
            self._begin_recording()
            self._call(made)
        finally:
            each_used = (time.thread_time() - began) / len(self._members)
            for each in self._members:
                each.attempt.used(each_used, 0.0)
            if self._score is not None:
                self._runner.together = None
                self._score.settled_together(len(self._made))

    def _begin_recording(self) -> None:
        self._runner.together = self._score
        recorder = self._runner.job_recorder
        if self._score is not None and recorder is not None and recorder.keeps_log:
            for each in self._made:
                each.job.records = self._score.ring.note

    def _record(self, member: _ChunkMember, error: BaseException | None) -> None:
        """Keep the recording of a job that ran out of memory or time, alone at last."""
        recorder = self._runner.job_recorder
        if error is not None and self._score is not None and recorder is not None:
            attempts, count = member.job.attempts(), len(self._made)
            member.job.recording = recorder.recorded(self._score, error, attempts, count)

    def _is_made(self, each: _ChunkMember) -> bool:
        """Make the job's instance; a job that cannot be made has failed alone."""
        if self._is_over:
            return False
        attempt = each.attempt
        try:
            each.make()
        except BaseException as error:  # noqa: BLE001 (whatever it raises is its outcome)
            if attempt.interrupts.fired is not None:
                self._end_from_outside([each], attempt.interrupts.fired)
            else:
                each.report = self._runner.reported(attempt, error)
            return False
        finally:
            attempt.interrupts.not_running()
        return True

    def _call(self, members: Sequence[_ChunkMember]) -> None:
        while (members := [each for each in members if each.is_open]) and not self._is_over:
            call = ChunkCall([each.instance for each in members])
            error = self._called(members, call)
            ended_by = members[0].attempt.interrupts.fired
            if ended_by is not None:
                self._end_from_outside(members, ended_by)
                return
            if call.was_made and len(members) > 1:
                self._take_in(members, error)
                return
            # It is alone, or a middleware or `set_up` has kept it from the call: others are not.
            attempt = members[0].attempt
            members[0].report = self._runner.reported(attempt, error)
            self._record(members[0], error)
            attempt.is_handled = attempt.is_handled or error is None

    def _take_in(self, members: Sequence[_ChunkMember], error: BaseException | None) -> None:
        """Take in how a call ended that was about several jobs."""
        if error is None:
            return
        if self._runner.signals.quit and isinstance(error, Exception):
            error = JobGivenBack("its chunk failed, and the worker stops")
        if isinstance(error, _OF_ALL):
            for each in members:
                each.report = Report(error)
            return
        log.log(
            logging.DEBUG if self._has_failed or is_early(error) else logging.WARNING,
            "%s: a chunk of %d jobs failed (%s): each half is tried",
            members[0].attempt.name, len(members), type(error).__name__,
        )  # fmt: skip
        self._has_failed = True
        for each in members:
            each.make_again()
        middle = (len(members) + 1) // 2
        self._call(members[:middle])
        self._settle_done()
        self._call(members[middle:])

    def _settle_done(self) -> None:
        """Send the ends of those that are done, as before the start of any other job.

        Otherwise they would run again if one of the others killed the worker.
        """
        done = [each for each in self._members if each.need is needs.RUN and each.is_over]
        for each in done:
            each.go_on(each.report)
        if done:
            self._runner.watchdog.spare()
            with suppress(BackendUnavailable):  # they are sent with the next request
                self._runner.settler.flush()

    def _called(self, members: Sequence[_ChunkMember], call: ChunkCall) -> BaseException | None:
        """Call the handler under the timeout of the class. Returns what it raised."""
        attempt = members[0].attempt
        leader = members[0].instance
        object.__setattr__(leader, "_chunk", call)
        self._cover(attempt.limits.timeout)
        try:
            return self._returned(members, leader, call)
        except Interruption as late:  # one that came while the call was ending
            attempt.interrupts.not_running()
            return late
        finally:
            object.__setattr__(leader, "_chunk", None)

    def _cover(self, timeout: float) -> None:
        """Watch the call, which has `timeout` seconds from now; 0 is no limit."""
        limit = timeout + self._runner.options.grace if timeout else 0
        self._runner.watch(limit)
        if self._score is None:
            return
        if not self._is_noted:
            limits = self._runner.concurrency
            members = [
                (each.job.reservation.fence, each.attempt.slot_leases if limits else ())
                for each in self._made
            ]
            self._score.running_together(members, limit)
            self._is_noted = True
        elif limit:
            self._score.extend(limit)

    def _returned(
        self, members: Sequence[_ChunkMember], leader: JobDefinition, call: ChunkCall
    ) -> BaseException | None:
        runner, attempt = self._runner, members[0].attempt
        try:
            attempt.interrupts.running(attempt.limits.timeout)
            returned = current.context_of(attempt.job).run(
                execution.perform, leader, runner.middleware, runner.hooks
            )
            if process.own.pid == runner.pid:
                if pusher.own.tasks_open or pusher.own.elsewhere:
                    pusher.wait()  # what its threads have dispatched comes before its end
                if call.was_made:
                    self._are_done(members, returned)
        except BaseException as error:  # noqa: BLE001 (whatever it raises is the jobs' outcome)
            return None if attempt.is_handled else error
        finally:
            if process.own.pid != runner.pid:
                runner.end_fork()
            attempt.interrupts.not_running()
        return None

    def _are_done(self, members: Sequence[_ChunkMember], returned: object) -> None:
        succeeded: list[_ChunkMember] = []
        for each, result in zip(members, results_of(returned, len(members)), strict=True):
            attempt = each.attempt
            attempt.result = result
            if attempt.has_succeeded():
                succeeded.append(each)
            if attempt.is_handled and result is not None:
                each.report = Report(None, result)
        for each in succeeded:
            each.call_succeeded()

    def _end_from_outside(self, members: Sequence[_ChunkMember], error: Interruption) -> None:
        """End what is left of the chunk after a call was interrupted; the worker ends, too.

        Which of several ran into the timeout is not known: they go back uncounted, to be handled by
        halves. One that is cancelled is known, and the others just go back.
        """
        self._is_over = True
        attempt, why = members[0].attempt, str(error)
        attempt.ended_by = error
        if isinstance(error, JobCancelled):
            why = "another job of its chunk was cancelled"
            self._cancel(error)
        elif _is_failure(error) and not attempt.is_handled:
            why = "its chunk was ended, and it is handled in a smaller one"
            if len(members) == 1:
                members[0].report = self._runner.reported(attempt, error)
                self._record(members[0], error)
            else:
                self._halve(attempt.name, len(members), error)
        for each in self._members:
            if each.is_open:
                each.report = Report(JobGivenBack(why))

    def _cancel(self, error: JobCancelled) -> None:
        """End the jobs that are to be cancelled, also those asked for meanwhile."""
        found = [each for each in self._members if not each.is_over]
        self._runner.watchdog.spare()
        named = {error.uuid, *self._runner.cancellation.asked([each.job for each in found])}
        for each in found:
            if each.job.uuid in named:
                each.report = Report(error)

    def _halve(self, name: str, count: int, error: Interruption) -> None:
        size = max(1, count // 2)
        log.warning(
            "%s: a chunk of %d jobs was ended (%s): for %d minutes at most %d are handled at once",
            name, count, error, _LIMIT_FOR // 60, size,
        )  # fmt: skip
        self._runner.watchdog.spare()
        with suppress(BackendUnavailable):
            _limit(self._runner.connection, name, size)


def _is_failure(error: Interruption) -> bool:
    """Whether a job that is not known brought an interruption about: it hangs."""
    return isinstance(error, JobTimedOut) or (isinstance(error, JobInterrupted) and not error.uuid)


# -- chunks that had to be ended ------------------------------------------------------------------


def _key(name: str) -> str:
    return f"chunk:{name}"[:250]


def _allowed(connection: Connection, name: str) -> int:
    """Return how many jobs of a class may be handled at once; 0: as many as it says."""
    if Capability.FACTS not in connection.capabilities:
        return 0
    (text,) = connection.backend.read(_key(name))
    return int(text) if text is not None and text.isdigit() else 0


def _limit(connection: Connection, name: str, size: int) -> None:
    if Capability.FACTS in connection.capabilities:
        connection.store.set(_key(name), str(size), _LIMIT_FOR)
