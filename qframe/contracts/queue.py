"""What users call of a connection (Laravel's `Contracts/Queue/Queue`), and what it tells them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime, timedelta

LARGEST_BOUND = 1000
"""The largest bound of how many jobs of a queue or class run at once."""


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


class Queue(Protocol):
    """A configured, named connection to a backend that holds any number of queues.

    - A push that returned is never lost, whatever process of ours is killed at whatever instant,
      where the backend is durable.
    - Within a queue, jobs come in the order in which they became ready, unless the backend has an
      order of its own (beanstalkd: by priority, then in the order they were pushed).
    - Whatever goes wrong on the way to the backend raises `BackendUnavailable`.
    - Safe to use from several threads, and in a forked child.
    """

    name: str

    def push(self, job: Any, queue: str | None = None) -> str:  # noqa: ANN401 (a job is above this)
        """Queue a job now and give its id. Raises `InvalidJob` or `BackendUnavailable`."""

    def later(
        self,
        delay: float | timedelta | datetime,
        job: Any,  # noqa: ANN401 (a job is above this)
        queue: str | None = None,
    ) -> str:
        """Queue a job that is ready after `delay` (seconds, timedelta or aware datetime)."""

    def bulk(self, jobs: Iterable[Any], queue: str | None = None) -> list[str]:
        """Queue many jobs, all or none where the backend can, and give their ids in order."""

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Queue bytes as they are, whatever they hold, and give the job's id, "" if it has none."""

    def reserve(self, queues: Sequence[str], limit: int = 1) -> Sequence[Any]:
        """Hold up to `limit` jobs for about a second each, never waiting for one."""

    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue by state."""

    def queues(self) -> list[str]:
        """Name the queues that hold jobs, sorted."""

    def size(self, queue: str | None = None) -> int:
        """Count the ready, delayed and reserved jobs of a queue."""

    def clear(self, queue: str | None = None) -> int:
        """Delete the ready and delayed jobs of a queue; gives how many there were."""
