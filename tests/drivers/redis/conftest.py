"""A Redis of the run, emptied; backends on it, straight or through a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.settings import RedisSettings
from tests.support.projects import RedisProject
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

Opener = Callable[..., RedisBackend]
MakeProject = Callable[..., RedisProject]


@pytest.fixture
def server(redis_running: RedisServer) -> Iterator[RedisServer]:
    redis_running.command("FLUSHALL")
    yield redis_running
    redis_running.set("maxmemory", 0)


@pytest.fixture
def open_backend(server: RedisServer) -> Iterator[Opener]:
    opened = []

    def opener(url: str = "", **settings: object) -> RedisBackend:
        made = RedisBackend("redis", RedisSettings(url=url or server.url, **settings))  # type: ignore[arg-type]
        opened.append(made)
        return made

    yield opener
    for backend in opened:
        backend.close()


@pytest.fixture
def backend(open_backend: Opener) -> RedisBackend:
    return open_backend()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own that forgets nothing when it is killed."""
    lines = ["enable-debug-command local", "enable-protected-configs local"]
    lines += ["repl-diskless-sync-delay 0", "loading-process-events-interval-bytes 1024"]
    with RedisServer(tmp_path / "redis", fsync="always", config=lines) as made:
        yield made


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy, server: RedisServer, open_backend: Opener) -> RedisBackend:
    """A backend whose connections the proxy can break."""
    return open_backend(server.url_at(proxy.port), timeout=0.3)


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[MakeProject]:
    """What makes a project whose default connection has these settings."""
    made: list[RedisProject] = []

    def make(**connection: Any) -> RedisProject:
        made.append(RedisProject(tmp_path / f"app-{len(made)}", **connection))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()
