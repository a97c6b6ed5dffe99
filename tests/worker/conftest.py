"""Projects on the backends the worker is tested with.

A module that says `pytestmark = pytest.mark.on_redis_too` runs each of its tests on Redis as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.redis.support import RedisProject
from tests.support.process import Project
from tests.support.redis_server import RedisServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_redis_too: run on the embedded database and on Redis")
    config.addinivalue_line("markers", "embedded_only: about the database's file")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    too = metafunc.definition.get_closest_marker("on_redis_too")
    embedded = metafunc.definition.get_closest_marker("embedded_only")
    if too and not embedded and "project" in metafunc.fixturenames:
        metafunc.parametrize("project", ["database", "redis"], indirect=True)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Give a private server all tests of this process share."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Give an empty project on the embedded database, or on the backend a test is run with."""
    if getattr(request, "param", "database") == "database":
        with Project(tmp_path / "app") as made:
            yield made
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    server.command("FLUSHALL")
    with RedisProject(tmp_path / "app", url=server.url) as on_redis:
        yield on_redis
