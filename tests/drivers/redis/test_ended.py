"""Connections that Redis ends: the next call opens another, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qframe.contracts.step import APPLIED, Delete, Expect, Push, Set, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from tests.drivers.redis.conftest import Opener
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer

PUSH = Step(None, Push("q", b"1"))
LOCKED = Step(None, Expect("lock", None), Set("lock", "mine"), Push("q", b"1"))


def _by_timeout(server: RedisServer) -> None:
    server.set("timeout", 1)
    wait_for(lambda: _clients(server) == 0, "the end of idle connections", 60)
    server.set("timeout", 0)


def _by_kill(server: RedisServer) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal")


def _by_restart(server: RedisServer) -> None:
    server.restart()


def _clients(server: RedisServer) -> int:
    """Count all but the one that asks."""
    return int(server.info("clients")["connected_clients"]) - 1


@pytest.mark.parametrize(
    "end",
    [_by_kill, _by_restart, pytest.param(_by_timeout, marks=pytest.mark.slow)],
    ids=["kill", "restart", "timeout"],
)
def test_no_call_after_it_raises_and_none_counts_twice(
    own_server: RedisServer, open_backend: Opener, end: Callable[[RedisServer], None]
) -> None:
    backend: RedisBackend = open_backend(own_server.url)
    backend.apply(PUSH)
    calls: list[Callable[[], object]] = [
        lambda: backend.apply(PUSH),
        lambda: backend.apply(LOCKED),
        lambda: backend.apply(PUSH, PUSH),
        lambda: backend.sizes("q"),
        lambda: backend.read("lock"),
        lambda: backend.wait(["q"], 0.05),
    ]
    for call in calls:
        end(own_server)
        call()
    assert backend.sizes("q").ready == 5
    end(own_server)
    (job,), _ = backend.reserve(["q"])
    end(own_server)
    assert backend.apply(Step(job, Start(60))) == [APPLIED]
    end(own_server)
    assert backend.apply(Step(job, Delete())) == [APPLIED]
    assert backend.sizes("q").total == 4
