"""What a backend says of itself, and that it can be closed and used again."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import apply, needs, needs_skew, push, reserve, started


def test_it_gives_a_sign_of_life(backend: Backend) -> None:
    assert backend.check().version
    assert backend.described()


def test_closed_it_opens_again_when_it_is_used(backend: Backend) -> None:
    push(backend, b"1")
    backend.close()
    backend.close()
    assert reserve(backend).raw_body == b"1"


def test_what_was_reserved_before_it_was_closed_can_be_settled(backend: Backend) -> None:
    needs(backend, Capability.AHEAD)
    push(backend, b"1")
    job = started(backend)
    backend.close()
    apply(backend, job, *job.delete().operations)


def test_its_clock_is_that_of_the_timing(bench: Bench, backend: Backend) -> None:
    needs_skew(bench)
    before = backend.clock()
    bench.timing.skew += 1000
    assert backend.clock() == pytest.approx(before + 1000, abs=5)
    bench.timing.skew -= 1000
