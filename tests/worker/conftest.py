"""Projects on the backends the worker is tested with.

A module whose `pytestmark` has `on_redis_too` runs each of its tests on Redis as well, one that has
`on_beanstalkd_too` on beanstalkd, too; `not_on_beanstalkd(why)` leaves a test out there. A single
test marked `on_rabbitmq_in_ci` is `slow` on RabbitMQ.

What is tested here is the worker; what a backend promises it, the conformance suite tests on each.
So a test is `long` on the others. One marked `on_redis_in_ci` is `slow` on Redis: it shows what a
lease, a lock or a wait of the worker's makes of that server. One marked `every_backend` is neither,
and runs on PostgreSQL, too, where it is `slow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import settings_of
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import Project
from tests.support.projects import (
    BeanstalkdProject,
    DatabaseProject,
    RabbitmqProject,
    RedisProject,
    emptied,
)
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_redis_too: run on Redis as well")
    config.addinivalue_line("markers", "on_beanstalkd_too: run on beanstalkd as well")
    config.addinivalue_line("markers", "on_redis_in_ci: run on Redis by .ci/run, too")
    config.addinivalue_line("markers", "on_rabbitmq_in_ci: run on RabbitMQ by .ci/run, too")
    config.addinivalue_line("markers", "every_backend: run on all by `make test`, too")
    config.addinivalue_line("markers", "not_on_beanstalkd(why): asks what beanstalkd has not")
    config.addinivalue_line("markers", "embedded_only: about the database's file")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    too = metafunc.definition.get_closest_marker("on_redis_too")
    embedded = metafunc.definition.get_closest_marker("embedded_only")
    if too and not embedded and "project" in metafunc.fixturenames:
        backends = ["database", "redis"]
        left_out = metafunc.definition.get_closest_marker("not_on_beanstalkd")
        if metafunc.definition.get_closest_marker("on_beanstalkd_too") and not left_out:
            backends.append("beanstalkd")
        slow = metafunc.definition.get_closest_marker("every_backend") is None
        long = [pytest.mark.slow, pytest.mark.long]
        in_ci = metafunc.definition.get_closest_marker("on_redis_in_ci")
        marks = {"redis": [pytest.mark.slow] if in_ci else long, "beanstalkd": long}
        others = [pytest.param(name, marks=marks[name] if slow else []) for name in backends[1:]]
        if not slow:
            others.append(pytest.param("postgresql", marks=pytest.mark.slow))
        if metafunc.definition.get_closest_marker("on_rabbitmq_in_ci"):
            others.append(pytest.param("rabbitmq", marks=pytest.mark.slow))
        metafunc.parametrize("project", [backends[0], *others], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave uvloop to `make test-all` on the other backends: a loop is the same on each."""
    for item in items:
        if "-uvloop]" in item.name and "[database-" not in item.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Give a private server all tests of this process share."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def beanstalkd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkdServer]:
    """Give a private server all tests of this process share."""
    with BeanstalkdServer(tmp_path_factory.mktemp("beanstalkd")) as server:
        yield server


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Give an empty project on the embedded database, or on the backend a test is run with."""
    if getattr(request, "param", "database") == "database":
        with Project(tmp_path / "app") as made:
            yield made
        return
    if request.param == "beanstalkd":
        beanstalkd: BeanstalkdServer = request.getfixturevalue("beanstalkd")
        emptied(beanstalkd)
        with BeanstalkdProject(tmp_path / "app", beanstalkd) as on_beanstalkd:
            yield on_beanstalkd
        return
    if request.param == "rabbitmq":
        running: RabbitmqServer = request.getfixturevalue("rabbitmq_running")
        with RabbitmqProject(tmp_path / "app", running) as on_rabbitmq:
            yield on_rabbitmq
        return
    if request.param in {"postgresql", "mariadb"}:
        with DatabaseProject(tmp_path / "app", url=settings_of(request)["url"]) as on_database:
            yield on_database
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    server.command("FLUSHALL")
    with RedisProject(tmp_path / "app", url=server.url) as on_redis:
        yield on_redis
