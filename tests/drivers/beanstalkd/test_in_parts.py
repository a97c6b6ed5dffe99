"""Steps of messages in beanstalkd and facts elsewhere, broken off between any two parts."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    Delete,
    Expect,
    Operation,
    Outcome,
    Push,
    Record,
    Set,
    Start,
    Step,
)
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from tests.drivers.beanstalkd.acts import LEASE, push
from tests.drivers.beanstalkd.conftest import Connect
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.breaking import Breaking

FAILED = FailedJob(
    uuid="a", connection="c", queue="q", payload=b"x", exception="E", name="n", attempts=1,
    history=History(), failed_at=0.0,
)  # fmt: skip


def step_of_a_chain() -> tuple[Operation, ...]:
    """Fail a job, and push what follows, once."""
    return Expect("at", None), Set("at", "1"), Push("next", b"link"), Record(FAILED), Delete()


def end(backend: Backend) -> None:
    """Work as a worker does: what was pushed before is only removed."""
    (job,), _ = backend.reserve(["default"])
    assert backend.apply(Step(job, Start(LEASE)))[0].applied
    (result,) = backend.apply(Step(job, *step_of_a_chain()))
    if result.outcome is Outcome.REFUSED:
        assert result.key == "at"
        (result,) = backend.apply(Step(job, Record(FAILED), Delete()))
    assert result.applied


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_dies_at_any_call(
    server: BeanstalkdServer, connect: Connect, *, after: bool
) -> None:
    for place in range(20):
        facts, failed, worker = MemoryBackend(), MemoryBackend(), connect(server)
        push(worker, b"x")
        with Breaking((worker, facts, failed), place, after=after) as breaking:
            end(OrderedBackend(worker, facts, failed))
        worker.close()
        others = OrderedBackend(connect(server), facts, failed)
        if others.sizes("default").total:
            end(others)
        assert set(server.bodies("next")) == {b"link"}
        assert facts.read("at") == ["1"]
        assert facts.scan("outbox:") == []
        assert failed.count_failed() == 1
        assert others.sizes("default") == Sizes()
        if not breaking.broke:
            assert place > 5
            return
        others.purge("next")
    pytest.fail("it never ended")


def test_a_server_that_forgets_the_start_of_what_was_broken_off(
    own_beanstalkd: BeanstalkdServer, connect: Connect
) -> None:
    facts, failed, worker = MemoryBackend(), MemoryBackend(), connect(own_beanstalkd)
    push(worker, b"x")
    with Breaking((worker, facts, failed), 3, after=False) as breaking:  # the push
        end(OrderedBackend(worker, facts, failed))
    assert breaking.broke
    assert (len(facts.scan("outbox:")), own_beanstalkd.bodies("next")) == (1, [])
    own_beanstalkd.restart(kill=True)
    others = OrderedBackend(connect(own_beanstalkd), facts, failed)
    (job,), _ = others.reserve(["default"])
    assert job.attempts == 0
    assert others.apply(Step(job, Start(LEASE))) == [APPLIED]
    assert own_beanstalkd.bodies("next") == [b"link"]
    assert facts.scan("outbox:") == []
