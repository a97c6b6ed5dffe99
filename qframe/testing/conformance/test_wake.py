"""One delayed message is made ready by the handle of its reservation; nothing else is."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Bury, Delete, Release, Reservation
from qframe.testing.conformance.steps import QUEUE, apply, needs, push, reserve, started
from qframe.testing.conformance.test_wait import LONG, PROMPTLY, soon, waited

LATER = 600.0
PAYLOADS = [b'{"uuid":"u","job":"app.A"}', b'{"job":"app.A","id":"i","attempts":0}', b"\xff\0 "]


@pytest.fixture(autouse=True)
def wakes(backend: Backend) -> None:
    needs(backend, Capability.WAKE)


def delayed(backend: Backend, *, counted: bool, queue: str = QUEUE) -> tuple[Reservation, str]:
    """Release a started message with a delay, and give its handle."""
    job = started(backend, queue)
    release = Release(LATER, counted=counted, notes=b'{"n":1}')
    handle = job.handle(release)
    apply(backend, job, release)
    return job, handle


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("raw", PAYLOADS)
def test_a_released_message_is_woken_with_its_attempts_and_notes(
    backend: Backend, other: Backend, raw: bytes, counted: bool
) -> None:
    push(backend, raw)
    _, handle = delayed(backend, counted=counted)
    assert other.wake(QUEUE, handle)
    assert not other.wake(QUEUE, handle), "it is ready by now"
    job = reserve(backend)
    assert (job.raw_body, job.attempts) == (raw, int(counted))
    assert job.notes == b'{"n":1}'


def test_only_the_message_of_the_handle_is_woken(backend: Backend) -> None:
    push(backend, PAYLOADS[0], b"another")
    _, handle = delayed(backend, counted=False)
    _, others = delayed(backend, counted=False)
    assert backend.wake(QUEUE, others)
    assert reserve(backend).raw_body == b"another"
    assert not backend.reserve([QUEUE])[0]
    assert backend.wake(QUEUE, handle)


def test_what_is_not_delayed_is_left_alone(backend: Backend) -> None:
    push(backend, b"runs")
    job = started(backend)
    handle = job.handle(Release(LATER))
    assert not backend.wake(QUEUE, handle)
    apply(backend, job, Bury())
    assert not backend.wake(QUEUE, handle)
    assert backend.sizes(QUEUE).buried == 1
    push(backend, b"ends")
    job = started(backend)
    handle = job.handle(Release(LATER))
    apply(backend, job, Delete())
    assert not backend.wake(QUEUE, handle)


def test_a_handle_of_another_queue_wakes_nothing(backend: Backend) -> None:
    push(backend, b"of q")
    _, handle = delayed(backend, counted=False)
    assert not backend.wake("another", handle)
    assert backend.sizes(QUEUE).delayed == 1


def test_a_worker_that_waits_is_woken(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.WAIT)
    push(backend, b"later")
    _, handle = delayed(backend, counted=False)
    with soon(lambda: other.wake(QUEUE, handle)):
        assert waited(backend, LONG) < PROMPTLY
