"""A beanstalkd that all tests of a process share, and connections to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, project
from qframe.drivers.beanstalkd.queue import BeanstalkdQueue
from tests.conformance.drivers import BeanstalkdBench
from tests.drivers.beanstalkd.support import BeanstalkdProject, emptied
from tests.support.beanstalkd_server import BeanstalkdServer

Connect = Callable[..., BeanstalkdQueue]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkdServer]:
    """Give a server with its log."""
    with BeanstalkdServer(tmp_path_factory.mktemp("beanstalkd")) as made:
        yield made


@pytest.fixture
def server(shared: BeanstalkdServer) -> BeanstalkdServer:
    """Give the shared server, empty."""
    emptied(shared)
    return shared


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[BeanstalkdServer]:
    """Give a server for one test, that may break it."""
    with BeanstalkdServer(tmp_path / "server") as made:
        yield made


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connect to a server as one more client, with these settings; all closed at the end."""
    monkeypatch.setattr(project, "_root", None)
    managers: list[QueueManager] = []

    def connected(server: BeanstalkdServer, **settings: Any) -> BeanstalkdQueue:
        connections = {"beanstalkd": {**server.settings, **settings}}
        manager = QueueManager(
            {"root": tmp_path, "default": "beanstalkd", "connections": connections}
        )
        managers.append(manager)
        queue = manager.connection()
        assert isinstance(queue, BeanstalkdQueue)
        return queue

    yield connected
    for manager in managers:
        manager.close()


@pytest.fixture
def queue(server: BeanstalkdServer, connect: Connect) -> BeanstalkdQueue:
    """Give a connection to the shared server."""
    return connect(server)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BeanstalkdBench]:
    """Give a server whose clock can be set, and a connection to it."""
    monkeypatch.setattr(project, "_root", None)
    made = BeanstalkdBench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def app(server: BeanstalkdServer, tmp_path: Path) -> Iterator[BeanstalkdProject]:
    """Give a project on the shared server."""
    with BeanstalkdProject(tmp_path / "app", server) as made:
        yield made
