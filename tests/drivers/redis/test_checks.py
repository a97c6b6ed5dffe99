"""What `qframe check` says of a server that would lose jobs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from qframe.drivers.redis import checks
from qframe.drivers.redis.connection import RedisConnection
from qframe.drivers.redis.settings import RedisSettings
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.support.redis_server import RedisServer

UNSAFE: dict[str, tuple[dict[str, str], str]] = {
    "jobs evicted": (
        {"maxmemory-policy": "allkeys-lru"},
        "maxmemory-policy allkeys-lru deletes waiting jobs",
    ),
    "locks evicted": (
        {"maxmemory-policy": "volatile-ttl"},
        "maxmemory-policy volatile-ttl deletes locks and pauses",
    ),
    "nothing written": (
        {"appendonly": "no"},
        "nothing is written to disk, a restart loses all jobs, set appendonly yes",
    ),
    "snapshots only": (
        {"appendonly": "no", "save": "3600 1"},
        "a restart loses the jobs since the last snapshot, set appendonly yes",
    ),
    "written whenever": (
        {"appendfsync": "no"},
        "appendfsync no: a power loss can lose many seconds of jobs, set everysec",
    ),
    "full": ({"maxmemory": "100000"}, "the memory is full (maxmemory): pushes are refused"),
}


@pytest.mark.parametrize(("config", "words"), UNSAFE.values(), ids=UNSAFE.keys())
def test_it_says_what_would_lose_jobs(
    own_server: RedisServer, open_backend: Opener, config: dict[str, str], words: str
) -> None:
    for name, value in config.items():
        own_server.set(name, value)
    (warning,) = open_backend(own_server.url).check().warnings
    assert words in warning


def test_the_command_prints_it(own_server: RedisServer, make_project: MakeProject) -> None:
    app = make_project(url=own_server.url)
    own_server.set("appendfsync", "everysec")
    said = app.qframe("check")
    assert (said.code, said.err) == (0, "")
    assert "\nok       redis: Redis " in said.out
    assert "warning  redis" not in said.out
    own_server.set("appendfsync", "no")
    said = app.qframe("check")
    assert said.code == 0
    assert "warning  redis: appendfsync no: a power loss" in said.out


def test_it_says_who_else_could_reach_a_server(
    own_server: RedisServer, open_backend: Opener
) -> None:
    place = f"0.0.0.0:{own_server.port}"
    assert open_backend(f"redis://{place}").check().warnings == (
        f"{place} is reached without a password: whoever reaches it runs jobs here",
        f"{place} is reached without TLS: passwords and jobs can be read on the way",
    )


@pytest.mark.parametrize("host", ["[::1]", "localhost", "127.0.0.1"])
def test_it_asks_for_no_password_and_no_tls_on_this_machine(host: str) -> None:
    settings = RedisSettings(url=f"redis://{host}:6379")
    assert checks._about_access(Mock(spec=RedisConnection), settings) == []


def test_it_says_that_a_replica_takes_no_jobs(
    server: RedisServer, open_backend: Opener, tmp_path: Path
) -> None:
    replica = RedisServer(tmp_path / "replica")
    replica.follow(server)
    with replica:
        said = open_backend(replica.url).check().warnings
    assert "the server is a replica: pushes are refused, connect to its master" in said
    assert not any("replica" in text for text in open_backend().check().warnings)
