"""Short words for what nearly every test does."""

from __future__ import annotations

from qframe.contracts.backend import Backend
from qframe.contracts.step import APPLIED, Delete, OfReservation, Outcome, Push, Start, Step
from qframe.drivers.broker.message import BrokerJob
from tests.support.process import wait_for

LEASE = 60.0


def push(backend: Backend, *bodies: bytes, queue: str = "default", delay: float = 0) -> None:
    """Push messages, in one step."""
    pushes = [Push(queue, raw, delay) for raw in bodies]
    assert backend.apply(Step(None, *pushes)) == [APPLIED]


def taken(backend: Backend, *queues: str) -> BrokerJob | None:
    """Reserve one message, if there is one."""
    jobs, _ = backend.reserve(queues or ("default",))
    job = jobs[0] if jobs else None
    assert job is None or isinstance(job, BrokerJob)
    return job


def begin(backend: Backend, *queues: str) -> BrokerJob:
    """Reserve the one message there must be, and start it."""
    job = taken(backend, *queues)
    assert job is not None
    assert do(backend, job, Start(LEASE)) is Outcome.APPLIED
    return job


def again(backend: Backend) -> BrokerJob:
    """Reserve a message that is about to be ready again."""
    found: list[BrokerJob] = []

    def comes() -> bool:
        found.extend(filter(None, [taken(backend)]))
        return bool(found)

    wait_for(comes, "the job again")
    return found[0]


def do(backend: Backend, job: BrokerJob, operation: OfReservation | None = None) -> Outcome:
    """Apply one operation, by default its deletion, to a job."""
    (result,) = backend.apply(Step(job, operation or Delete()))
    return result.outcome
