"""Queue: a user's view of a connection (Laravel's `Contracts/Queue/Queue`), and its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from qframe.contracts.identity import JobId

if TYPE_CHECKING:
    from datetime import datetime, timedelta

STATES = ("ready", "delayed", "reserved", "buried")
LARGEST_BOUND = 1000
"""The largest concurrency limit of a queue or class."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of jobs of one queue in each state."""

    ready: int = 0
    delayed: int = 0
    reserved: int = 0
    buried: int = 0
    approximate: bool = False
    """Whether the numbers are estimates."""
    unknown: frozenset[str] = frozenset()
    """The states that the backend cannot count; their numbers are 0."""

    @property
    def total(self) -> int:
        """The number of jobs except the buried ones."""
        return self.ready + self.delayed + self.reserved

    @property
    def counted(self) -> dict[str, int | None]:
        """The number of each state; None where it is unknown."""
        return {state: None if state in self.unknown else getattr(self, state) for state in STATES}


class Cancelling(Enum):
    """The result of a request to cancel a job."""

    ABSENT = auto()
    """No job has this uuid."""
    REMOVED = auto()
    HELD = auto()
    """A worker holds the job, and will start it or release it within a second."""
    RUNNING = auto()
    NOTED = auto()
    """The job may wait where none can be searched for; a worker that gets it will not start it."""


class Queue(Protocol):
    """A configured, named connection to a backend, with any number of queues.

    - On a durable backend, a job whose push returned is never lost, even if any process of qframe
      is killed at any instant.
    - A queue delivers jobs in the order in which they became ready, those with a priority as much
      earlier or later as that is worth. A backend may have its own order (beanstalkd: by priority,
      then in the order of the pushes).
    - Every failure to reach the backend raises `BackendUnavailable`.
    - Thread-safe, and usable in a forked child.
    """

    name: str

    def push(self, job: Any, queue: str | None = None) -> JobId[Any]:  # noqa: ANN401 (a job is above this)
        """Queue a job now. Returns its id. Raises `InvalidJob` or `BackendUnavailable`."""

    def later(
        self,
        delay: float | timedelta | datetime,
        job: Any,  # noqa: ANN401 (jobs are in a higher layer)
        queue: str | None = None,
    ) -> JobId[Any]:
        """Queue a job that becomes ready after `delay`. Returns its id.

        `delay` is seconds, a timedelta, or an aware datetime; a past datetime means now.
        """

    def bulk(self, jobs: Iterable[Any], queue: str | None = None) -> list[JobId[Any]]:
        """Queue many jobs, all or none where the backend can. Returns their ids in order."""

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Queue a payload unchanged and unchecked. Returns the job's id, "" if it has none.

        `delay` is in seconds.
        """

    def reserve(self, queues: Sequence[str], limit: int = 1) -> Sequence[Any]:
        """Hold up to `limit` jobs for about a second each. Never waits for one."""

    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue by state. None is the connection's default queue."""

    def queues(self) -> list[str]:
        """List the queues that hold jobs, sorted."""

    def size(self, queue: str | None = None) -> int:
        """Count the ready, delayed and reserved jobs of a queue."""

    def clear(self, queue: str | None = None) -> int:
        """Delete the ready and delayed jobs of a queue. Returns how many there were."""
