"""A beanstalkd that was restarted: the next call opens another connection."""

from __future__ import annotations

from qframe.contracts.step import APPLIED, Push, Step
from tests.drivers.beanstalkd.acts import take
from tests.drivers.beanstalkd.conftest import Connect
from tests.support.beanstalkd_server import BeanstalkdServer

PUSH = Step(None, Push("q", b"1"))


def test_no_call_after_a_restart_raises_and_none_counts_twice(
    own_server: BeanstalkdServer, connect: Connect
) -> None:
    backend = connect(own_server)
    backend.apply(PUSH)
    for kill in (False, True):
        own_server.restart(kill=kill)
        assert backend.apply(PUSH) == [APPLIED]
        own_server.restart(kill=kill)
        assert backend.apply(PUSH, PUSH) == [APPLIED, APPLIED]
        own_server.restart(kill=kill)
        assert backend.sizes("q").ready > 0
        own_server.restart(kill=kill)
        assert backend.queues() == ["q"]
        own_server.restart(kill=kill)
        backend.wait(["q"], 0.05)
    assert backend.sizes("q").ready == 7
    own_server.restart()
    assert take(backend, "q") is not None
