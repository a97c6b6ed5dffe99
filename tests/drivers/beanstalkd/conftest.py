"""A beanstalkd that all tests of a process share, and backends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.drivers.beanstalkd.backend import BeanstalkdBackend
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.memory.backend import MemoryBackend
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.later import LaterServer
from tests.support.process import wait_for

Connect = Callable[..., BeanstalkdBackend]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkdServer]:
    """Give a server with its log."""
    with BeanstalkdServer(tmp_path_factory.mktemp("beanstalkd")) as made:
        yield made


@pytest.fixture
def server(shared: BeanstalkdServer) -> BeanstalkdServer:
    """Give the shared server, empty."""

    def empty() -> bool:
        shared.empty()
        said = shared.stats()
        return not any(said[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed"))

    wait_for(empty, "an empty server")
    return shared


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[BeanstalkdServer]:
    """Give a server for one test, that may break it."""
    with BeanstalkdServer(tmp_path / "server") as made:
        yield made


@pytest.fixture
def later(later_server: LaterServer) -> LaterServer:
    """Give it, empty, its clock right."""
    later_server.set_back()
    later_server.empty()
    return later_server


@pytest.fixture
def facts() -> MemoryBackend:
    """Give the backend of the attempt log."""
    return MemoryBackend()


@pytest.fixture
def connect(facts: MemoryBackend) -> Iterator[Connect]:
    """Connect to a server as one more client, with these settings; all closed at the end."""
    made: list[BeanstalkdBackend] = []

    def connected(server: BeanstalkdServer, **settings: Any) -> BeanstalkdBackend:
        values = BeanstalkdSettings(**{**server.settings, **settings})
        made.append(BeanstalkdBackend("b", values, lambda: facts))
        return made[-1]

    yield connected
    for each in made:
        each.close()


@pytest.fixture
def backend(server: BeanstalkdServer, connect: Connect) -> BeanstalkdBackend:
    """Give a backend on the shared server."""
    return connect(server)
