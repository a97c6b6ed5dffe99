"""Connections that the server ends: the next call opens another, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qframe.contracts.step import APPLIED, Delete, Expect, Push, Result, Set, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.errors import ConnectionLost
from qframe.drivers.database.link import Link
from qframe.drivers.database.settings import DatabaseSettings
from tests.support.mariadb_server import MariadbServer
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer
from tests.support.process import wait_for
from tests.support.sql_server import SqlServer

PUSH = Step(None, Push("q", b"1"))
MARKED = Step(None, Expect("lock", None), Set("lock", "mine"), Push("q", b"1"))
MANY = 8
"""So many calls, and their statements are prepared."""
_SESSIONS = {
    "PostgreSQL": "select pid from pg_stat_activity where application_name = 'qframe'",
    "MariaDB": "select id from information_schema.processlist where user = 'qframe'",
}


class Place:
    """A backend, and what ends its connections."""

    def __init__(self, server: SqlServer, end: Callable[[], object], url: str = "") -> None:
        settings = DatabaseSettings(url=url or server.prepared())
        self.backend = DatabaseBackend("here", settings)
        self._server = server
        self._end = end

    def end(self) -> None:
        """Have the server end all connections, and wait until it has."""
        self._end()
        wait_for(lambda: self._is_over(_SESSIONS[self._server.name]), "the end of the connections")

    def _is_over(self, sessions: str) -> bool:
        try:
            return not self._server.sql(sessions)
        except psycopg.Error:  # on a busy machine the session that asks is ended for idling, too
            return False


def _by_idle_session_timeout(folder: Path) -> Iterator[Place]:
    with PostgresServer(folder) as server:
        place = Place(server, lambda: None)
        # Not before: a busy machine leaves who prepares the database idle for longer.
        server.sql("alter system set idle_session_timeout = 100")
        server.sql("select pg_reload_conf()")
        yield place


def _by_terminate(folder: Path) -> Iterator[Place]:
    with PostgresServer(folder) as server:
        sessions = f"({_SESSIONS['PostgreSQL']})"
        yield Place(
            server,
            lambda: server.sql(f"select pg_terminate_backend(pid) from {sessions} as found"),
        )


def _by_restart(folder: Path) -> Iterator[Place]:
    with PostgresServer(folder) as server:
        yield Place(server, server.restart)


def _by_pgbouncer(folder: Path) -> Iterator[Place]:
    with PostgresServer(folder) as server, PgbouncerServer(folder / "pooler", server) as bouncer:
        url = server.prepared().replace(f":{server.port}/", f":{bouncer.port}/")

        def end() -> None:
            bouncer.sql("kill qframe", database="pgbouncer")
            bouncer.sql("resume qframe", database="pgbouncer")

        yield Place(server, end, url)


def _by_wait_timeout(folder: Path) -> Iterator[Place]:
    with MariadbServer(folder) as server:
        url = server.prepared()
        server.sql("SET GLOBAL wait_timeout = 1")
        yield Place(server, lambda: None, url)


def _by_kill(folder: Path) -> Iterator[Place]:
    with MariadbServer(folder) as server:

        def end() -> None:
            for (number,) in server.sql(_SESSIONS["MariaDB"]):
                server.sql(f"kill {number}")

        yield Place(server, end)


def _by_restart_of_mariadb(folder: Path) -> Iterator[Place]:
    with MariadbServer(folder) as server:
        yield Place(server, server.restart)


WAYS = [
    _by_idle_session_timeout,
    _by_terminate,
    _by_restart,
    _by_pgbouncer,
    _by_wait_timeout,
    _by_kill,
    _by_restart_of_mariadb,
]


_QUICK = {_by_idle_session_timeout, _by_pgbouncer, _by_kill}


@pytest.fixture(
    params=[
        pytest.param(
            way,
            id=way.__name__.removeprefix("_by_"),
            marks=[] if way in _QUICK else [pytest.mark.slow],
        )
        for way in WAYS
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "server"
    (folder / "pooler").mkdir(parents=True)
    for made in request.param(folder):
        with closing(made.backend):
            yield made


@pytest.fixture(
    params=[pytest.param(True, marks=[pytest.mark.slow]), False], ids=["seen", "unseen"]
)
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it seen before the call that a connection has ended, or only by its statement."""
    if not request.param:
        monkeypatch.setattr(Link, "is_stale", False)


@pytest.mark.usefixtures("seen")
def test_no_call_after_it_raises_and_none_counts_twice(place: Place) -> None:
    backend = place.backend
    for _ in range(MANY):
        backend.apply(PUSH)
    calls: list[Callable[[], object]] = [
        lambda: backend.apply(PUSH),
        lambda: backend.apply(MARKED),
        lambda: backend.apply(PUSH, PUSH),
        lambda: backend.sizes("q"),
        lambda: backend.read("lock"),
        lambda: backend.find_failed("none"),
        lambda: backend.wait(["q"], 0.0),
    ]
    for call in calls:
        place.end()
        call()
    assert backend.sizes("q").ready == MANY + 4
    assert backend.read("lock") == ["mine"]


@pytest.mark.usefixtures("seen")
def test_a_job_goes_on_whose_worker_lost_its_connection(place: Place) -> None:
    backend = place.backend
    backend.apply(PUSH, PUSH)
    place.end()
    (first, second), _ = backend.reserve(["q"], 2)
    heard: list[list[Result]] = []
    place.end()
    backend.apply_async([Step(first, Start(60))], heard.append)
    place.end()
    backend.read_replies()
    place.end()
    backend.apply_async([Step(first, Delete()), Step(second, Start(60))], heard.append)
    place.end()
    heard.append(backend.apply(Step(second, Delete())))
    assert heard == [[APPLIED], [APPLIED, APPLIED], [APPLIED]]
    assert backend.sizes("q").total == 0


def test_a_transaction_that_the_server_ends_for_being_idle(tmp_path: Path) -> None:
    config = ["idle_in_transaction_session_timeout = 100"]
    idle = "select 1 from pg_stat_activity where state = 'idle in transaction'"
    with PostgresServer(tmp_path, config=config) as server:
        backend = DatabaseBackend("here", DatabaseSettings(url=server.prepared()))
        with closing(backend), closing(backend.outbox()) as outbox:
            outbox.add("elsewhere", ["[]"])

            def relay_slowly() -> None:
                with outbox.claim("elsewhere") as claim:
                    assert claim is not None
                    wait_for(lambda: not server.sql(idle), "the end of the transaction", 60)
                    claim.remove([claim.rows[0].id])

            with pytest.raises(ConnectionLost):
                relay_slowly()
            with outbox.claim("elsewhere") as claim:
                assert claim is not None
                claim.remove([each.id for each in claim.rows])
            assert outbox.receivers() == []
