"""Fixtures for tests that use qframe inside this process."""

from __future__ import annotations

import atexit
import compileall
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import qframe
from qframe import QueueManager, events, manager
from qframe.jobs import project
from qframe.jobs.definition import index
from qframe.metrics import pushes
from qframe.metrics.pushes import Pushes
from tests.support import forking, selection, spreading
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.clock import Clock
from tests.support.later import LaterServer
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisCluster, RedisServer
from tests.support.shop import Shop, opened
from tests.support.sql_server import SqlServer
from tests.support.sqs_server import CREDENTIALS, SqsServer

# How fast an example runs says something of the machine; none are kept between runs.
settings.register_profile(
    "qframe", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("qframe")

# Processes under test, wherever the tests are started: Python buffers their output as it does for
# users, and they write no byte code.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
# The tests themselves are kept as pytest rewrites them: half a minute of each of its processes.
sys.dont_write_bytecode = False


_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exec", action="store_true", help="start each command of qframe by itself, forking none"
    )


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    if not hasattr(config, "workerinput"):
        # pytest keeps what it rewrites for itself, so each process under test would compile it all.
        compileall.compile_dir(Path(qframe.__file__).parent, quiet=2)
    forking.enabled = not config.getoption("--exec")
    gc.disable()
    atexit.unregister(pushes.write_all)  # most servers are gone by then


def _heed_signals() -> None:
    """Have signals do what they do: a shell's background commands and nohup ignore these."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make quick` takes, and what is left to .ci/run or `make test-all`."""
    whole = config.args == config.getini("testpaths") and not (
        config.getoption("lf", False)
        or config.getoption("ignore")
        or config.getoption("ignore_glob")
    )
    for chosen, marks in (
        (selection.Selection(selection.QUICK), [pytest.mark.quick]),
        (selection.Selection(selection.SLOW, but_words=True), [pytest.mark.slow]),
        (selection.Selection(selection.LONG, but_words=True), [pytest.mark.slow, pytest.mark.long]),
    ):
        for item in items:
            if item.nodeid in chosen:
                for mark in marks:
                    item.add_marker(mark)
        if whole and chosen.stale():
            raise pytest.UsageError(f"tests/support/selection.py: no test for {chosen.stale()}")
    for item in items:
        if item.get_closest_marker("slow") and selection.is_of_another_backend(item.nodeid):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)  # before the items are told of
def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the tests the search for garbage among ten thousand tests: a second each time."""
    if hasattr(session.config, "workerinput"):  # one of several processes
        processes = session.config.workerinput["workercount"]
        session.items[:] = spreading.spread(session.items, processes)
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_handler_left() -> Iterator[None]:
    """Fail a test that leaves a signal with another handler: the next signal would end pytest."""
    before = [signal.getsignal(number) for number in _WATCHED]
    yield
    assert [signal.getsignal(number) for number in _WATCHED] == before


@pytest.fixture(autouse=True)
def _same_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test choose the manager of others, or the folder in which they look for their jobs."""
    monkeypatch.setattr(manager, "_default", manager._default)
    for name in ("_root", "_is_assumed", "_is_announced"):
        monkeypatch.setattr(project, name, getattr(project, name))


@pytest.fixture(autouse=True)
def _no_counting_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread write into a backend, a second later, what a test has pushed to it."""
    if "counting" not in request.fixturenames:
        monkeypatch.setattr(Pushes, "_begin", lambda _: None)


@pytest.fixture
def counting() -> None:
    """Let what is pushed be written by itself, as everywhere else."""


@pytest.fixture(scope="session")
def beanstalkd_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkdServer]:
    """Give the private beanstalkd all tests of this process share, as it was left."""
    with BeanstalkdServer(tmp_path_factory.mktemp("beanstalkd")) as server:
        yield server


@pytest.fixture
def beanstalkd_server(beanstalkd_running: BeanstalkdServer) -> BeanstalkdServer:
    """Give the private beanstalkd all tests of this process share, emptied."""
    beanstalkd_running.empty()
    return beanstalkd_running


@pytest.fixture(scope="session")
def later_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterServer]:
    """Give a private beanstalkd whose clock can be set forward, as it was left."""
    with LaterServer(tmp_path_factory.mktemp("later")) as made:
        yield made


@pytest.fixture
def own_beanstalkd(tmp_path: Path) -> Iterator[BeanstalkdServer]:
    """Give a private beanstalkd of the test's own, to be broken."""
    with BeanstalkdServer(tmp_path / "beanstalkd") as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitmqServer]:
    """Give the private RabbitMQ all tests of this process share, as it was left."""
    with RabbitmqServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture(scope="session")
def sqs_running() -> Iterator[SqsServer]:
    """Give the strict SQS all tests of this process share, as it was left."""
    with SqsServer() as server:
        yield server


@pytest.fixture(scope="session")
def moto_running() -> Iterator[str]:
    """Give the URL of moto's SQS and S3, which all tests of this process share."""
    from moto.server import ThreadedMotoServer

    os.environ.update(CREDENTIALS)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty folder, and a process that has used qframe for nothing yet."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for variable in list(os.environ):
        if variable.upper().startswith("QFRAME_"):
            monkeypatch.delenv(variable)
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.setattr(manager, "_default", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: list[QueueManager] = []
    make = QueueManager.__init__

    def making(self: QueueManager, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(QueueManager, "__init__", making)
    jobs, modules = dict(index), set(sys.modules)
    with events.kept():
        for _, listener in [*events._listeners]:
            events.forget(listener)
        yield folder
    for each in made:
        each.close()
    index.clear()
    index.update(jobs)
    for name in [name for name in set(sys.modules) - modules if _is_under(tmp_path, name)]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _is_under(folder: Path, name: str) -> bool:
    module = sys.modules[name]
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(str(place).startswith(str(folder)) for place in places)


@pytest.fixture(scope="session")
def redis_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Give a private Redis for tests that are no driver's own, as it was left."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Give a private Cluster of three nodes, as it was left."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Give the private PostgreSQL all tests of this process share, as it was left."""
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """Give the private MariaDB all tests of this process share, as it was left."""
    with MariadbServer(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """Give a private PostgreSQL of the test's own, to be broken."""
    with PostgresServer(tmp_path / "postgres") as server:
        yield server


@pytest.fixture
def own_mariadb(tmp_path: Path) -> Iterator[MariadbServer]:
    """Give a private MariaDB of the test's own, to be broken."""
    with MariadbServer(tmp_path / "mariadb") as server:
        yield server


_SNAPSHOT = "mariadb with innodb_snapshot_isolation"
"""As it is by default from 11.6.2 on."""
_SHOPS = [
    "sqlite",
    "postgres",
    pytest.param("mariadb", marks=pytest.mark.slow),
    pytest.param(_SNAPSHOT, marks=[pytest.mark.slow, pytest.mark.long]),
]


@pytest.fixture(params=_SHOPS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Give a program whose rows and jobs are in one database, empty."""
    kind = request.param.partition(" ")[0]
    if kind == "sqlite":
        with opened(f"sqlite:///{tmp_path / 'shop.sqlite3'}") as made:
            yield made
        return
    server: SqlServer = request.getfixturevalue(f"{kind}_running")
    server.empty()
    with ExitStack() as stack:
        if request.param == _SNAPSHOT:
            server.sql("set global innodb_snapshot_isolation = on")
            stack.callback(server.sql, "set global innodb_snapshot_isolation = off")
        yield stack.enter_context(opened(server.url_at()))


_OTHERS = [
    pytest.param("postgresql", marks=pytest.mark.slow),
    pytest.param("redis cluster", marks=[pytest.mark.slow, pytest.mark.long]),
]


@pytest.fixture(params=["database", "redis", "beanstalkd", *_OTHERS])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Give the settings of a connection to each backend on which jobs wait, emptied."""
    return settings_of(request)


def settings_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Give the settings of a connection to the backend a fixture is asked for, emptied."""
    connection: dict[str, Any] = {"driver": request.param}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_running")
        server.command("FLUSHALL")
        connection["url"] = server.url
    if request.param in {"postgresql", "mariadb"}:
        name = "postgres_running" if request.param == "postgresql" else "mariadb_running"
        database: SqlServer = request.getfixturevalue(name)
        connection = {"driver": "database", "url": database.prepared()}
    if request.param == "redis cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.empty()
        connection = {"driver": "redis", "url": cluster.url, "cluster": True}
    if request.param == "beanstalkd":
        connection["port"] = request.getfixturevalue("beanstalkd_server").port
    return connection


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clock, so that "for 0s" does not depend on the machine."""
    clock = Clock(time.time())
    monkeypatch.setattr(time, "time", clock)
    return clock
