"""What the tests of moves do: their jobs, a move, and where it dies."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from qframe import Queueable, QueueManager
from qframe.connection import Connection
from qframe.contracts.backend import Backend
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Operation, Reservation, Start, Step
from qframe.features.reserved import ReservedJob
from qframe.moving import QueueMover

RAN: list[str] = []
"""What the jobs below have done, on whichever connection."""


class MovedJob(Queueable):
    name: str

    tries = 3
    job_name = "moved"

    def handle(self) -> None:
        RAN.append(self.name)


class MovedUnique(MovedJob):
    unique = True
    job_name = "moved.unique"


class MovedInGroup(MovedJob):
    group = "shop"
    job_name = "moved.group"


class MovedInSteps(MovedJob):
    job_name = "moved.steps"

    def handle(self) -> None:
        self.step("begin", RAN.append, f"{self.name} begun")
        RAN.append(f"{self.name} {self.wait_for_event('paid', timeout=3600)}")


Site = Callable[..., QueueManager]
"""Configures two connections, old and new."""


def move(queues: QueueManager, *only: str, **options: Any) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for row, count in QueueMover(queues, "old", "new").move(only, **options).items():
        counts[row.what, row.outcome] += count
    return dict(counts)


def is_empty(place: Connection) -> bool:
    left = [each for prefix in ("moving:", "parked:") for each in place.store.keys(prefix)]
    return place.sizes() == Sizes() and left == []


def do(place: Connection, job: Reservation | None, *operations: Operation) -> None:
    (result,) = place.backend.apply(Step(job, *operations))
    assert result.applied


def attempted(place: Connection, end: Operation) -> None:
    """Start the next job, and end the attempt."""
    (job,) = place.backend.reserve([place.default_queue])[0]
    do(place, job, Start(60, b'{"attempts":[]}'))
    do(place, job, end)


PAIRS = ["memory to memory", "sqlite to redis", "redis to postgres"]
WITH_MARIADB = [*PAIRS, "redis to mariadb"]


def begun(place: Connection) -> ReservedJob:
    """Start the next job."""
    (job,) = place.reserve([place.default_queue])
    (result,) = place.backend.apply(job.start_plan())
    assert result.applied
    return job


class Died(BaseException):
    """As if the process had been killed."""


CALLS = ("apply", "reserve", "take", "browse", "copy", "read", "scan")


def dying(backends: Sequence[Backend], at: int, patch: pytest.MonkeyPatch) -> None:
    """Let one of the calls of the backends be the last."""
    numbers = itertools.count()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if next(numbers) >= at:
                raise Died
            return real(*given, **more)

        return call

    for backend, name in itertools.product(backends, CALLS):
        patch.setattr(backend, name, counted(getattr(backend, name)))


def move_dies(queues: QueueManager, at: int) -> bool:
    """Move, and die at this call of the backends. Returns False if there were fewer."""
    with pytest.MonkeyPatch.context() as patch, suppress(Died):
        dying([queues.connection(name).backend for name in ("old", "new")], at, patch)
        move(queues)
        return False
    return True
