"""What the driver does is also what moto takes for SQS."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from qframe.contracts.step import Outcome, Release, Renew
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.sqs.backend import SqsBackend
from qframe.drivers.sqs.settings import SqsSettings
from qframe.exceptions import BackendUnusable
from tests.drivers.broker.acts import LEASE, again, begin, do, push, taken


@pytest.fixture
def backend(moto_running: str) -> Iterator[SqsBackend]:
    facts = MemoryBackend()
    prefix = f"t{uuid.uuid4().hex[:8]}-"
    settings = SqsSettings(endpoint=moto_running, prefix=prefix, create=True, block_for=1)
    backend = SqsBackend("m", settings, lambda: facts)
    yield backend
    backend.close()


@pytest.mark.parametrize("queue", ["mail", "mail.fifo"])
def test_a_round(backend: SqsBackend, queue: str) -> None:
    push(backend, *(b'{"n": %d, "group": "g%d"}' % (n, n) for n in range(12)), queue=queue)
    assert backend.sizes(queue).ready == 12
    jobs = [begin(backend, queue) for _ in range(12)]
    assert len({job.raw_body for job in jobs}) == 12
    assert taken(backend, queue) is None
    assert backend.sizes(queue).reserved == 12
    results = backend.apply(*(job.delete() for job in jobs))
    assert all(result.applied for result in results)
    assert backend.sizes(queue).total == 0


def test_leases_releases_and_delays(backend: SqsBackend) -> None:
    push(backend, b"\xff", b"later", delay=1)
    assert taken(backend) is None
    first, second = again(backend), again(backend)
    assert {first.raw_body, second.raw_body} == {b"\xff", b"later"}
    assert do(backend, first, Renew(LEASE)) is Outcome.APPLIED
    assert do(backend, first, Release()) is Outcome.APPLIED
    backend.wait(["default"], 30)
    third = begin(backend)
    assert (third.raw_body, third.attempts) == (first.raw_body, 1)
    assert do(backend, third) is do(backend, second) is Outcome.APPLIED


def test_check_and_purge(backend: SqsBackend) -> None:
    assert backend.check().warnings == ()
    push(backend, b"1", b"2")
    running = begin(backend)
    assert backend.purge("default") == 1
    assert taken(backend) is None
    assert do(backend, running, Release()) is Outcome.APPLIED
    assert begin(backend).attempts == 2
    backend.settings.create = False
    with pytest.raises(BackendUnusable, match="has no queue"):
        push(backend, b"1", queue="none")
