"""PHP with Laravel's queue, and a Redis for each test that wants one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.laravel.application import HERE, Application
from tests.support.redis_server import RedisServer

MakeApplication = Callable[..., Application]


@pytest.fixture(scope="session")
def php() -> str:
    """Give PHP's path; without it, phpredis or Laravel the tests are skipped, or fail in CI."""
    found = shutil.which("php")
    trouble = "there is no php here"
    if found is not None:
        booted = subprocess.run(
            [found, str(HERE / "boot.php")], capture_output=True, text=True, check=False
        )
        if booted.returncode == 0 and not booted.stdout:
            return found
        trouble = f"Laravel's queue does not boot: {booted.stdout}{booted.stderr}"
    say = pytest.fail if "CI" in os.environ else pytest.skip
    return str(say(f"{trouble}; `make services` installs what is needed"))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path, php: str, redis_server: RedisServer) -> Iterator[MakeApplication]:
    """Give what makes the application, on an emptied Redis, with settings of the connection."""
    redis_server.command("FLUSHALL")
    with ExitStack() as stack:

        def make_one(prefix: str = "", **settings: object) -> Application:
            made = Application(tmp_path / "app", redis_server, php, prefix, **settings)
            return stack.enter_context(made)

        yield make_one


@pytest.fixture
def app(make: MakeApplication) -> Application:
    return make("laravel_database_")
