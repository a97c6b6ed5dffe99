"""Starts that PostgreSQL is told without waiting, whatever becomes of the connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.contracts.backend import Timing
from qframe.contracts.step import (
    APPLIED,
    LOST,
    UNKNOWN,
    Delete,
    Push,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Mode, Proxy

QUEUE = "q"
TIMING = Timing(hold=60)
"""A start is told as long as a third of this has not passed, which a busy machine may let pass."""


@pytest.fixture
def url(postgres_running: PostgresServer) -> str:
    """Give a new database."""
    return postgres_running.database()


@pytest.fixture
def proxy(postgres_running: PostgresServer) -> Iterator[Proxy]:
    """Give a proxy in front of the server."""
    made = Proxy(*postgres_running.address)
    yield made
    made.close()


@pytest.fixture
def backend(url: str, postgres_running: PostgresServer, proxy: Proxy) -> Iterator[DatabaseBackend]:
    """Give a backend behind the proxy."""
    through = url.replace(f":{postgres_running.port}/", f":{proxy.port}/")
    assert through != url
    made = DatabaseBackend("here", DatabaseSettings(url=through, listen=False), TIMING)
    made.migrate()
    yield made
    proxy.switch(Mode.PASS)
    made.close()


def _held(backend: DatabaseBackend, count: int = 1) -> list[Reservation]:
    backend.apply(*(Step(None, Push(QUEUE, b"%d" % n)) for n in range(count)))
    jobs, _ = backend.reserve([QUEUE], count)
    assert [job.raw_body for job in jobs] == [b"%d" % n for n in range(count)]
    return jobs


def _tell(backend: DatabaseBackend, *steps: Step) -> list[Result]:
    heard: list[Result] = []
    backend.apply_async(steps, heard.extend)
    return heard


def _rows(backend: DatabaseBackend) -> list[tuple[int, int]]:
    """Give ids and attempts of all there is."""
    with backend.database.session() as session:
        session.cursor.execute("SELECT id, attempts FROM jobs ORDER BY id")
        return [tuple(row) for row in session.cursor.fetchall()]


def test_it_is_not_waited_for(backend: DatabaseBackend, proxy: Proxy) -> None:
    (job,) = _held(backend)
    proxy.switch(Mode.DELAY, seconds=0.3)
    heard = _tell(backend, Step(job, Start(60)))
    assert (heard, job.started, job.attempts) == ([], True, 1)
    proxy.switch(Mode.PASS)
    assert _rows(backend) == [(1, 1)]
    assert heard == [APPLIED]


def test_one_that_is_done_is_deleted_with_it(backend: DatabaseBackend) -> None:
    done, job = _held(backend, 2)
    _tell(backend, Step(done, Start(60)))
    heard = _tell(backend, Step(done, Delete()), Step(job, Start(60)))
    assert _rows(backend) == [(2, 1)]
    assert heard == [APPLIED, APPLIED]
    assert (done.sure_until, job.sure_until > backend.clock()) == (0.0, True)


def test_what_is_another_s_is_heard_as_lost(backend: DatabaseBackend) -> None:
    done, job = _held(backend, 2)
    with backend.database.session() as session:
        session.cursor.execute("UPDATE jobs SET lease = 'of another'")
    heard = _tell(backend, Step(done, Delete()), Step(job, Start(60)))
    assert _rows(backend) == [(1, 0), (2, 0)]
    assert heard == [LOST, LOST]
    assert (done.sure_until, job.sure_until) == (0.0, 0.0)


@pytest.mark.parametrize("when", ["before the server has it", "after the server did it"])
def test_it_is_said_again_where_no_answer_came(
    backend: DatabaseBackend, proxy: Proxy, when: str
) -> None:
    first, done, job = _held(backend, 3)
    _tell(backend, Step(first, Start(60)))
    _tell(backend, Step(first, Delete()), Step(done, Start(60)))
    assert _rows(backend) == [(2, 1), (3, 0)]
    mode = Mode.CUT_REQUEST if when.startswith("before") else Mode.CUT_AFTER_REQUEST
    proxy.switch(mode, times=1)
    heard = _tell(backend, Step(done, Delete()), Step(job, Start(60)))
    assert _rows(backend) == [(3, 1)]
    assert heard == [APPLIED if when.startswith("before") else UNKNOWN, APPLIED]


@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_a_push_that_is_prepared_counts_once_where_no_answer_came(
    backend: DatabaseBackend, proxy: Proxy, mode: Mode
) -> None:
    often = 8  # more than it takes to be prepared
    for n in range(often):
        backend.apply(Step(None, Push(QUEUE, b"%d" % n)))
    with backend.database.session() as session:
        session.cursor.execute("SELECT name FROM pg_prepared_statements")
        assert ("qframe_0",) in session.cursor.fetchall()
    proxy.switch(mode, times=1)
    assert backend.apply(Step(None, Push(QUEUE, "größer".encode()))) == [APPLIED]
    jobs, _ = backend.reserve([QUEUE], 100)
    assert [job.raw_body.decode() for job in jobs] == [*map(str, range(often)), "größer"]


def test_it_is_said_when_the_server_is_back(own_postgres: PostgresServer) -> None:
    backend = DatabaseBackend("here", DatabaseSettings(url=own_postgres.url), TIMING)
    backend.migrate()
    (job,) = _held(backend)
    heard = _tell(backend, Step(job, Start(60)))
    own_postgres.stop()
    with pytest.raises(BackendUnavailable):
        backend.sizes(QUEUE)
    own_postgres.start()
    assert _rows(backend) == [(1, 1)]
    assert heard == [APPLIED]
    backend.close()


def test_a_closed_backend_has_heard_the_last(backend: DatabaseBackend) -> None:
    (job,) = _held(backend)
    heard = _tell(backend, Step(job, Start(60)))
    backend.close()
    assert heard == [APPLIED]


def test_it_is_waited_for_where_the_lease_may_be_over(backend: DatabaseBackend) -> None:
    (job,) = _held(backend)
    job.sure_until = backend.clock()
    assert _tell(backend, Step(job, Start(60))) == [APPLIED]


def test_nothing_is_prepared_behind_a_pooler(
    postgres_running: PostgresServer, url: str, tmp_path: Path
) -> None:
    name = url.rpartition("/")[2]
    with PgbouncerServer(tmp_path / "pgbouncer", postgres_running) as pooler:
        settings = DatabaseSettings(url=pooler.url_at(database=name))
        one, other = DatabaseBackend("one", settings), DatabaseBackend("other", settings)
        one.migrate()
        for backend in (one, other) * 10:
            (job,) = _held(backend)
            assert _tell(backend, Step(job, Start(60))) == [APPLIED]
            backend.apply(job.delete())
        assert _rows(one) == []
        one.close()
        other.close()
