"""drain: a worker in the test's own process and thread, until its queues are empty."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from qframe import manager
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.manager import QueueManager
from qframe.work import Worker
from qframe.worker import WorkerOptions
from qframe.worker.attempt import Attempt
from qframe.worker.loop import Loop
from qframe.worker.outcome import JobOutcome
from qframe.worker.signals import Signals

_MOST = 10_000


@dataclass(slots=True)
class Drained:
    """How many attempts had which outcome, and what was raised: what `drain` returns.

    `released` counts jobs that released themselves, `retried` those that raised and are tried
    again. Delayed jobs were left in their queues.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    retried: int = 0
    skipped: int = 0
    other: int = 0
    """Given back, cancelled, or lost to another worker."""
    errors: list[BaseException] = field(default_factory=list, compare=False)
    """What jobs raised or failed with, in order."""

    def count(self, outcome: JobOutcome) -> None:
        """Counts the end of an attempt."""
        name = outcome.value if hasattr(self, outcome.value) else "other"
        setattr(self, name, getattr(self, name) + 1)


def drain(
    connection: str | None = None,
    queues: str | Sequence[str] | None = None,
    *,
    raises: bool = False,
    at_most: int = _MOST,
    options: WorkerOptions | None = None,
) -> Drained:
    """Works the queues of a connection until none has a job that is ready.

    A worker does it as usual, but in this thread, without signals and so without timeouts. `queues`
    are all there are, or a name, names or patterns. Delayed jobs, and so those waiting for their
    backoff, and paused queues are left alone.

    With `raises`, the first exception of a job ends it and is raised here, after the job was
    settled. `options` are the worker's; by default a job is tried once unless it says otherwise.

    Raises `ConfigurationError` for a connection that holds no jobs, `BackendUnavailable` at once if
    the backend does not answer, and `AssertionError` after `at_most` attempts, for jobs that would
    never end.
    """
    queues_of = manager.default()
    queue = queues_of.connection(connection)
    if queues is None:
        lists = Capability.LIST in queue.capabilities
        queues = (queue.default_queue, "*") if lists else (queue.default_queue,)
    names = tuple(each.strip() for each in queues.split(",")) if isinstance(queues, str) else queues
    worker = _DrainWorker(
        queues_of,
        dataclasses.replace(
            options or WorkerOptions(),
            connection=queue.name,
            queues=tuple(names),
            stop_when_empty=True,
            once=False,
            max_jobs=at_most,
            max_time=0,
            memory=0,
            concurrency=1,
            isolate=False,
            preload=False,
            schedule=False,
        ),
        raises=raises,
    )
    worker.run()
    drained = worker.drained
    for error in drained.errors:
        if raises or isinstance(error, KeyboardInterrupt):
            raise error
    if at_most and worker.jobs >= at_most and not worker.is_empty():
        raise AssertionError(
            f"after {at_most:,} attempts there are still jobs ready on {queue.name}: does one "
            "release or dispatch itself without end? (at_most)"
        )
    return drained


class _DrainLoop(Loop):
    """A loop that never waits, not even for a listener's consent."""

    drain: _DrainWorker

    def _run(self, job: ReservedJob) -> Attempt:
        self.runner.unknown_delays = ()  # nobody deploys the class meanwhile
        attempt = super()._run(job)
        self.drain.ran(attempt)
        return attempt

    def _run_together(self, jobs: Sequence[ReservedJob]) -> Sequence[Attempt]:
        attempts = super()._run_together(jobs)
        for attempt in attempts:
            self.drain.ran(attempt)
        return attempts

    def _may_work(self) -> bool:
        return True

    def _backend_lost(self, error: BackendUnavailable) -> None:
        raise error


class _DrainWorker(Worker):
    """A worker without signals."""

    heeds_signals = False
    enters_lifespan = False  # a test enters what it needs
    is_guest = True  # on any thread
    loop = _DrainLoop

    def __init__(self, queues: QueueManager, options: WorkerOptions, *, raises: bool) -> None:
        super().__init__(queues, options)
        self.drained = Drained()
        self._raises = raises

    def ran(self, attempt: Attempt) -> None:
        """Counts an attempt, and stops if its exception is to be raised."""
        self.drained.count(attempt.outcome)
        if attempt.error is not None and attempt.outcome in {JobOutcome.RETRIED, JobOutcome.FAILED}:
            self.drained.errors.append(attempt.error)
            if self._raises or isinstance(attempt.error, KeyboardInterrupt):
                self.stop()

    def is_empty(self) -> bool:
        """Whether nothing is ready, checked by holding a job for a moment."""
        held = self.connection.reserve(self._selected().find())
        for job in held:
            job.settle(End(State.WAITING))
        return not held

    def _made(self, signals: Signals) -> Loop:
        loop = super()._made(signals)
        assert isinstance(loop, _DrainLoop)  # noqa: S101 (said above)
        loop.drain = self
        return loop
