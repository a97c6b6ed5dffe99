"""PHP with Laravel's queue, and the application on a backend that each test has for itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.laravel.application import HERE
from tests.laravel.on_beanstalkd import BeanstalkdApplication
from tests.laravel.on_database import DatabaseApplication, config_of, empty
from tests.laravel.on_redis import RedisApplication
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.later import LaterServer
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

QUICK = frozenset(
    {
        "test_a_job_pushed_by_php_is_run_by_python",
        "test_a_foreign_job_is_run_by_laravels_worker",
        "test_attempts_are_counted_together_and_the_tries_end_on_either_side",
        "test_workers_of_both_drain_one_queue_and_each_job_is_run_once",
        "test_workers_of_both_drain_one_tube_and_each_job_is_run_once",
        "test_workers_of_both_drain_one_table_and_each_job_is_run_once",
    }
)
"""Each way on each backend, and both at once: all others are slow."""
ON_EACH_SERVER = frozenset(
    {
        "test_a_row_of_python_is_one_of_laravel_s",
        "test_attempts_are_counted_beyond_what_laravel_s_column_holds",
        "test_the_tables_may_be_made_by_either",
        "test_what_either_pushes_comes_in_order_to_either",
    }
)
"""What differs from server to server: .ci/run has all others on MariaDB alone."""

MakeApplication = Callable[..., RedisApplication]
MakeOnBeanstalkd = Callable[..., BeanstalkdApplication]
MakeOnDatabase = Callable[..., DatabaseApplication]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "originalname", "")
        if HERE not in item.path.parents or name in QUICK:
            continue
        item.add_marker(pytest.mark.slow)
        elsewhere = "[sqlite" in item.name or "[postgresql" in item.name
        if elsewhere and "_database" in item.path.stem and name not in ON_EACH_SERVER:
            item.add_marker(pytest.mark.long)


def php_with(driver: str, **options: object) -> str:
    """Give PHP's path; without it, a client or Laravel the test is skipped, or fails in CI."""
    found = shutil.which("php")
    trouble = "there is no php here"
    if found is not None:
        booted = subprocess.run(
            [found, str(HERE / "boot.php"), json.dumps({"driver": driver, **options})],
            capture_output=True,
            text=True,
            check=False,
        )
        if booted.returncode == 0 and not booted.stdout:
            return found
        trouble = f"Laravel's queue does not boot: {booted.stdout}{booted.stderr}"
    say = pytest.fail if "CI" in os.environ else pytest.skip
    return str(say(f"{trouble}; `make services` installs what is needed"))


@pytest.fixture(scope="session")
def php() -> str:
    """Give PHP's path, with Laravel's queue and phpredis."""
    return php_with("redis")


@pytest.fixture(scope="session")
def php_with_pheanstalk() -> str:
    """Give PHP's path, with Laravel's queue and Pheanstalk."""
    return php_with("beanstalkd")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path, php: str, redis_server: RedisServer) -> Iterator[MakeApplication]:
    """Give what makes the application, on an emptied Redis, with settings of the connection."""
    redis_server.command("FLUSHALL")
    with ExitStack() as stack:

        def make_one(prefix: str = "", **settings: object) -> RedisApplication:
            made = RedisApplication(tmp_path / "app", redis_server, php, prefix, **settings)
            return stack.enter_context(made)

        yield make_one


@pytest.fixture
def app(make: MakeApplication) -> RedisApplication:
    return make("laravel_database_")


@pytest.fixture
def on_a_later_beanstalkd(
    tmp_path: Path, php_with_pheanstalk: str
) -> Iterator[BeanstalkdApplication]:
    """Give the application on a beanstalkd whose clock can be set forward, and leases ended."""
    server = LaterServer(tmp_path / "server")
    server.start()
    try:
        with BeanstalkdApplication(tmp_path / "app", server, php_with_pheanstalk) as made:
            yield made
    finally:
        server.stop()


@pytest.fixture
def make_on_beanstalkd(
    tmp_path: Path, php_with_pheanstalk: str, beanstalkd_server: BeanstalkdServer
) -> Iterator[MakeOnBeanstalkd]:
    """Give what makes the application, on an emptied beanstalkd, with settings of it."""
    with ExitStack() as stack:

        def make_one(**settings: object) -> BeanstalkdApplication:
            made = BeanstalkdApplication(
                tmp_path / "app", beanstalkd_server, php_with_pheanstalk, **settings
            )
            return stack.enter_context(made)

        yield make_one


@pytest.fixture(scope="session")
def postgresql_of_laravel(postgres_running: PostgresServer) -> str:
    """Give the URL of a PostgreSQL database of these tests alone."""
    return postgres_running.database()


@pytest.fixture(scope="session")
def mariadb_of_laravel(mariadb_running: MariadbServer) -> str:
    """Give the URL of a MariaDB database of these tests alone."""
    return mariadb_running.database()


@pytest.fixture
def make_on_database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeOnDatabase]:
    """Give what makes the application, on an emptied database of a kind, with settings of it."""
    with ExitStack() as stack:

        def make_one(kind: str, **settings: Any) -> DatabaseApplication:
            url = f"sqlite:///{tmp_path}/shared.sqlite3"
            if kind != "sqlite":
                url = request.getfixturevalue(f"{kind}_of_laravel")
            php = php_with("database", database=config_of(url))
            empty(url)
            made = DatabaseApplication(tmp_path / "app", url, php, **settings)
            return stack.enter_context(made)

        yield make_one


@pytest.fixture
def snapshot_isolation(mariadb_running: MariadbServer) -> Iterator[None]:
    """Turn on what MariaDB has on by default from 11.6 on."""
    mariadb_running.sql("SET GLOBAL innodb_snapshot_isolation = ON")
    yield
    mariadb_running.sql("SET GLOBAL innodb_snapshot_isolation = OFF")
