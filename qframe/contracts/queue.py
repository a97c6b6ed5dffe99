"""The contract of one connection to a backend (Laravel's `Contracts/Queue/Queue`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from qframe.contracts.batch import BatchStore
    from qframe.contracts.capability import Capability
    from qframe.contracts.failed import FailedJob, FailedStore
    from qframe.contracts.job import Job
    from qframe.contracts.status import StatusStore
    from qframe.contracts.store import Store


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs of one queue are in which state."""

    ready: int = 0
    delayed: int = 0
    reserved: int = 0
    buried: int = 0

    @property
    def total(self) -> int:
        """All but the buried ones."""
        return self.ready + self.delayed + self.reserved


class Cancelling(Enum):
    """What became of the wish to cancel a job."""

    ABSENT = auto()
    """There is none of that uuid."""
    REMOVED = auto()
    HELD = auto()
    """A worker holds it and is about to start it, or to give it back within a second."""
    RUNNING = auto()


class Queue(ABC):
    """A configured, named connection to a backend that holds any number of queues.

    - A push that returned is never lost, whatever process of ours is killed at whatever instant
      (`Capability.DURABLE`).
    - Two pushes of identical bytes are two jobs. The payload is opaque to the backend and comes
      back byte for byte.
    - Every move of a job between states is one atomic step by the backend's clock.
    - Within a queue, jobs come in the order in which they became ready, unless the backend has an
      order of its own (beanstalkd: by priority, then in the order they were pushed).
    - Whatever goes wrong on the way to the backend raises `BackendUnavailable`.
    - Safe to use from several threads, and in a forked child.
    """

    name: str
    """The connection's name in the configuration."""
    default_queue: str
    """The queue used where none is named."""
    capabilities: Capability
    retry_after: float
    """Seconds a started job's lease lasts unless it is renewed."""
    look_every: float = 1.0
    """Seconds between two looks of an idle worker at its store: what restart and pause wait for."""
    ends_lost_jobs: bool = False
    """Whether a job that runs is ended, and its worker with it, when its lease is found lost."""
    confirm_within: float = 0.0
    """Seconds after which a start that was not waited for is confirmed; 0 where all are waited for.
    """
    noting: bool = False
    """Whether the very steps that move the jobs write the statuses of tracked ones.

    And take and free the locks of unique ones.
    """
    notes_starts: bool = False
    """Whether the step that starts a tracked job notes that it runs, too.

    Where it does not, only of a job that lasts is it noted: most are over before anybody looks.
    """

    def middleware(self) -> Sequence[Any]:
        """Give what every job that runs for this connection goes through, outermost first."""
        return ()

    @abstractmethod
    def push(self, job: Any, queue: str | None = None) -> str:  # noqa: ANN401 (a Queueable)
        """Queue a job now and give its id. Raises `InvalidJob` or `BackendUnavailable`."""

    @abstractmethod
    def later(
        self,
        delay: float | timedelta | datetime,
        job: Any,  # noqa: ANN401 (a Queueable)
        queue: str | None = None,
    ) -> str:
        """Queue a job that is ready after `delay` (seconds, timedelta or aware datetime)."""

    @abstractmethod
    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Queue bytes as they are, whatever they hold, and give the job's id."""

    @abstractmethod
    def bulk(self, jobs: Iterable[Any], queue: str | None = None) -> list[str]:
        """Queue many jobs, all or none where the backend can, and give their ids in order."""

    @abstractmethod
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        """Hold up to `limit` jobs for about a second each, never waiting for one.

        First moves what is due or whose lease ran out back to ready, then takes from the queues
        strictly in the order given. `finished` is deleted in the same exchange: its lease was
        lost if `refused` names it then, or later where the answer is not waited for.
        Without `Capability.AHEAD` at most one job is given, whatever `limit` says.
        """

    @abstractmethod
    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        """Count an attempt of a held job and take its full lease; `finished` as in `reserve`.

        False when the job is no longer ours: it must not be run. The answer need not be waited for
        while the lease is certain to be ours.
        """

    @abstractmethod
    def take_up(self, ticket: bytes) -> Job | None:
        """Give the started job of a worker that died, to be settled in its place.

        None when it was settled or its lease has passed to another. Only for a worker that is
        known to be dead: nothing tells the two apart. Raises `Unsupported`.
        """

    def explain(self, ticket: bytes, how: str, error: str) -> bool:
        """Keep for its next start how the attempt of a dead worker ended.

        For a backend without `Capability.TAKE_UP`, which gives the job back by itself. False where
        that came too late, or there is nowhere to keep it.
        """
        del ticket, how, error
        return False

    @abstractmethod
    def refused(self) -> list[Job]:
        """Name, once, the finished jobs whose lease had passed to another worker."""

    @abstractmethod
    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        """Return when `reserve` may find a job.

        Or after `timeout` seconds, or as soon as the file descriptor `wake` can be read,
        whichever is first. May return early. Where waiting is taking, `reserve` gives the job, or
        `let_go` gives it back.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Give back, uncounted, what a `wait` of this thread may have taken."""

    @abstractmethod
    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue by state."""

    @abstractmethod
    def size(self, queue: str | None = None) -> int:
        """Count the ready, delayed and reserved jobs of a queue."""

    @abstractmethod
    def queues(self) -> list[str]:
        """Name the queues that hold jobs, sorted."""

    @abstractmethod
    def clear(self, queue: str | None = None) -> int:
        """Delete the ready and delayed jobs of a queue; those reserved are left to finish.

        Gives how many there were.
        """

    @abstractmethod
    def kick(self, queue: str | None = None) -> int:
        """Make the buried jobs of a queue ready; gives how many there were."""

    @abstractmethod
    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        """Remove a job that waits, is delayed or buried; noted as cancelled where it is `noting`.

        It is looked for in `queue`, or else everywhere. A job that is just being moved may be
        missed: who is sure that there is one asks again.
        """

    @abstractmethod
    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        """Push a failed job's `payload` anew and remove its record.

        One atomic step where both share a backend: of two callers at once one is told true.
        Elsewhere pushed first, so that nothing is lost in between.
        """

    @abstractmethod
    def own_store(self) -> Store | None:
        """Give the store kept in this very backend, or None where it can hold none."""

    @abstractmethod
    def own_failed_store(self) -> FailedStore | None:
        """Give the failed store kept in this very backend, or None where it can hold none."""

    @abstractmethod
    def own_statuses(self) -> StatusStore | None:
        """Give the statuses kept in this very backend, or None where it can hold none."""

    def own_batches(self) -> BatchStore | None:
        """Give the batches kept in this very backend, or None where it can hold none."""
        return None

    @abstractmethod
    def ping(self) -> str:
        """Ask the backend for a sign of life; gives its kind and version in a few words."""

    @abstractmethod
    def warnings(self) -> list[str]:
        """Say what is unsafe about how the backend is set up, a sentence each."""

    @abstractmethod
    def close(self) -> None:
        """Close this thread's connection; the next call opens another."""
