"""Dispatches that are broken off: what a real server has of them, and what is believed of it."""

from __future__ import annotations

import time

import pytest

from qframe.drivers import claims
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from tests.drivers.beanstalkd.conftest import Connect
from tests.features.test_pushes import (
    DEBOUNCED,
    KINDS,
    ONE_AT_A_TIME,
    TRACKED,
    UNIQUE,
    World,
    broken,
)
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.breaking import Fault

IN_BRIEF = ["unique", "unique until it starts", "chain", "bulk", "tracked", "batch of unique jobs"]
IN_BRIEF += ["once"]


def world_on(server: BeanstalkdServer, connect: Connect) -> World:
    return World(OrderedBackend(connect(server), MemoryBackend(), MemoryBackend()))


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
@pytest.mark.parametrize("kind", IN_BRIEF)
def test_a_dispatch_that_is_broken_off_at_any_call(
    server: BeanstalkdServer, connect: Connect, kind: str, fault: Fault
) -> None:
    push = KINDS[kind]
    for world, accepted in broken(push, fault, make=lambda: world_on(server, connect)):
        if fault.is_deadly or fault is Fault.DOWN:
            world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        holder = push(world, "b")
        ran = world.work()
        assert "a" in ran or not accepted
        if kind in ONE_AT_A_TIME:
            assert ("a" in ran, "b" in ran) == (bool(holder), not holder)
        assert {"a", "b"} & {*ran}
        assert world.facts("unique:") == {}
        assert world.waiting() == []


@pytest.mark.parametrize("delay", [0, 1])
def test_an_accepted_job_is_not_left_out_for_one_that_could_not_be_pushed(
    own_beanstalkd: BeanstalkdServer, connect: Connect, delay: float
) -> None:
    world = world_on(own_beanstalkd, connect)
    assert world.push("a", delay=1, **DEBOUNCED) == ""
    own_beanstalkd.kill()
    with pytest.raises(BackendUnavailable):
        world.push("b", delay=delay, **DEBOUNCED)
    own_beanstalkd.start()
    until = time.monotonic() + 30
    while not (ran := world.work()) and time.monotonic() < until:
        time.sleep(0.05)
    assert ran == ["a"]


def test_a_push_that_raised_leaves_no_lock_also_while_the_server_is_down(
    own_beanstalkd: BeanstalkdServer, connect: Connect
) -> None:
    world = world_on(own_beanstalkd, connect)
    own_beanstalkd.kill()
    for name in "abc":
        with pytest.raises(BackendUnavailable):
            world.push(name, **UNIQUE, **TRACKED)
        assert world.facts("") == {f"void:{each}": "" for each in "abc"[: "abc".index(name) + 1]}
    own_beanstalkd.start()
    assert world.push("d", **UNIQUE) == ""
    assert world.push("e", **UNIQUE) == "d"
    assert world.work() == ["d"]


def test_a_chain_whose_server_is_away_leaves_nothing(
    own_beanstalkd: BeanstalkdServer, connect: Connect
) -> None:
    world = world_on(own_beanstalkd, connect)
    own_beanstalkd.kill()
    with pytest.raises(BackendUnavailable) as caught:
        KINDS["chain of plain jobs"](world, "a")
    assert not caught.value.in_doubt
    assert world.facts("") == {}
    own_beanstalkd.start()
