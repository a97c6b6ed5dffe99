"""run: one job, run here by what runs jobs in a worker, with no backend behind it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from qframe import execution, host, manager, membership, payload, timing, tracebacks
from qframe.batch import Batch, Caught
from qframe.contracts import History, State, Store
from qframe.drivers import following
from qframe.drivers.base import BaseQueue
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import InvalidJob
from qframe.manager import QueueManager
from qframe.names import one_line
from qframe.payload import Envelope
from qframe.queueable import Queueable
from qframe.testing import fakes
from qframe.testing.following import fits_one, shown_member
from qframe.testing.memory import MemoryStore
from qframe.testing.recording import (
    Dispatched,
    DispatchedBatch,
    DispatchedChain,
    LinkJob,
    MemberJob,
    RecordingQueue,
)
from qframe.testing.wanted import Kind, Target, shown_job
from qframe.worker.options import WorkerOptions
from qframe.worker.retry import Limits
from qframe.worker.runner import Attempt, Outcome, Runner
from qframe.worker.signals import Signals

if TYPE_CHECKING:
    from qframe.timing import When


def run(
    job: Queueable,
    *,
    attempts: int = 1,
    releases: int = 0,
    with_middleware: bool = True,
    batch: Batch | None = None,
    caught: Caught | None = None,
) -> Ran:
    """Run one job here, once, and give what became of it; nothing it does reaches a backend.

    The job is made from its payload, as a worker makes it, and so is not the object given here.
    Hooks, middleware and listeners are called as in a worker without options: `tries` is 1 where
    the job does not say. No timeout ends it. What the job raises is in what this gives.

    `attempts` says which attempt this is; those before it raised, but for the `releases` that
    ended because the job released itself. Without `with_middleware`, no middleware is called.
    Locks and limits are kept in memory: for this run, or for the `fake()` that is on. What the job
    dispatches is pushed, unless there is one.

    The job counts as a link of a chain, and what it puts into that is written down. `batch` is what
    `self.batch()` gives, such as `fake_batch(total=10)`: what it adds to that is written down, too,
    and no member is counted. `caught` is what it is told where it stands for one given to `catch`.
    """
    if not isinstance(job, Queueable):
        raise InvalidJob(f"run takes a job, not {one_line(repr(job), 80)}")
    if attempts < 1 or not 0 <= releases < attempts:
        raise ValueError("attempts is 1 or more, and releases fewer than that")
    fake = fakes.active()
    store = MemoryStore() if fake is None else fake.store
    original = manager.default().connection(job.connection)
    notes = _Notes()
    batches = None if batch is None else batch._store()  # noqa: SLF001 (the same package)
    connection = RecordingQueue(original, notes, store, batches)
    message = payload.create(job, original.keyring)
    if batch is not None:
        message[membership.KEY] = {"id": batch.id}  # no number: nothing is counted
    if caught is not None:
        cause = {"uuid": caught.id, "name": caught.name, "error": caught.error}
        message[following.CAUSE] = cause
    queue = job.queue or connection.default_queue
    reserved = _Reserved(connection, queue, Envelope(message), notes)
    reserved.pretend(attempts, releases)
    with _stores_in(store), Signals(heard=False) as signals:
        ran = _run(reserved, type(job), connection, signals, with_middleware=with_middleware)
    if isinstance(ran.error, KeyboardInterrupt):
        raise ran.error
    return ran


def _run(
    reserved: _Reserved,
    job_class: type[Queueable],
    connection: RecordingQueue,
    signals: Signals,
    *,
    with_middleware: bool,
) -> Ran:
    options = WorkerOptions()
    runner = Runner(connection, manager.default().registry, options, signals, [])
    message = {**reserved.payload, "track": 1}  # so that what it gives is kept
    limits = Limits(job_class, message, options)
    attempt = _Attempt(runner, reserved, job_class.own_name(), job_class, message, limits)
    if not with_middleware:
        attempt.perform = execution.perform_bare
    outcome = attempt.run()
    by_itself = reserved.is_settled
    runner.flush()
    runner.close()
    return Ran(attempt, reserved, outcome, deleted=by_itself and outcome is Outcome.DONE)


class Ran:
    """What became of one attempt, and assertions on it: what `run` gives.

    An assertion that does not hold raises `AssertionError`, caused by what the job raised.
    """

    def __init__(
        self, attempt: _Attempt, reserved: _Reserved, outcome: Outcome, *, deleted: bool
    ) -> None:
        self.job = attempt.instance
        """The job that ran."""
        self.outcome = outcome.value
        """`done`, `skipped`, `released`, `retried` or `failed`."""
        self.result = reserved.result
        """What `handle` gave."""
        self.error = reserved.failed_with or attempt.raised
        """What the job raised, or failed itself with."""
        self.progress = reserved.said
        """What `self.progress(...)` said, in order: how far, and the words."""
        self.delay = reserved.delay
        """Seconds after which a released or retried job is ready; None for another one."""
        self.reason = reserved.reason
        """Why it was skipped."""
        self.appended = reserved.notes.appended
        """What `self.append_to_chain(...)` put at the end of its chain, in order."""
        self.prepended = reserved.notes.prepended
        """What `self.prepend_to_chain(...)` put right behind it, in order of the calls."""
        self.added = reserved.notes.members
        """What `self.batch().add(...)` added to its batch, in order; a chain is a list."""
        self._deleted = deleted
        self._attempt = reserved.attempts()

    def assert_done(self) -> None:
        """Assert that the job ended well; one that deleted itself did."""
        __tracebackhide__ = True
        self._check(self.outcome == Outcome.DONE, "to be done")

    def assert_deleted(self) -> None:
        """Assert that the job deleted itself."""
        __tracebackhide__ = True
        self._check(self._deleted, "to delete itself")

    def assert_skipped(self) -> None:
        """Assert that the job was skipped: it raised `DontHandle`, or a middleware stopped it."""
        __tracebackhide__ = True
        self._check(self.outcome == Outcome.SKIPPED, "to be skipped")

    def assert_released(self, delay: When | None = None) -> None:
        """Assert that the job, or a middleware, released it; after `delay` where one is given."""
        __tracebackhide__ = True
        expected = "to be released" if delay is None else f"to be released {_after(delay)}"
        self._check(self.outcome == Outcome.RELEASED and self._is_after(delay), expected)

    def assert_not_released(self) -> None:
        """Assert that neither the job nor a middleware released it."""
        __tracebackhide__ = True
        self._check(self.outcome != Outcome.RELEASED, "not to be released")

    def assert_retried(self, delay: When | None = None) -> None:
        """Assert that the job raised and is tried again; after `delay` where one is given."""
        __tracebackhide__ = True
        expected = "to be tried again" if delay is None else f"to be tried again {_after(delay)}"
        self._check(self.outcome == Outcome.RETRIED and self._is_after(delay), expected)

    def assert_failed(self) -> None:
        """Assert that the job failed for good."""
        __tracebackhide__ = True
        self._check(self.outcome == Outcome.FAILED, "to fail")

    def assert_not_failed(self) -> None:
        """Assert that the job did not fail for good."""
        __tracebackhide__ = True
        self._check(self.outcome != Outcome.FAILED, "not to fail")

    def assert_failed_with(
        self,
        error: type[BaseException] | tuple[type[BaseException], ...],
        match: str | None = None,
    ) -> None:
        """Assert that the job failed for good with such an error.

        `match` is a regular expression that is searched for in its words.
        """
        __tracebackhide__ = True
        kinds = error if isinstance(error, tuple) else (error,)
        expected = f"to fail with {' or '.join(kind.__name__ for kind in kinds)}"
        if match is not None:
            expected += f" matching {match!r}"
        fits = isinstance(self.error, kinds)
        if match is not None:
            fits = fits and re.search(match, str(self.error)) is not None
        self._check(self.outcome == Outcome.FAILED and fits, expected)

    def assert_appended(self, target: Target) -> None:
        """Assert that the job put such a job at the end of its chain."""
        __tracebackhide__ = True
        self._check_among(self.appended, target, "to append", "to its chain", "it appended")

    def assert_prepended(self, target: Target) -> None:
        """Assert that the job put such a job right behind itself in its chain."""
        __tracebackhide__ = True
        self._check_among(self.prepended, target, "to prepend", "to its chain", "it prepended")

    def assert_added(self, target: Target) -> None:
        """Assert that the job added such a job to its batch, by itself and not in a chain."""
        __tracebackhide__ = True
        self._check_among(self.added, target, "to add", "to its batch", "it added")

    def _check_among(
        self, jobs: Sequence[MemberJob | LinkJob], target: Target, what: str, where: str, did: str
    ) -> None:
        __tracebackhide__ = True
        kind = Kind(target)
        if not any(fits_one(each, kind) for each in jobs):
            there = ", ".join(map(shown_member, jobs)) or "nothing"
            name = "the job" if self.job is None else shown_job(self.job)
            raise AssertionError(
                f"expected {name} {what} {kind} {where}, but {did} {there}, and {self._became()}"
            ) from self.error

    def _is_after(self, delay: When | None) -> bool:
        if delay is None or self.delay is None:
            return delay is None
        if isinstance(delay, datetime):
            return abs(timing.seconds_until(delay) - self.delay) < 1
        return timing.seconds_until(delay) == self.delay

    def _check(self, fits: bool, expected: str) -> None:
        __tracebackhide__ = True
        if not fits:
            name = "the job" if self.job is None else shown_job(self.job)
            raise AssertionError(
                f"expected {name} {expected}, but {self._became()} (attempt {self._attempt})"
            ) from self.error

    def _became(self) -> str:
        """Say what became of the job."""
        error = "" if self.error is None else tracebacks.brief(self.error)
        after = _after(self.delay or 0)
        words = {
            "done": "it deleted itself" if self._deleted else "it was done",
            "skipped": f"it was skipped: {self.reason}",
            "released": f"it was released {after}",
            "retried": f"it raised {error} and is tried again {after}",
            "failed": f"it failed with {error}",
        }
        return words.get(self.outcome, f"it was {self.outcome}")

    def __repr__(self) -> str:
        name = "a job" if self.job is None else shown_job(self.job)
        return f"<ran {name}: {self._became()}>"


def _after(delay: When) -> str:
    if isinstance(delay, int | float):
        return f"after {delay:g} s" if delay else "at once"
    return f"after {delay}"


class _Attempt(Attempt):
    """An attempt that keeps what was raised."""

    raised: BaseException | None = None

    def _outcome(self, error: BaseException | None, seconds: float) -> Outcome:
        self.raised = error
        return super()._outcome(error, seconds)


class _Notes:
    """What a job does to its chain and its batch."""

    def __init__(self) -> None:
        self.appended: list[LinkJob] = []
        self.prepended: list[LinkJob] = []
        self.members: list[MemberJob] = []

    def note_job(self, dispatched: Dispatched) -> None:
        """Nobody dispatches here."""

    def note_chain(self, dispatched: DispatchedChain) -> None:
        """Nobody dispatches here."""

    def note_batch(self, dispatched: DispatchedBatch) -> None:
        """Nobody dispatches here."""

    def note_added(self, batch: str, jobs: Iterable[MemberJob]) -> None:
        """Keep the members."""
        del batch
        self.members += jobs

    def note_extended(self, job: LinkJob, *, first: bool) -> None:
        """Keep the link."""
        (self.prepended if first else self.appended).append(job)


class _Reserved(BaseJob):
    """A job that no backend holds: what is done to it is kept here."""

    def __init__(
        self, connection: BaseQueue, queue: str, envelope: Envelope, notes: _Notes
    ) -> None:
        super().__init__(connection, queue, envelope.uuid, envelope.raw, 1)
        self.notes = notes
        self.started = True
        self.result: Any = None
        self.said: list[tuple[float, str]] = []
        self.delay: float | None = None
        self.reason = ""
        self._history = History()

    def pretend(self, attempts: int, releases: int) -> None:
        """Let this be a later attempt."""
        self._attempts = attempts
        now = time.time()
        history = self._history
        for number in range(1, attempts + 1):
            history = history.started(number, host.NAME, host.pid(), now)
            if number < attempts:
                history = history.ended("released" if number <= releases else "error")
        self._history = history

    @property
    def history(self) -> History:
        """Where the attempts ran."""
        return self._history

    def _delete(self) -> bool:
        return True

    def _release(self, delay: float, history: History) -> bool:
        self.delay = delay
        self._history = history
        return True

    def _give_back(self, delay: float, history: History) -> bool:
        return self._release(delay, history)

    def _bury(self) -> bool:
        return True

    def _renew(self) -> bool:
        return True

    def progress(self, done: float, text: str = "") -> None:
        """Keep what was said."""
        self.said.append((done, text))

    def keep_result(self, result: Any) -> None:  # noqa: ANN401 (whatever the job gave)
        """Keep what the job gave."""
        self.result = result

    def ends_as(self, state: State, remark: str) -> None:
        """Keep the reason."""
        del state
        self.reason = remark


class _Manager(QueueManager):
    """The manager there is, but for the stores: all of them are the one in memory."""

    def __init__(self, original: QueueManager, store: Store) -> None:
        # Not the base's: it would read the configuration and set the project's root anew.
        self.settings = original.settings
        self.registry = original.registry
        self._original = original
        self._store = store

    def connection(self, name: str | None = None) -> BaseQueue:
        """Give a connection, as ever."""
        return self._original.connection(name)

    def opened(self) -> list[BaseQueue]:
        """Give the connections used so far."""
        return self._original.opened()

    def store(self, connection: str | None = None) -> Store:
        """Give the store in memory."""
        del connection
        return self._store


@contextlib.contextmanager
def _stores_in(store: Store) -> Iterator[None]:
    original = manager.default()
    manager.use(_Manager(original, store))
    try:
        yield
    finally:
        manager.use(original)
