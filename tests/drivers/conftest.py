"""What tests of the drivers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from qframe.jobs import project
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.redis_server import RedisServer
from tests.support.sql_server import SqlServer


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have its own project root."""
    monkeypatch.setattr(project, "_root", None)


@pytest.fixture(params=["sqlite", "redis", "beanstalkd", "postgres", "mariadb"])
def each_connection(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """Give the settings of a connection to an empty backend."""
    if request.param == "sqlite":
        return {"driver": "database", "url": f"sqlite:///{tmp_path}/q.sqlite3"}
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_running")
        return {"driver": "redis", "url": redis.url, "prefix": f"{tmp_path.name}:"}
    if request.param == "beanstalkd":
        beanstalkd: BeanstalkdServer = request.getfixturevalue("beanstalkd_server")
        return {"driver": "beanstalkd", "port": beanstalkd.port}
    server: SqlServer = request.getfixturevalue(f"{request.param}_running")
    return {"driver": "database", "url": server.prepared()}
