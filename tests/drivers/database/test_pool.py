"""The connections that threads share: no more than configured, none lost, and none kept idle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import literal, select

from qframe.contracts.step import APPLIED, Delete, Push, Result, Start, Step
from qframe.drivers import sockets
from qframe.drivers.database import pool as pool_module
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.errors import NoConnectionLeft
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.heartbeat import Heartbeat
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.process import wait_for
from tests.support.projects import DatabaseProject
from tests.support.sql_server import SqlServer

PUSH = Step(None, Push("q", b"1"))
_SESSIONS = {
    "PostgreSQL": "select count(*) from pg_stat_activity where application_name = 'qframe'",
    "MariaDB": "select count(*) from information_schema.processlist where user = 'qframe'",
}
_IDS = {
    "PostgreSQL": "select pid from pg_stat_activity where application_name = 'qframe'",
    "MariaDB": "select id from information_schema.processlist where user = 'qframe'",
}
_SERVERS = ["postgres_running", pytest.param("mariadb_running", marks=pytest.mark.slow)]
Opener = Callable[..., DatabaseBackend]


def sessions(server: SqlServer) -> int:
    return int(server.sql(_SESSIONS[server.name])[0][0])


@pytest.fixture(params=_SERVERS)
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    wait_for(lambda: sessions(found) == 0, "the end of other tests' connections", 60)
    return found


@pytest.fixture
def opened(server: SqlServer) -> Iterator[Opener]:
    made: list[DatabaseBackend] = []

    def open_one(**settings: float) -> DatabaseBackend:
        url = server.prepared()
        made.append(
            DatabaseBackend("here", DatabaseSettings.model_validate({"url": url, **settings}))
        )
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def in_threads(count: int, act: Callable[[], object]) -> None:
    """Do it in so many threads at once; raises what the first of them that failed has raised."""
    errors: list[BaseException] = []
    begin = threading.Barrier(count)

    def run() -> None:
        begin.wait()
        try:
            act()
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_many_threads_share_few_connections(server: SqlServer, opened: Opener) -> None:
    backend, most = opened(pool_size=4), [0]

    def push() -> None:
        for _ in range(3):
            backend.apply(PUSH)
        most[0] = max(most[0], len(backend.database.pool._all))

    in_threads(250, push)
    assert most[0] <= 4
    assert backend.sizes("q").ready == 750
    assert 1 <= sessions(server) <= 4


def test_threads_that_come_one_after_the_other_use_one(server: SqlServer, opened: Opener) -> None:
    backend = opened()
    for _ in range(20):
        in_threads(1, lambda: backend.apply(PUSH))
    assert sessions(server) == 1


def test_who_finds_none_is_told_after_a_while(opened: Opener) -> None:
    backend = opened(pool_size=1, pool_timeout=0.1)
    with backend.database.session(), pytest.raises(NoConnectionLeft) as told:
        in_threads(1, lambda: backend.apply(PUSH))
    assert "all 1 of its pool are in use (pool_size)" in str(told.value)
    in_threads(1, lambda: backend.apply(PUSH))
    assert backend.sizes("q").ready == 1


def test_two_connections_with_one_url_have_a_pool_each(server: SqlServer, opened: Opener) -> None:
    first, second = opened(pool_size=1), opened(pool_size=1)
    with first.database.session() as one, second.database.session() as other:
        for backend, session in ((first, one), (second, other)):
            session.run(backend.database.statement(select(literal(1))))
        assert sessions(server) == 2


def test_who_waits_longest_is_first(opened: Opener) -> None:
    backend, order = opened(pool_size=1), list[int]()
    pool = backend.database.pool

    def enter(number: int) -> None:
        with backend.database.session():
            order.append(number)

    with backend.database.session():
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            wait_for(lambda: len(pool._waiters) == len(threads), "the thread to wait")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


@pytest.fixture
def interrupting() -> Iterator[int]:
    """Give a signal that interrupts the main thread as Ctrl-C does, whatever SIGINT does here."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_who_is_interrupted_while_it_waits_takes_nothing_with_it(
    opened: Opener, interrupting: int
) -> None:
    backend = opened(pool_size=1, pool_timeout=20)
    pool, main = backend.database.pool, threading.get_ident()

    def hold() -> None:
        with backend.database.session():
            wait_for(lambda: pool._waiters, "the main thread to wait")
            signal.pthread_kill(main, interrupting)
            wait_for(lambda: not pool._waiters, "the main thread to be interrupted")

    thread = threading.Thread(target=hold)
    thread.start()
    wait_for(lambda: pool._open == 1 and not pool._idle, "the connection to be taken")
    with pytest.raises(KeyboardInterrupt):
        pool.take()
    thread.join()
    in_threads(3, lambda: backend.apply(PUSH))
    assert backend.sizes("q").ready == 3


def test_what_nobody_uses_is_closed(
    server: SqlServer, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_IDLE", 0.1)
    monkeypatch.setattr(pool_module, "_TRIMS", 0.05)
    backend, together = opened(pool_size=5), threading.Barrier(5)

    def hold() -> None:
        with backend.database.session():
            together.wait()

    in_threads(5, hold)
    wait_for(lambda: sessions(server) == 1, "the end of those nobody uses")
    assert backend.apply(PUSH) == [APPLIED]


def test_a_connection_that_broke_makes_room(opened: Opener) -> None:
    backend = opened(pool_size=1, pool_timeout=5)
    for _ in range(3):
        with pytest.raises(ValueError, match="cannot hold"):
            backend.apply(Step(None, Push("q" * 300, b"1")))
        with backend.database.session() as session:
            session.close()
    in_threads(3, lambda: backend.apply(PUSH))
    assert backend.sizes("q").ready == 3


def test_what_renews_leases_waits_for_no_other_thread(opened: Opener) -> None:
    backend = opened(pool_size=1, pool_timeout=60)
    beats, done = Heartbeat(close=backend.leave), threading.Event()

    def beat() -> float:
        backend.apply(PUSH)
        done.set()
        return 60

    with backend.database.session():
        beats.add(60, beat, first=0)
        assert done.wait(60)
    beats.end(lambda: None, 20)
    assert backend.sizes("q").ready == 1


def test_what_was_told_is_heard_on_its_own_connection(opened: Opener) -> None:
    backend = opened(pool_size=2)
    backend.apply(PUSH)
    (job,), _ = backend.reserve(["q"])
    heard: list[list[Result]] = []
    backend.apply_async([Step(job, Start(60))], heard.append)
    in_threads(1, lambda: backend.apply(PUSH))
    backend.read_replies()
    assert heard == [[APPLIED]]
    assert backend.apply(Step(job, Delete())) == [APPLIED]


def test_a_fork_leaves_the_parents_connections_alone(opened: Opener) -> None:
    backend, inside, over = opened(pool_size=3), threading.Event(), threading.Event()

    def stay() -> None:
        with backend.database.session():
            inside.set()
            over.wait()

    backend.apply(PUSH)
    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            in_threads(3, lambda: backend.apply(PUSH))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    in_threads(3, lambda: backend.apply(PUSH))
    assert backend.sizes("q").ready == 7


def test_a_fork_leaves_a_connection_that_another_thread_keeps_alone(
    opened: Opener, server: SqlServer
) -> None:
    """The child drops other threads' state before any hook tells it that it is a child."""
    backend, kept, forked = opened(), threading.Event(), threading.Event()

    def keep() -> None:
        sockets.keep_connections()
        backend.apply(PUSH)
        kept.set()
        forked.wait()
        backend.apply(PUSH)

    thread = threading.Thread(target=keep)
    thread.start()
    kept.wait()
    before = server.sql(_IDS[server.name])
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(0.5)  # for the server, to end a session whose client has said good-bye
        assert server.sql(_IDS[server.name]) == before != []
    finally:
        forked.set()
        thread.join()
    assert backend.sizes("q").ready == 2


@pytest.mark.parametrize(
    "kind", [PostgresServer, pytest.param(MariadbServer, marks=pytest.mark.slow)]
)
def test_a_server_with_fewer_than_configured_is_shared(
    kind: type[PostgresServer | MariadbServer], tmp_path: Path
) -> None:
    with kind(tmp_path, config=["max_connections=8"]) as server:
        url = server.prepared()
        backend = DatabaseBackend("here", DatabaseSettings(url=url, pool_size=50))
        with closing(backend):
            in_threads(60, lambda: [backend.apply(PUSH) for _ in range(5)])
            assert backend.sizes("q").ready == 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_a_worker_of_many_slots_whose_jobs_dispatch(
    kind: type[PostgresServer | MariadbServer], tmp_path: Path
) -> None:
    code = """
import time
from qframe import Queueable, dispatch

class Sends(Queueable):
    def handle(self) -> None:
        time.sleep(0.2)
        dispatch(Sent()).on_queue("sent").send()

class Sent(Queueable):
    def handle(self) -> None:
        pass
"""
    config = ["max_connections=20"]
    with (
        kind(tmp_path / "server", config=config) as server,
        DatabaseProject(tmp_path / "app", url=server.prepared()) as project,
    ):
        (project.root / "sending.py").write_text(code)
        sent = project.python(
            "from qframe import bulk\nfrom sending import Sends\nbulk([Sends()] * 600)"
        )
        assert sent.code == 0, sent.err
        worker = project.start("work", "--concurrency", "250", "--tries", "1")
        backend = DatabaseBackend("here", DatabaseSettings(url=server.url))
        with closing(backend):
            wait_for(lambda: backend.sizes("sent").ready == 600, "all to be sent", 60)
        assert sessions(server) <= 14
        assert worker.stop() == 0
        assert "FAIL" not in worker.out
        assert project.failed() == []
