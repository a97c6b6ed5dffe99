"""What a driver does not declare it refuses by type: `Unsupported`, and nothing has changed.

Every capability has its question here; a driver is asked those it does not declare.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from qframe.contracts import Capability, History
from qframe.exceptions import Unsupported
from tests.conformance.drivers import DRIVERS, Bench
from tests.conformance.jobs import Plain
from tests.conformance.steps import begin, body, drain, push, take
from tests.plugins.memory_driver.qframe_memory import MemoryJob, spaces


def _reserve(bench: Bench) -> None:
    with pytest.raises(Unsupported, match=r"'here' .* cannot reserve"):
        bench.queue.reserve(["default"])
    somebody_s = MemoryBenchJob.made()
    with pytest.raises(Unsupported):
        bench.queue.start(somebody_s)
    assert not somebody_s.is_settled


class MemoryBenchJob:
    """A job of another connection: there is none of one that cannot reserve."""

    @staticmethod
    def made() -> MemoryJob:
        from qframe.contracts import Job
        from tests.plugins.memory_driver.qframe_memory import MemoryQueue, MemorySettings

        queue = MemoryQueue("other", MemorySettings(space="other"))
        queue.push_raw(body("a"))
        jobs: list[Job] = queue.reserve(["default"])
        del spaces["other"]
        assert isinstance(jobs[0], MemoryJob)
        return jobs[0]


def _delay(bench: Bench) -> None:
    if Capability.RESERVE not in bench.queue.capabilities:
        # It runs at once (sync, with a warning) or is dropped (null): DESIGN section 4.
        assert bench.queue.later(5, Plain())
        return
    with pytest.raises(Unsupported):
        bench.queue.later(5, Plain())
    with pytest.raises(Unsupported):
        bench.queue.push_raw(body("a"), delay=5)
    assert drain(bench.queue) == []
    push(bench, "a")
    job = begin(bench)
    if not isinstance(job, MemoryJob):
        with pytest.raises(Unsupported):
            job.release(5)


def _ahead(bench: Bench) -> None:
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a", "b", "c")
        assert len(bench.queue.reserve(["default"], 5)) == 1


def _renew(bench: Bench) -> None:
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
        job = begin(bench)
        with pytest.raises(Unsupported):
            job.renew()
        assert not job.is_settled
        job.delete()


def _uncounted(bench: Bench) -> None:
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
        job = begin(bench)
        with pytest.raises(Unsupported):
            job.give_back()
        assert not job.is_settled
        job.delete()
        push(bench, "b")
        take(bench).give_back()
        assert drain(bench.queue) == ["b"]


def _bury(bench: Bench) -> None:
    with pytest.raises(Unsupported):
        bench.queue.kick()
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
        job = begin(bench)
        with pytest.raises(Unsupported):
            job.bury()
        assert not job.is_settled
        job.delete()


def _wait(bench: Bench) -> None:
    """It only sleeps, but still wakes up for its descriptor."""
    began = time.monotonic()
    bench.queue.wait(["default"], 0.2)
    assert 0.15 <= time.monotonic() - began < 10
    readable, writable = os.pipe()
    os.write(writable, b"!")
    bench.queue.wait(["default"], 60, readable)
    assert time.monotonic() - began < 30
    os.close(readable)
    os.close(writable)


def _list(bench: Bench) -> None:
    with pytest.raises(Unsupported):
        bench.queue.queues()


def _size(bench: Bench) -> None:
    for call in (bench.queue.size, bench.queue.sizes):
        with pytest.raises(Unsupported):
            call()


def _clear(bench: Bench) -> None:
    with pytest.raises(Unsupported):
        bench.queue.clear()


def _history(bench: Bench) -> None:
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
        begin(bench).retry(0, "error", "ValueError: no")
        assert begin(bench).history == History()


def _fence(bench: Bench) -> None:
    assert Capability.RESERVE not in bench.queue.capabilities, "nobody can do without the fence"


def _atomic_fail(bench: Bench) -> None:
    """Recorded first, so that what dies between the two steps loses nothing."""
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
        job = begin(bench)
        store = bench.queue.failed_store
        assert store is not None
        seen = []
        delete = job._delete  # type: ignore[attr-defined] # the driver's own step

        def deleting() -> bool:
            assert store is not None
            seen.append(store.find("a") is not None)
            return bool(delete())

        job._delete = deleting  # type: ignore[attr-defined]
        job.fail(ValueError("no"))
        assert seen == [True]


def _durable(bench: Bench) -> None:
    assert bench.queue.warnings() or Capability.RESERVE not in bench.queue.capabilities


def _cancel(bench: Bench) -> None:
    if Capability.RESERVE in bench.queue.capabilities:
        push(bench, "a")
    with pytest.raises(Unsupported, match="cannot cancel"):
        bench.queue.cancel("a")


def _take_up(bench: Bench) -> None:
    with pytest.raises(Unsupported, match="cannot take up"):
        bench.queue.take_up(b"1 1")


QUESTIONS: dict[Capability, Callable[[Bench], None]] = {
    Capability.RESERVE: _reserve,
    Capability.DELAY: _delay,
    Capability.AHEAD: _ahead,
    Capability.RENEW: _renew,
    Capability.FENCE: _fence,
    Capability.UNCOUNTED: _uncounted,
    Capability.BURY: _bury,
    Capability.WAIT: _wait,
    Capability.LIST: _list,
    Capability.SIZE: _size,
    Capability.CLEAR: _clear,
    Capability.CANCEL: _cancel,
    Capability.HISTORY: _history,
    Capability.ATOMIC_FAIL: _atomic_fail,
    Capability.TAKE_UP: _take_up,
    Capability.DURABLE: _durable,
}

MISSING = [
    pytest.param(kind, capability, id=f"{name}-{capability.name}")
    for name, kind in DRIVERS.items()
    for capability in Capability
    if capability not in kind.kind.capabilities
]


def test_every_capability_has_its_question() -> None:
    assert set(QUESTIONS) == set(Capability)


@pytest.mark.parametrize(("bench", "capability"), MISSING, indirect=["bench"])
def test_what_is_not_declared_is_refused_by_type(bench: Bench, capability: Capability) -> None:
    QUESTIONS[capability](bench)


@pytest.mark.parametrize("kind", DRIVERS.values(), ids=DRIVERS)
def test_a_driver_that_keeps_jobs_can_be_left_nothing_out_of_what_keeps_them_safe(
    kind: type[Bench],
) -> None:
    """Without `FENCE`, a late worker could undo another one's work."""
    capabilities = kind.kind.capabilities
    assert (Capability.RESERVE in capabilities) == (Capability.FENCE in capabilities)
