"""The strict SQS that all tests of a process share, emptied, and backends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qframe.contracts.backend import Timing
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.sqs.backend import SqsBackend
from qframe.drivers.sqs.settings import SqsSettings
from tests.support.sqs_server import SqsServer

Connect = Callable[..., SqsBackend]


@pytest.fixture
def server(sqs_running: SqsServer) -> SqsServer:
    """Give the shared server, emptied, with a clock of the test's own."""
    sqs_running.empty()
    sqs_running.timing = Timing()
    return sqs_running


@pytest.fixture
def connect(server: SqsServer) -> Iterator[Connect]:
    """Connect to the server as one more client, with these settings; all closed at the end."""
    made: list[SqsBackend] = []
    facts = MemoryBackend(timing=server.timing)

    def connected(**settings: Any) -> SqsBackend:
        values = SqsSettings(**{**server.settings, "block_for": 1, **settings})
        made.append(SqsBackend("s", values, lambda: facts, server.timing))
        return made[-1]

    yield connected
    for each in made:
        each.close()


@pytest.fixture
def backend(connect: Connect) -> SqsBackend:
    """Give a backend on the shared server."""
    return connect()
