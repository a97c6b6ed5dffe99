"""drain: a worker in the test's own process and thread, until its queues are empty."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from qframe import manager
from qframe.contracts import Capability, Job
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager
from qframe.queueable import Queueable
from qframe.worker import Worker, WorkerOptions
from qframe.worker.runner import Attempt, Outcome, Runner

_MOST = 10_000


@dataclass(slots=True)
class Drained:
    """How many attempts ended in which way, and what was raised: what `drain` gives.

    `released` counts jobs that released themselves, `retried` those that raised and are tried
    again. What waits for its delay was left where it is.
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

    def count(self, outcome: Outcome) -> None:
        """Count the end of an attempt."""
        known = {each.name for each in dataclasses.fields(self)} - {"errors"}
        name = outcome.value if outcome.value in known else "other"
        setattr(self, name, getattr(self, name) + 1)


def drain(
    connection: str | None = None,
    queues: str | Sequence[str] | None = None,
    *,
    raises: bool = False,
    at_most: int = _MOST,
    options: WorkerOptions | None = None,
) -> Drained:
    """Work the queues of a connection until none has a job that is ready.

    A worker does it as ever, but in this thread, without signals and so without timeouts. `queues`
    are all there are, or a name, names or patterns. What is delayed, a job waiting for its backoff
    among them, is left, and so are paused queues.

    With `raises`, the first thing a job raises ends it and is raised here, after the job was
    settled. `options` are the worker's; by default a job is tried once unless it says otherwise.

    Raises `ConfigurationError` for a connection that holds no jobs, `BackendUnavailable` at once
    where the backend does not answer, and `AssertionError` after `at_most` attempts, for jobs that
    would never end.
    """
    queues_of = manager.default()
    queue = queues_of.connection(connection)
    if queues is None:
        lists = Capability.LIST in queue.capabilities
        queues = (queue.default_queue, "*") if lists else (queue.default_queue,)
    names = tuple(each.strip() for each in queues.split(",")) if isinstance(queues, str) else queues
    worker = _Worker(
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
            isolate=False,
            preload=False,
        ),
    )
    worker.raises = raises
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


class _Worker(Worker):
    """A worker that hears no signals and waits for nothing, nor for a listener's consent."""

    heeds_signals = False

    def __init__(self, queues: QueueManager, options: WorkerOptions) -> None:
        super().__init__(queues, options)
        self.drained = Drained()
        self.raises = False

    def is_empty(self) -> bool:
        """Whether nothing is ready, found out by holding a job for a moment."""
        held = self.queue.reserve(self.control.active, 1)
        for job in held:
            job.give_back()
        return not held

    def _runner(self) -> type[Runner]:
        return _Runner

    def _run(self, job: Job) -> None:
        super()._run(job)
        assert isinstance(self.runner, _Runner)  # noqa: S101 (said by the method above)
        error = self.runner.raised
        self.drained.count(self.runner.outcome)
        if error is not None:
            self.drained.errors.append(error)
            if self.raises or isinstance(error, KeyboardInterrupt):
                self.stop()

    def _may_work(self) -> bool:
        return True

    def _backend_lost(self, error: BackendUnavailable) -> None:
        raise error


class _Runner(Runner):
    """A runner that keeps how the last job ended, and fails an unknown one at once."""

    outcome = Outcome.LOST
    raised: BaseException | None = None

    def run(self, job: Job) -> Outcome:
        """Bring a held job to its outcome."""
        self.attempt = _Attempt
        self.delays_of_unknown = []
        self.raised = None
        self.outcome = super().run(job)
        return self.outcome

    def after_failure(
        self, job: Job, instance: Queueable | None, error: BaseException, seconds: float
    ) -> Outcome:
        """Keep what it failed with."""
        self.raised = error
        return super().after_failure(job, instance, error, seconds)


class _Attempt(Attempt):
    """An attempt that keeps what was raised."""

    def _outcome(self, error: BaseException | None, seconds: float) -> Outcome:
        outcome = super()._outcome(error, seconds)
        if outcome in {Outcome.RETRIED, Outcome.FAILED} and isinstance(self.runner, _Runner):
            self.runner.raised = self.runner.raised or error
        return outcome
