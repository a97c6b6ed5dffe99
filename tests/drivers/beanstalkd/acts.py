"""Short words for what nearly every test does."""

from __future__ import annotations

from qframe.contracts.backend import Backend
from qframe.contracts.step import (
    APPLIED,
    Delete,
    OfReservation,
    Outcome,
    Push,
    Release,
    Start,
    Step,
)
from qframe.drivers.beanstalkd.job import BeanstalkdJob

LEASE = 60.0


def push(backend: Backend, *bodies: bytes, queue: str = "default", delay: float = 0) -> None:
    """Push messages, in one step."""
    pushes = [Push(queue, raw, delay) for raw in bodies]
    assert backend.apply(Step(None, *pushes)) == [APPLIED]


def take(backend: Backend, *queues: str) -> BeanstalkdJob:
    """Reserve the one message there must be."""
    (job,), _ = backend.reserve(queues or ("default",))
    assert isinstance(job, BeanstalkdJob)
    return job


def begin(backend: Backend, *queues: str, notes: bytes = b"") -> BeanstalkdJob:
    """Reserve the one message there must be, and start it."""
    job = take(backend, *queues)
    assert do(backend, job, Start(LEASE, notes)) is Outcome.APPLIED
    return job


def do(backend: Backend, job: BeanstalkdJob, operation: OfReservation) -> Outcome:
    """Apply one operation on a reservation."""
    (result,) = backend.apply(Step(job, operation))
    return result.outcome


def give_back(backend: Backend, job: BeanstalkdJob) -> None:
    """Release it uncounted."""
    assert do(backend, job, Release(counted=False)) is Outcome.APPLIED


def delete(backend: Backend, job: BeanstalkdJob) -> None:
    """Delete it."""
    assert do(backend, job, Delete()) is Outcome.APPLIED
