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
from qframe.exceptions import BackendUnavailable, Interruption, JobGivenBack
from qframe.features.reserved import ReservedJob
from qframe.jobs import current, execution
from qframe.jobs.chunk import Chunk, results_of
from qframe.payload import envelope
from qframe.worker import needs
from qframe.worker.attempt import Attempt
from qframe.worker.needs import NOTHING, Report, lived_in_steps
from qframe.worker.outcome import JobOutcome
from qframe.worker.runner import Runner

log = logging.getLogger("qframe")

_LIMIT_FOR = 600.0
"""Seconds that a class is handled in smaller chunks after one had to be ended from outside."""
_RENEW_EVERY = 0.3
"""Seconds between renewals of jobs that are only held, for about a second each."""


def chunk_of(runner: Runner, name: str) -> Chunk | None:
    """Return the chunk of a class, if the runner calls its handlers and knows the class."""
    found = runner.registry.known(name) if runner.runs_here else None
    return None if found is None else found.chunk


class Gathering:
    """Collects held jobs of one class and queue for a worker that runs one call at a time."""

    def __init__(
        self,
        runner: Runner,
        first: ReservedJob,
        size: int,
        within: float,
        held: deque[ReservedJob],
        reserve: Callable[[str, int], Sequence[ReservedJob]],
    ) -> None:
        self._runner = runner
        self._held = held
        self._reserve = reserve
        self._backend = runner.connection.backend
        self._name = first.message.get("job") if first.message else None
        self._queue = first.queue
        self.jobs = [first]
        allowed = _allowed(runner.connection, str(self._name))
        self._size = min(size, allowed or size)
        waited = max(0.0, time.time() - (envelope.due(first.message or {}) or time.time()))
        self._until = time.monotonic() + max(0.0, within - waited)
        self._renewed = time.monotonic()

    def collect(self) -> bool:
        """Return whether to run what was collected; otherwise the worker is to stop.

        It stops at a job of another class, which must not wait, and keeps that held.
        """
        can_wait = Capability.AHEAD in self._backend.capabilities
        while not self._take() and len(self.jobs) < self._size:
            found = self._reserve(self._queue, self._size - len(self.jobs))
            self._held.extend(found)
            if found:
                continue
            left = self._until - time.monotonic()
            if left <= 0 or not can_wait:
                break
            self._runner.at_rest()
            self._runner.sleep(min(left, _RENEW_EVERY), [self._queue])
            if self._runner.signals.quit:
                self._held.extendleft(reversed(self.jobs))
                return False
            self._renew()
        return True

    def _take(self) -> bool:
        """Take what is held and fits; returns whether another job is held that must not wait."""
        others: list[ReservedJob] = []
        while self._held and len(self.jobs) < self._size:
            job = self._held.popleft()
            fits = job.queue == self._queue and (job.message or {}).get("job") == self._name
            (self.jobs if fits else others).append(job)
        self._held.extendleft(reversed(others))
        return bool(others)

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
        for each in running:
            each.go_on(each.report)
    finally:
        for each in lives:
            each.close()
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
        self._life = lived_in_steps(self.attempt, self.attempt.life(), answers, None)
        self.need: needs.Need | None = None
        """What its life waits for; None once it is over."""
        self.report: Report = NOTHING

    def go_on(self, answer: object) -> None:
        """Send an answer into its life, which goes on to the next need, or to its end."""
        try:
            self.need = current.context_of(self.job).run(self._life.send, answer)
        except StopIteration as ended:
            self.need, self.attempt.outcome = None, ended.value

    def close(self) -> None:
        runner, job = self._runner, self.job
        self._life.close()
        runner.leases.drop(job)
        if job.features:
            runner.let_go(job)
        runner.signals.look_after(job)


def _start(runner: Runner, members: Sequence[_ChunkMember]) -> None:
    """Start the jobs in one exchange, but for those that other limits concern."""
    together = [each for each in members if not runner.limits_of(each.attempt)]
    if together:
        runner.watchdog.spare()
        runner.settler.start_all([each.job for each in together], wait=True)
        for job, result in runner.settler.refused:
            runner.was_refused(job, result)
    for each in members:
        if each in together:
            started = each.job.has_started()
        else:
            started = runner.start(each.attempt, needs.BEGIN)
        each.go_on(started)


class _HandlerCall:
    """Calls `handle_many` of started jobs; after an error for each half, until one is alone."""

    def __init__(self, runner: Runner, members: Sequence[_ChunkMember]) -> None:
        self._runner = runner
        self._members = members
        self._is_ended = False
        """Whether a handler was ended from outside, which ends the worker."""

    def perform(self) -> None:
        self._call([each for each in self._members if self._is_made(each)])

    def _is_made(self, each: _ChunkMember) -> bool:
        """Make the job's instance; a job that cannot be made has failed alone."""
        try:
            each.attempt.made()
        except BaseException as error:  # noqa: BLE001 (whatever it raises is its outcome)
            each.report = self._runner.reported(each.attempt, error)
            return False
        finally:
            each.attempt.interrupts.not_running()
        return True

    def _call(self, members: Sequence[_ChunkMember]) -> None:
        members = [each for each in members if not each.job.is_settled]
        if self._is_ended:
            self._give_back(members)
        if self._is_ended or not members:
            return
        error = self._called(members)
        first = members[0].attempt
        ended_by = first.interrupts.fired
        if ended_by is not None:
            self._end_from_outside(members, ended_by)
        elif error is None:
            return
        elif len(members) == 1:
            members[0].report = self._runner.reported(first, error)
        else:
            log.warning(
                "%s: a chunk of %d jobs failed (%s): each half is tried",
                first.name, len(members), type(error).__name__,
            )  # fmt: skip
            middle = (len(members) + 1) // 2
            self._call(members[:middle])
            self._call(members[middle:])

    def _called(self, members: Sequence[_ChunkMember]) -> BaseException | None:
        """Call the handler under the timeout of the class. Returns what it raised."""
        runner, first = self._runner, members[0].attempt
        instances = [each.attempt.instance for each in members]
        leader = instances[0]
        assert leader is not None  # noqa: S101 (it was made)
        object.__setattr__(leader, "_chunk", instances)
        try:
            first.interrupts.running(first.limits.timeout)
            returned = current.context_of(first.job).run(
                execution.perform, leader, runner.middleware, runner.hooks
            )
            first.interrupts.not_running()
        except BaseException as error:  # noqa: BLE001 (whatever it raises is the jobs' outcome)
            return error
        finally:
            first.interrupts.not_running()
            object.__setattr__(leader, "_chunk", None)
        results = results_of(returned, len(members))
        for each, result in zip(members, results, strict=True):
            self._is_done(each, result)
        return None

    def _is_done(self, each: _ChunkMember, result: object) -> None:
        attempt = each.attempt
        attempt.result = result
        if attempt.has_succeeded() and attempt.instance is not None:
            execution.call_hook(attempt.instance, "succeeded", hooks=self._runner.hooks)
        each.report = NOTHING if result is None else Report(None, result)

    def _end_from_outside(self, members: Sequence[_ChunkMember], error: Interruption) -> None:
        """End jobs whose handler ran into its timeout, or was interrupted.

        Which of several did it is not known: they go back uncounted, to be handled by halves.
        """
        self._is_ended = True
        if len(members) == 1:
            attempt = members[0].attempt
            members[0].report = self._runner.reported(attempt, error)
            return
        size = max(1, len(members) // 2)
        log.warning(
            "%s: a chunk of %d jobs was ended (%s): for %d minutes at most %d are handled at once",
            members[0].attempt.name, len(members), error, _LIMIT_FOR // 60, size,
        )  # fmt: skip
        with suppress(BackendUnavailable):
            _limit(self._runner.connection, members[0].attempt.name, size)
        self._give_back(members)
        members[0].attempt.ended_by = error

    def _give_back(self, members: Sequence[_ChunkMember]) -> None:
        for each in members:
            why = "its chunk failed, and it is handled in a smaller one"
            each.report = Report(JobGivenBack(why))


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
