"""A private Redis that the tests here share, emptied for each; connections and projects on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, project
from qframe.console.app import main
from qframe.drivers.redis.queue import RedisQueue
from tests.drivers.redis.support import RedisProject
from tests.support.process import Finished
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

NAME = "redis"

Connect = Callable[..., RedisQueue]
MakeProject = Callable[..., RedisProject]
Command = Callable[..., Finished]


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have its own project root."""
    monkeypatch.setattr(project, "_root", None)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Give the server all tests share, as it was left."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """Give the server all tests share, emptied."""
    running.command("FLUSHALL")
    return running


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Give what makes a connection with these settings, each as another worker has it."""
    managers: list[QueueManager] = []

    def make(**settings: Any) -> RedisQueue:
        connection = {"driver": "redis", **settings}
        manager = QueueManager(
            {"root": tmp_path, "default": NAME, "connections": {NAME: connection}}
        )
        managers.append(manager)
        queue = manager.connection(NAME)
        assert isinstance(queue, RedisQueue)
        return queue

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def queue(server: RedisServer, connect: Connect) -> RedisQueue:
    """Give a connection to the server all tests share."""
    return connect(url=server.url)


@pytest.fixture
def another(server: RedisServer, connect: Connect) -> Connect:
    """Give what makes further connections to the server all tests share."""
    return lambda **settings: connect(**{"url": server.url, **settings})


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[MakeProject]:
    """Give what makes a project whose default connection has these settings."""
    made: list[RedisProject] = []

    def make(**connection: Any) -> RedisProject:
        made.append(RedisProject(tmp_path / f"app-{len(made)}", **connection))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


@pytest.fixture
def command() -> Command:
    """Give what runs a command of a project to its end."""
    return RedisProject.qframe


@pytest.fixture
def run(
    fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Give what runs a command, but `work`, inside this process, where it costs little."""

    def run_one(each: RedisProject, *arguments: object) -> Finished:
        monkeypatch.chdir(each.root)
        monkeypatch.setattr(sys, "argv", ["qframe", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Finished(int(end.value.code or 0), printed.out, printed.err)

    return run_one


# -- a server of one's own, to be broken --------------------------------------------------------


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Give a server of the test's own that forgets nothing when it is killed."""
    lines = ["enable-debug-command local", "repl-diskless-sync-delay 0"]
    with RedisServer(tmp_path / "redis", fsync="always", config=lines) as made:
        yield made


@pytest.fixture
def proxy(own_server: RedisServer) -> Iterator[Proxy]:
    """Give a bad network in front of it."""
    with Proxy(*own_server.address) as made:
        yield made


@pytest.fixture
def own_queue(own_server: RedisServer, connect: Connect) -> RedisQueue:
    """Give a connection to it."""
    return connect(url=own_server.url)


@pytest.fixture
def app(own_server: RedisServer, make_project: MakeProject) -> RedisProject:
    """Give a project on it."""
    return make_project(url=own_server.url)
