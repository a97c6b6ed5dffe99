"""run: runs one job here with a worker's code, in memory."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import from_json, to_json, to_jsonable_python

from qframe import manager
from qframe.contracts.history import History
from qframe.contracts.identity import R_co
from qframe.contracts.status import State, check_progress
from qframe.contracts.step import Push, Reservation, Step
from qframe.dispatch import calls
from qframe.dispatch.batch import Batch, Caught
from qframe.dispatch.event import encoded, send_on
from qframe.dispatch.queueable import Queueable
from qframe.drivers import process
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import InvalidJob
from qframe.features.base import End, Plan
from qframe.features.batch import KEY as BATCH
from qframe.features.chain import CAUSE, PREVIOUS
from qframe.features.context import Context
from qframe.features.reserved import ReservedJob
from qframe.features.steps import JobSteps, check_name
from qframe.jobs import execution
from qframe.jobs.typed import Handles
from qframe.payload import envelope, timing, tracebacks
from qframe.payload.envelope import Envelope
from qframe.payload.secret import SHOWN, TRAVELS, revealed
from qframe.payload.text import one_line
from qframe.testing import fakes, repeating
from qframe.testing.fakes import Fake
from qframe.testing.recording import LinkJob, MemberJob, Notes, RecordingConnection
from qframe.testing.repeating import KillableRunner, Killer
from qframe.testing.wanted import JobTarget, Target, fit_all, is_delay, shown_job, shown_member
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Left
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import JobOutcome
from qframe.worker.runner import Runner
from qframe.worker.signals import Signals

if TYPE_CHECKING:
    from qframe.payload.timing import When

R = TypeVar("R")

_PASSED = 60.0
__tracebackhide__ = True
"""pytest shows a failed assertion in the test, not in here."""


def run(  # noqa: PLR0913 (one for each thing that a job finds)
    job: Handles[R],
    *,
    attempts: int = 1,
    releases: int = 0,
    with_middleware: bool = True,
    batch: Batch | None = None,
    caught: Caught | None = None,
    previous: object = None,
    steps: Mapping[str, object] | None = None,
    events: Mapping[str, object] | None = None,
) -> Ran[R]:
    """Runs one job here, once, and returns the result; nothing it does reaches a backend.

    The job is made from its payload, as a worker makes it, and so is not the object given here.
    Hooks, middleware and listeners are called as in a worker without options: `tries` is 1 unless
    the job says otherwise. No timeout ends it. The result has what the job raised.

    `attempts` is the number of this attempt; the earlier ones raised, except the `releases` that
    ended because the job released itself. Without `with_middleware`, no middleware is called. Locks
    and limits are kept in memory: for this run, or for the `fake()` that is on. What the job
    dispatches is pushed, unless there is a fake.

    The job counts as a link of a chain, and what it puts into that is recorded. `self.batch()`
    returns `batch`, such as `fake_batch(total=10)`: what the job adds to it is recorded, too, and
    no member is counted. `caught` is what a handler given to `catch` receives, `previous` what the
    link before it in its chain returned.

    `steps` are values of durable steps that earlier attempts have kept, `events` those sent before.
    A job that sleeps or waits for an event ends there: `resume` of the result goes on.
    """
    if not isinstance(job, Queueable):
        raise InvalidJob(f"run takes a job, not {one_line(repr(job), 80)}")
    if attempts < 1 or not 0 <= releases < attempts:
        raise ValueError("attempts is 1 or more, and releases fewer than that")
    made = functools.partial(
        _under_test, job, attempts, releases, batch, caught, previous, steps, events,
        with_middleware=with_middleware,
    )  # fmt: skip
    running, reserved = made()
    running.made_again = made
    return running.run(reserved)


def _under_test(  # noqa: PLR0913 (as above)
    job: Queueable,
    attempts: int,
    releases: int,
    batch: Batch | None,
    caught: Caught | None,
    previous: object,
    steps: Mapping[str, object] | None,
    events: Mapping[str, object] | None,
    *,
    with_middleware: bool,
) -> tuple[_JobUnderTest, _Reserved]:
    """Make a job from its payload, held in memory, with what earlier attempts have left."""
    fake = fakes.active()
    original = manager.default().connection_of(job)
    notes = Notes()
    connection = RecordingConnection(
        original,
        notes,
        MemoryBackend() if fake is None else fake.memory,
        None if batch is None else batch._connection.context,  # noqa: SLF001 (it is what it adds to)
    )
    message = envelope.create(job, original.context.keyring)
    if batch is not None:
        message[BATCH] = {"id": batch.id}  # no number: nothing is counted
    if caught is not None:
        message[CAUSE] = {"uuid": caught.id, "name": caught.name, "error": caught.error}
    if previous is not None:
        message[PREVIOUS] = {"result": from_json(to_json(previous))}
    queue = connection.queue_for(job)
    made = Envelope(message)
    reserved = _reserved(connection, made, queue, attempts, releases)
    for name, value in (steps or {}).items():
        kept = _as_kept(value)
        hidden = kept != from_json(to_json(value))
        reserved.steps.preset(name, to_json(kept).decode(), hidden=hidden)
    running = _JobUnderTest(connection, notes, type(job), queue, made.uuid, with_middleware)
    for name, value in (events or {}).items():
        running.send_event(name, value)
    return running, reserved


class _JobUnderTest:
    """A job that is run here, attempt by attempt."""

    made_again: Callable[[], tuple[_JobUnderTest, _Reserved]]
    """Makes the same job anew."""

    def __init__(
        self,
        connection: RecordingConnection,
        notes: Notes,
        job_class: type[Queueable],
        queue: str,
        uuid: str,
        with_middleware: bool,
    ) -> None:
        self._connection = connection
        self._notes = notes
        self._class = job_class
        self._queue = queue
        self._uuid = uuid
        self._with_middleware = with_middleware

    def send_event(self, name: str, value: object) -> None:
        calls.run(send_on(self._connection, self._uuid, check_name(name), encoded(name, value)))

    def resume(self, after: float, killer: Killer | None = None) -> Ran[Any]:
        self._connection.backend.timing.skew += after
        found, _ = self._connection.backend.reserve([self._queue])
        if not found:
            raise AssertionError(f"the job does not go on after {after:g} s")
        return self.run(_Reserved(self._connection.context, found[0]), killer)

    def killable(self) -> Callable[..., Ran[Any]]:
        """Make the job anew; returns what runs it: its first attempt, then further ones.

        A further one is that after a kill, or after the seconds of a delay.
        """
        running, first = self.made_again()
        left = [first]

        def run(killer: Killer | None = None, after: float | None = None) -> Ran[Any]:
            if left:
                return running.run(left.pop(), killer or Killer())
            wait = running._connection.retry_after + 1 if after is None else after  # noqa: SLF001 (its own)
            return running.resume(wait, killer or Killer())

        return run

    def run(self, reserved: _Reserved, killer: Killer | None = None) -> Ran[Any]:
        with Signals(handled=False) as signals:
            registry = manager.default().registry
            made_of = self._connection, registry, WorkerOptions(), signals
            runner = Runner(*made_of) if killer is None else KillableRunner(killer, *made_of)
            attempt = Attempt(runner, reserved, self._class)
            attempt.is_forced, attempt.is_bare = True, not self._with_middleware
            with execution.run_in_caller(), contextlib.suppress(Left):  # it was killed
                runner.run(reserved, attempt)
            runner.settler.flush()
            runner.close()
        ran = Ran(attempt, reserved, self._notes, self)
        if isinstance(ran.error, KeyboardInterrupt):
            raise ran.error
        return ran


class Ran(Generic[R_co]):
    """The result of one attempt, and assertions on it: what `run` returns.

    An assertion that does not hold raises `AssertionError`, caused by what the job raised.
    """

    def __init__(
        self, attempt: Attempt, reserved: _Reserved, notes: Notes, running: _JobUnderTest
    ) -> None:
        end = reserved.end or End(State.COMPLETE)
        self._running = running
        self._steps = reserved.kept
        self.job = attempt.instance
        """The job that ran."""
        self.outcome = attempt.outcome.value
        """`done`, `skipped`, `released`, `retried`, `failed`; `given back`: it sleeps or waits."""
        self.sleeps = end.delay if end.suspended else None
        """Seconds until a job goes on that sleeps, or waits for an event at the longest."""
        self.waits_for = end.event
        """The name of the event that it waits for; ""."""
        self.result: R_co = attempt.report.result
        """What `handle` returned."""
        self.error = None if end.suspended else reserved.failed_with or attempt.report.error
        """What the job raised, or failed itself with."""
        self.progress = reserved.reported
        """The arguments of `self.progress(...)`, in order: how far, and the words."""
        self.delay = end.delay if end.state is State.RELEASED else None
        """Seconds after which a released or retried job is ready; None for any other."""
        self.reason = end.remark
        """Why it was skipped."""
        self.appended = notes.appended
        """What `self.append_to_chain(...)` put at the end of its chain, in order."""
        self.prepended = notes.prepended
        """What `self.prepend_to_chain(...)` put right after it, in order of the calls."""
        self.added = notes.added
        """What `self.batch().add(...)` added to its batch, in order; a chain is a list."""
        self._deleted = reserved.deleted_itself
        self._attempt = reserved.attempts()

    def assert_done(self) -> None:
        """Asserts that the job ended well; a job that deleted itself did."""
        self._check(self.outcome == JobOutcome.DONE, "to be done")

    def assert_deleted(self) -> None:
        """Asserts that the job deleted itself."""
        self._check(self._deleted, "to delete itself")

    def assert_skipped(self) -> None:
        """Asserts that the job was skipped: it raised `DontHandle`, or a middleware stopped it."""
        self._check(self.outcome == JobOutcome.SKIPPED, "to be skipped")

    def assert_released(self, delay: When | None = None) -> None:
        """Asserts that the job, or a middleware, released it; after `delay` if given."""
        expected = "to be released" if delay is None else f"to be released {_after(delay)}"
        self._check(self.outcome == JobOutcome.RELEASED and self._is_after(delay), expected)

    def assert_not_released(self) -> None:
        """Asserts that neither the job nor a middleware released it."""
        self._check(self.outcome != JobOutcome.RELEASED, "not to be released")

    def assert_retried(self, delay: When | None = None) -> None:
        """Asserts that the job raised and is tried again; after `delay` if given."""
        expected = "to be tried again" if delay is None else f"to be tried again {_after(delay)}"
        self._check(self.outcome == JobOutcome.RETRIED and self._is_after(delay), expected)

    def assert_failed(self) -> None:
        """Asserts that the job failed for good."""
        self._check(self.outcome == JobOutcome.FAILED, "to fail")

    def assert_not_failed(self) -> None:
        """Asserts that the job did not fail for good."""
        self._check(self.outcome != JobOutcome.FAILED, "not to fail")

    def assert_failed_with(
        self,
        error: type[BaseException] | tuple[type[BaseException], ...],
        match: str | None = None,
    ) -> None:
        """Asserts that the job failed for good with such an error.

        `match` is a regular expression, searched in its message.
        """
        kinds = error if isinstance(error, tuple) else (error,)
        expected = f"to fail with {' or '.join(kind.__name__ for kind in kinds)}"
        if match is not None:
            expected += f" matching {match!r}"
        fits = isinstance(self.error, kinds)
        if match is not None:
            fits = fits and re.search(match, str(self.error)) is not None
        self._check(self.outcome == JobOutcome.FAILED and fits, expected)

    def step(self, name: str) -> StepRan:
        """Returns a durable step of the job, to make assertions on it."""
        return StepRan(self, name, self._steps.get(name))

    def assert_sleeps(self, delay: When | None = None) -> None:
        """Asserts that the job sleeps; for `delay` (to the minute) if given."""
        fits = self.sleeps is not None and not self.waits_for
        if fits and delay is not None:  # less what has passed since
            fits = 0 <= timing.seconds_until(delay) - (self.sleeps or 0.0) < _PASSED
        self._check(fits, "to sleep" if delay is None else f"to sleep, {_after(delay)}")

    def assert_waits_for(self, event: str) -> None:
        """Asserts that the job waits for an event of this name."""
        self._check(self.waits_for == event, f"to wait for the event {event!r}")

    def resume(
        self, after: float | timedelta | None = None, events: Mapping[str, object] | None = None
    ) -> Ran[R_co]:
        """Runs the next attempt of a job that sleeps or waits, and returns its result.

        `events` are sent before. `after` (seconds, or a timedelta) moves the time of this run;
        default: not at all if an event that it waits for is among them, else until it goes on.
        Raises `AssertionError` if it does not go on by then.
        """
        if self.sleeps is None:
            raise AssertionError(f"{self._shown()} neither sleeps nor waits: {self._became()}")
        for name, value in (events or {}).items():
            self._running.send_event(name, value)
        if after is None:
            after = 0.0 if self.waits_for in (events or {}) else self.sleeps
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        return self._running.resume(seconds)

    def assert_repeatable(
        self,
        state: Callable[[], object] | Callable[[Fake], object] | None = None,
        reset: Callable[[], object] | None = None,
        restart: Callable[[], object] | None = None,
    ) -> list[str]:
        """Asserts that the job may be killed anywhere and run again, with the state of one run.

        The job runs again and again, each time from what `reset` makes: it is killed before each
        commit, HTTP call, dispatch and durable step, and before its end, and then runs to its end.
        `state` is called then, and must return what it returns after one run. It may take one
        argument, the `fake()` that records what the job dispatched; by default that is the state.
        `restart` is called after each kill, for what a new process would not have: an open session.

        Returns the points at which it was killed. Raises `AssertionError` with those at which the
        state differs or the next attempt fails.
        """
        return repeating.check(self._running.killable, self._shown(), state, reset, restart)

    def assert_appended(self, target: Target) -> None:
        """Asserts that the job put such a job at the end of its chain."""
        self._check_among(self.appended, target, "to append", "to its chain", "it appended")

    def assert_prepended(self, target: Target) -> None:
        """Asserts that the job put such a job right after itself in its chain."""
        self._check_among(self.prepended, target, "to prepend", "to its chain", "it prepended")

    def assert_added(self, target: Target) -> None:
        """Asserts that the job added such a job to its batch, by itself and not in a chain."""
        self._check_among(self.added, target, "to add", "to its batch", "it added")

    def _check_among(
        self, jobs: Sequence[MemberJob | LinkJob], target: Target, what: str, where: str, did: str
    ) -> None:
        kind = JobTarget(target)
        there = ", ".join(map(shown_member, jobs)) or "nothing"
        fits = any(fit_all([each], [kind]) for each in jobs)
        self._expect(fits, f"{what} {kind} {where}", f"{did} {there}, and {self._became()}")

    def _is_after(self, delay: When | None) -> bool:
        if self.delay is None:
            return delay is None
        return is_delay(delay, self.delay, time.time())

    def _check(self, fits: bool, expected: str) -> None:
        self._expect(fits, expected, f"{self._became()} (attempt {self._attempt})")

    def _expect(self, fits: bool, expected: str, was: str) -> None:
        if not fits:
            text = f"expected {self._shown()} {expected}, but {was}"
            raise AssertionError(text) from self.error

    def _shown(self) -> str:
        return "the job" if self.job is None else shown_job(self.job)

    def _became(self) -> str:
        error = "" if self.error is None else tracebacks.brief(self.error)
        after = _after(self.delay or 0)
        words = {
            "done": "it deleted itself" if self._deleted else "it was done",
            "skipped": f"it was skipped: {self.reason}",
            "released": f"it was released {after}",
            "retried": f"it raised {error} and is tried again {after}",
            "failed": f"it failed with {error}",
        }
        if self.sleeps is not None:
            return (
                f"it waits for the event {self.waits_for!r}"
                if self.waits_for
                else (f"it sleeps for {self.sleeps:.0f} s")
            )
        return words.get(self.outcome, f"it was {self.outcome}")

    def __repr__(self) -> str:
        return f"<ran {self._shown()}: {self._became()}>"


class StepRan:
    """One durable step of a job that was run; `value` is what it has kept, as JSON has it."""

    def __init__(self, ran: Ran, name: str, kept: tuple[bytes, bool] | None) -> None:
        self._ran = ran
        self._name = name
        self.is_kept = kept is not None
        text, self._is_hidden = kept or (b"null", False)
        self.value = from_json(text)

    def returned(self, value: object) -> None:
        """Asserts that the step has kept this value, in this attempt or before."""
        wanted = _as_kept(value)
        shown = from_json(to_json(value))
        self._ran._expect(  # noqa: SLF001 (its own)
            self.is_kept and self.value == wanted,
            f"to have kept {shown!r} of the step {self._name!r}",
            f"it has kept {self._shown}" if self.is_kept else "it has kept nothing of it",
        )

    def not_done(self) -> None:
        """Asserts that nothing is kept of the step."""
        self._ran._expect(  # noqa: SLF001 (its own)
            not self.is_kept,
            f"not to have done the step {self._name!r}",
            f"it has kept {self._shown}",
        )

    @property
    def _shown(self) -> str:
        return SHOWN if self._is_hidden else repr(self.value)


def _as_kept(value: object) -> Any:  # noqa: ANN401 (JSON)
    """Return what a step keeps of a value, as JSON has it, with its secrets."""
    return from_json(to_json(revealed(value, to_jsonable_python(value, context=TRAVELS))))


def _after(delay: When) -> str:
    if isinstance(delay, int | float):
        return f"after {delay:g} s" if delay else "at once"
    return f"after {delay}"


class _Reserved(ReservedJob):
    """A job that records how it was settled."""

    end: End | None = None
    deleted_itself = False
    kept: Mapping[str, tuple[bytes, bool]] = {}
    """What is kept of its durable steps as it ends."""

    def __init__(self, context: Context, reservation: Reservation) -> None:
        super().__init__(context, reservation)
        self.reported: list[tuple[float, str]] = []

    @property
    def steps(self) -> JobSteps:
        steps = self._durable_steps()
        assert isinstance(steps, JobSteps)  # noqa: S101 (a feature's)
        return steps

    def progress(self, done: float, text: str = "") -> None:
        check_progress(done, text)
        self.reported.append((done, text))

    def delete(self) -> None:
        super().delete()
        self.deleted_itself = True

    def plan(self, end: End) -> Plan:
        """Records how it ends."""
        self.end = end
        if self._has_steps:
            self.kept = self.steps.kept()
        return super().plan(end)


def _reserved(
    connection: RecordingConnection, made: Envelope, queue: str, attempts: int, releases: int
) -> _Reserved:
    """Holds a job as if it was started before."""
    backend, now, history = connection.backend, time.time(), History()
    for number in range(1, attempts):
        history = history.started(number, process.NAME, process.pid(), now)
        history = history.ended("released" if number <= releases else "error", at=now)
    backend.apply(Step(None, Push(queue, connection.signed(made.raw, queue))))
    (found,) = backend.search(queue, made.uuid.encode())
    found.handle.attempts, found.handle.notes = attempts - 1, history.to_json().encode()
    reservation = backend.take(found)
    assert reservation is not None  # noqa: S101 (nobody else could have taken it)
    return _Reserved(connection.context, reservation)
