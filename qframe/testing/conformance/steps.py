"""Short ways to say what most tests do."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History, PastAttempt
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Operation, Push, Reservation, Result, Start, Step
from qframe.testing.conformance.bench import Bench

QUEUE = "q"


def needs(backend: Backend, capabilities: Capability) -> None:
    """Skip the test where the backend is not able to do that."""
    missing = [each.name or "" for each in capabilities if each not in backend.capabilities]
    if missing:
        pytest.skip(f"it has no {' and no '.join(missing)}")


def needs_skew(bench: Bench) -> None:
    """Skip the test where hours pass only by waiting."""
    if not bench.skews:
        pytest.skip("its clock cannot be set, and the test takes hours")


def needs_lapse(bench: Bench) -> None:
    """Skip the test where no lease ends by time."""
    if not bench.lapses:
        pytest.skip("its leases end with their connection")


def push(backend: Backend, *raws: bytes, queue: str = QUEUE, delay: float = 0.0) -> None:
    """Push messages, one after another."""
    for raw in raws:
        apply(backend, None, Push(queue, raw, delay))


def apply(backend: Backend, job: Reservation | None, *operations: Operation) -> None:
    """Apply one step, which must be applied."""
    result = tried(backend, job, *operations)
    assert result.applied, result


def tried(backend: Backend, job: Reservation | None, *operations: Operation) -> Result:
    """Give the result of one step."""
    (result,) = backend.apply(Step(job, *operations))
    return result


def counted(backend: Backend, expected: Sizes, queue: str = QUEUE) -> bool:
    """Whether the backend counts so many messages, in the states that it can count exactly."""
    found = backend.sizes(queue)
    if found.approximate:
        return True
    known = {state for state, number in found.counted.items() if number is not None}
    return all(getattr(found, state) == getattr(expected, state) for state in known)


def reserve(backend: Backend, queue: str = QUEUE) -> Reservation:
    """Reserve one message, which must be there."""
    jobs, _ = backend.reserve([queue])
    assert jobs, f"{queue} is empty"
    return jobs[0]


def started(backend: Backend, queue: str = QUEUE, lease: float = 60.0) -> Reservation:
    """Reserve one message and start it."""
    job = reserve(backend, queue)
    apply(backend, job, Start(lease))
    return job


def drained(backend: Backend, *queues: str) -> list[bytes]:
    """Reserve and start everything and give it, in the order in which it came."""
    found: list[bytes] = []
    started: list[Step] = []
    while jobs := backend.reserve(queues or [QUEUE], 50, first=started)[0]:
        found += [job.raw_body for job in jobs]
        # What is only held would come back while a busy machine takes a second for the next look.
        started = [Step(job, Start(60)) for job in jobs]
    return found


def failed(uuid: str, queue: str = QUEUE, at: float = 1.5) -> FailedJob:
    """Give the record of a failed job."""
    history = History((PastAttempt(1, "host", 7, 12.5, "error", "\u00e9"),), 1)
    return FailedJob(uuid, "here", queue, b"\x00\xff", "E: \u00e9", "app.Job", 2, history, at)
