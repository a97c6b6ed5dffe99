"""A RabbitMQ that all tests of a process share, and backends on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qframe.contracts.backend import Backend
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from tests.support.rabbitmq_server import RabbitmqServer

Connect = Callable[..., RabbitmqBackend]
_numbers = itertools.count()


@pytest.fixture
def server(rabbitmq_running: RabbitmqServer) -> RabbitmqServer:
    """Give the shared server."""
    if not rabbitmq_running.alive():
        rabbitmq_running.start()
    return rabbitmq_running


@pytest.fixture
def prefix() -> str:
    """Give what begins the names of the test's queues."""
    return f"d{next(_numbers)}."


@pytest.fixture
def connect(server: RabbitmqServer, prefix: str) -> Iterator[Connect]:
    """Connect to the server as one more client, with these settings; all closed at the end."""
    made: list[RabbitmqBackend] = []
    memory = MemoryBackend()

    def connected(facts: Backend = memory, **settings: Any) -> RabbitmqBackend:
        values = RabbitmqSettings(**{"prefix": prefix, **server.settings, **settings})
        made.append(RabbitmqBackend("r", values, lambda: facts))
        return made[-1]

    yield connected
    for each in made:
        each.close()


@pytest.fixture
def backend(connect: Connect) -> RabbitmqBackend:
    """Give a backend on the shared server."""
    return connect()
