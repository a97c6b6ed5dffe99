"""Waking: how an idle worker on PostgreSQL hears of a job, and what makes good a lost wake-up."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from qframe.contracts.step import Bury, Delete, Push, Release, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.listen import Notifier, channel_of
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.wait import ServerWatch
from tests.support.mariadb_server import MariadbServer
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Mode, Proxy

LONG = 60.0
"""Seconds a wait lasts that nothing ends; nothing here may take half of that."""
SOON = 0.3

Opener = Callable[..., DatabaseBackend]


@pytest.fixture
def another(postgres_running: PostgresServer) -> Iterator[Opener]:
    """Open a backend as another process has it, on a database of this test's own."""
    url = postgres_running.database()
    opened: list[DatabaseBackend] = []

    def open_one(port: int = 0, **options: Any) -> DatabaseBackend:
        there = url.replace(f":{postgres_running.port}/", f":{port or postgres_running.port}/")
        opened.append(DatabaseBackend("here", DatabaseSettings(url=there, **options)))
        return opened[-1]

    open_one().database.migrate()
    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def worker(another: Opener) -> DatabaseBackend:
    """A backend that waits and reserves."""
    return another()


@pytest.fixture
def program(another: Opener) -> DatabaseBackend:
    """A backend that pushes."""
    return another()


@pytest.fixture
def relies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who listen rely on it: no look makes good what they do not hear of."""
    monkeypatch.setattr(ServerWatch, "_LONGEST_LISTENING", 2 * LONG)


@pytest.fixture
def told(another: Opener) -> Iterator[Callable[..., list[str]]]:
    """Listen as somebody else; gives the queues that were told of, as many as wanted or more."""
    backend = another()
    raw = str(backend.database.url.set(drivername="postgresql"))
    with psycopg.connect(raw, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel_of("jobs")}"')

        def hear(wanted: int = 0) -> list[str]:
            heard: list[psycopg.Notify] = []
            if wanted:
                heard += connection.notifies(timeout=LONG, stop_after=wanted)
            heard += connection.notifies(timeout=SOON)
            return [each.payload for each in heard]

        yield hear


def push(backend: DatabaseBackend, body: bytes = b"1", queue: str = "q", delay: float = 0) -> None:
    backend.apply(Step(None, Push(queue, body, delay)))


def started(backend: DatabaseBackend) -> Step:
    """Start what is ready, and give the step that says so."""
    (job,), _ = backend.reserve(["q"])
    step = Step(job, Start(60))
    backend.apply(step)
    return step


def waited(backend: DatabaseBackend, timeout: float = LONG) -> float:
    begun = time.monotonic()
    backend.wait(["other", "q"], timeout)
    return time.monotonic() - begun


class Soon:
    """Does something in a moment, in another thread."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._timer = threading.Timer(SOON, self._act)
        self.begun = False

    def _act(self) -> None:
        self.begun = True
        self._do()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.join()


def pushed_soon(program: DatabaseBackend) -> Soon:
    def do() -> None:
        push(program)
        program.close()

    return Soon(do)


def listens(postgres: PostgresServer, backend: DatabaseBackend) -> bool:
    """Whether this thread's connection listens."""
    with backend.database.session() as session:
        session.cursor.execute("SELECT count(*) FROM pg_listening_channels()")
        return bool(session.cursor.fetchone()[0])


# -- who is told ----------------------------------------------------------------------------------


def test_an_idle_worker_is_told_of_a_job(
    worker: DatabaseBackend, program: DatabaseBackend, relies: None
) -> None:
    with pushed_soon(program) as push_of_another:
        assert waited(worker) < LONG / 2
        assert push_of_another.begun
    assert worker.reserve(["q"])[0]


def test_of_another_queue_it_hears_and_waits_on(
    worker: DatabaseBackend, program: DatabaseBackend, relies: None
) -> None:
    with Soon(lambda: push(program, queue="not this")):
        assert waited(worker, 3 * SOON) >= 3 * SOON


def test_many_pushes_are_told_of_once_for_each_queue(
    program: DatabaseBackend,
    told: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qframe.drivers.database.listen.SILENCE", 60)
    for number in range(20):
        push(program, b"%d" % number, queue="one")
        push(program, b"%d" % number, queue="two")
    assert sorted(told(2)) == ["one", "two"]


def test_what_becomes_ready_is_told(
    program: DatabaseBackend,
    told: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qframe.drivers.database.listen.SILENCE", 0)
    push(program, delay=0.5)
    assert told(1) == ["q"], "who waits for a later one is to wait for this"
    push(program, delay=60)
    assert told() == [], "whoever waits will have looked long before"
    push(program)
    assert told(1) == ["q"]
    step = started(program)
    program.apply(Step(step.reservation, Release()))
    assert told(1) == ["q"]
    step = started(program)
    program.apply(Step(step.reservation, Bury()))
    assert told() == []
    program.kick("q")
    assert told(1) == ["q"]
    program.apply(Step(started(program).reservation, Delete()))
    assert told() == []


def test_what_is_pushed_in_the_callers_transaction_is_told_at_its_commit(
    program: DatabaseBackend, told: Callable[..., list[str]]
) -> None:
    raw = str(program.database.url.set(drivername="postgresql"))
    push(program)
    assert told(1) == ["q"]
    with psycopg.connect(raw) as connection:
        for _ in range(2):
            program.within(connection).apply(Step(None, Push("q", b"2")))
            assert told() == []
            push(program, queue="other")  # a silence ends nothing here
            assert told(1) == ["other"]
        connection.commit()
        assert told(1) == ["q"]
        program.within(connection).apply(Step(None, Push("q", b"3")))
        connection.rollback()
    assert told() == []


def test_who_has_a_job_does_not_listen(
    postgres_running: PostgresServer, worker: DatabaseBackend, program: DatabaseBackend
) -> None:
    waited(worker, 0.01)
    assert listens(postgres_running, worker)
    assert not worker.reserve(["q"])[0]
    assert listens(postgres_running, worker), "it found nothing"
    push(program)
    assert worker.reserve(["q"])[0]
    assert not listens(postgres_running, worker)
    waited(worker, 0.01)
    assert listens(postgres_running, worker)


def test_long_names_have_a_channel_of_their_own() -> None:
    assert channel_of("queue.jobs") == "qframe:queue.jobs"
    names = {channel_of("x" * 63), channel_of("x" * 64), channel_of("é" * 40)}
    assert len(names) == 3
    assert all(len(name.encode()) <= 63 for name in names)


# -- nothing is missed ----------------------------------------------------------------------------


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let a sender be silent for longer than a busy machine takes to push."""
    seconds = 0.2
    monkeypatch.setattr("qframe.drivers.database.listen.SILENCE", seconds)
    monkeypatch.setattr("qframe.drivers.database.wait._SILENCE", seconds + 0.001)
    return seconds


def test_no_job_waits_for_a_wake_up_that_was_not_sent(
    another: Opener, relies: None, silence: float
) -> None:
    """Bursts from several senders, each silent after the first of its own; no look helps later."""
    senders, takers, rounds = 3, 3, 12
    taken = threading.Semaphore(0)
    slowest = [0.0]
    over = threading.Event()

    def take(backend: DatabaseBackend) -> None:
        while not over.is_set():
            jobs, _ = backend.reserve(["q"])
            for job in jobs:
                slowest.append(time.time() - float(job.raw_body))
                backend.apply(Step(job, Delete()))
                taken.release()
            if not jobs:
                backend.wait(["q"], LONG / 2)
        backend.close()

    threads = [threading.Thread(target=take, args=(another(),)) for _ in range(takers)]
    for thread in threads:
        thread.start()
    sending = [another() for _ in range(senders)]
    chance = random.Random(13)
    for _ in range(rounds):
        pushes = chance.randint(2, 6)
        for _ in range(pushes):
            push(chance.choice(sending), repr(time.time()).encode())
            time.sleep(chance.choice([0, 0, silence / 4, silence]))
        assert all(taken.acquire(timeout=LONG) for _ in range(pushes))
    over.set()
    for each in sending:
        push(each, repr(time.time()).encode())
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert max(slowest) < LONG / 10


def test_what_nobody_told_of_is_found_and_looked_for_more_often(
    worker: DatabaseBackend, another: Opener
) -> None:
    php = another(listen=False)
    with pushed_soon(php):
        assert waited(worker) < LONG / 2
    before = worker._watch._unnotified_at  # type: ignore[attr-defined]
    assert time.monotonic() - before < LONG / 2, "it was found by a look"
    assert worker.reserve(["q"])[0]


def test_a_job_that_somebody_has_locked_is_not_asked_for_again_and_again(
    worker: DatabaseBackend, program: DatabaseBackend
) -> None:
    push(program)
    raw = str(program.database.url.set(drivername="postgresql"))
    with psycopg.connect(raw) as connection:
        connection.execute("SELECT * FROM jobs FOR UPDATE")
        asked, begun = 0, time.monotonic()
        while time.monotonic() - begun < 1:
            assert not worker.reserve(["q"])[0]
            waited(worker, 1)
            asked += 1
        assert asked <= 7 + 4 + 1, "after 0, 2, 6, 14, 30, 62, 126 ms, then each 250 ms"
    assert worker.reserve(["q"])[0]


# -- a listener that is lost ----------------------------------------------------------------------


def test_a_connection_that_is_ended_listens_again(
    postgres_running: PostgresServer,
    worker: DatabaseBackend,
    program: DatabaseBackend,
    relies: None,
) -> None:
    with worker.database.session() as session:
        session.cursor.execute("SELECT pg_backend_pid()")
        (number,) = session.cursor.fetchone()
    with Soon(lambda: postgres_running.sql("select pg_terminate_backend(%s)", number)):
        assert waited(worker) < LONG / 2
    assert not worker.reserve(["q"])[0], "it has another connection"
    with pushed_soon(program):
        assert waited(worker) < LONG / 2


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HALF_CLOSE])
def test_a_connection_that_is_cut_listens_again(
    postgres_running: PostgresServer,
    another: Opener,
    program: DatabaseBackend,
    relies: None,
    mode: Mode,
) -> None:
    with Proxy("127.0.0.1", postgres_running.port) as proxy:
        worker = another(proxy.port)
        worker.reserve(["q"])
        with Soon(lambda: proxy.switch(mode)):
            assert waited(worker) < LONG / 2
        proxy.switch(Mode.PASS)
        assert not worker.reserve(["q"])[0]
        with pushed_soon(program):
            assert waited(worker) < LONG / 2
        worker.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
@pytest.mark.parametrize(("query", "seconds"), [("", 20), ("?tcp_user_timeout=3000", 3)])
def test_a_server_that_vanished_is_noticed_by_the_system(
    another: Opener, query: str, seconds: float
) -> None:
    """Nobody can let a machine vanish here: what is asked of the system is looked at."""
    url = another().database.url.render_as_string(hide_password=False)
    backend = DatabaseBackend("here", DatabaseSettings(url=url + query))
    with backend.database.session() as session:
        line = socket.socket(fileno=os.dup(session.cursor.connection.pgconn.socket))
    with line:
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == seconds * 1000
    backend.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_a_mariadb_that_vanished_is_noticed_by_the_system(mariadb_running: MariadbServer) -> None:
    backend = DatabaseBackend("here", DatabaseSettings(url=mariadb_running.prepared()))
    with backend.database.session() as session:
        line = session.cursor.connection._sock
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    backend.close()


# -- where nothing can be told --------------------------------------------------------------------


@pytest.fixture
def bouncer(postgres_running: PostgresServer, tmp_path: Path) -> Iterator[PgbouncerServer]:
    with PgbouncerServer(tmp_path, postgres_running) as running:
        yield running


def test_behind_a_pooler_a_worker_looks(
    another: Opener,
    program: DatabaseBackend,
    bouncer: PgbouncerServer,
    postgres_running: PostgresServer,
) -> None:
    worker = another(bouncer.port)
    with pushed_soon(program) as push_of_another:
        assert waited(worker) < LONG / 2
        assert push_of_another.begun
    assert not listens(postgres_running, worker), "it would be lost"
    assert worker.reserve(["q"])[0]


def test_what_is_pushed_through_a_pooler_is_told(
    another: Opener, worker: DatabaseBackend, bouncer: PgbouncerServer, relies: None
) -> None:
    with pushed_soon(another(bouncer.port)):
        assert waited(worker) < LONG / 2
    assert worker.reserve(["q"])[0]


def test_listening_can_be_turned_off(
    postgres_running: PostgresServer, another: Opener, told: Callable[..., list[str]]
) -> None:
    quiet = another(listen=False)
    push(quiet)
    assert told() == []
    quiet.reserve(["q"])
    waited(quiet, 0.01)
    assert not listens(postgres_running, quiet)


def test_pauses_grow_with_the_time_since_the_last_job(another: Opener) -> None:
    watch = another(listen=False)._watch
    assert isinstance(watch, ServerWatch)
    now = time.monotonic()
    watch._found = now
    pauses = [watch._pause(now + seconds) for seconds in (0, 0.1, 1, 10, 1000)]
    assert pauses == pytest.approx([0.002, 0.002, 0.01, 0.1, 0.25])


@pytest.mark.parametrize("listen", ["auto", False])
def test_an_idle_worker_asks_a_few_times_a_second(
    postgres_running: PostgresServer, another: Opener, listen: object
) -> None:
    worker = another(listen=listen)
    waited(worker, 0.01)
    before = _transactions(postgres_running, worker)
    took = waited(worker, 1.0) + waited(worker, 1.0)
    assert took >= 2
    asked = _transactions(postgres_running, worker) - before
    assert asked <= 5 * took + 8  # opening a connection takes some


def _transactions(postgres: PostgresServer, backend: DatabaseBackend) -> int:
    """Count the transactions of a database; a look is one. Closing tells the server's count."""
    backend.close()
    time.sleep(0.1)
    asked = "select xact_commit from pg_stat_database where datname = %s"
    return int(postgres.sql(asked, backend.database.url.database)[0][0])


def test_notifying_never_fails_a_push(
    postgres_running: PostgresServer, another: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy("127.0.0.1", postgres_running.port) as proxy:
        program = another(proxy.port)
        push(program, queue="warm")
        notify = Notifier.notify

        def cut_before(self: Notifier, queues: object) -> None:
            proxy.switch(Mode.CUT)
            notify(self, ["q"])

        monkeypatch.setattr(Notifier, "notify", cut_before)
        push(program)
        monkeypatch.undo()
        proxy.switch(Mode.PASS)
        assert program.sizes("q").ready == 1
        program.close()
