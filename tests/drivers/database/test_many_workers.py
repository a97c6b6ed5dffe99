"""Many workers on one queue: no deadlock, no error shown, few connections; none is left to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.process import wait_for
from tests.support.projects import DatabaseProject, wait_for_line
from tests.support.sql_server import SqlServer

_WORKERS = 8
_EACH = 2
"""Connections of a worker: that of its loop, and that of the thread which renews leases."""
_JOBS = 2000
_DISPATCH = f"""
from qframe import bulk
from jobs import Note, Release
for first in range(0, {_JOBS}, 100):
    bulk([Note(word=str(n)) for n in range(first, first + 100)])
bulk([Release(times=1) for n in range(100)])
"""
_SESSIONS = {
    "PostgreSQL": "select count(*) from pg_stat_activity where application_name = 'qframe'",
    "MariaDB": "select count(*) from information_schema.processlist where user = 'qframe'",
}
_DEADLOCKS = {
    "PostgreSQL": "select sum(deadlocks) from pg_stat_database",
    "MariaDB": "select variable_value + 0 from information_schema.global_status "
    "where variable_name = 'Innodb_deadlocks'",
}


@pytest.fixture(params=["own_postgres", pytest.param("own_mariadb", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def project(server: SqlServer, tmp_path: Path) -> Iterator[DatabaseProject]:
    with DatabaseProject(tmp_path / "app", url=server.prepared()) as made:
        yield made


def _count(server: SqlServer, what: dict[str, str]) -> int:
    return int(server.sql(what[server.name])[0][0])


def test_eight_workers_on_one_queue(server: SqlServer, project: DatabaseProject) -> None:
    before = _count(server, _DEADLOCKS)
    workers = [project.work("--tries", 2) for _ in range(_WORKERS)]
    sent = project.python(_DISPATCH)
    assert sent.code == 0, sent.err
    wait_for(project.empty, "the end of the jobs", 60)
    assert _count(server, _SESSIONS) <= _EACH * _WORKERS + 1  # ours, that looks whether it is empty
    assert project.stop(workers) == [0] * _WORKERS
    assert Counter(project.done()) == Counter(map(str, range(_JOBS)))
    assert len(project.notes("end")) == 100
    for worker in workers:
        assert worker.err == ""
        kinds = {line.split()[-1] for line in worker.out.splitlines() if "...." in line}
        assert kinds <= {"DONE", "RELEASED"}
    assert _count(server, _DEADLOCKS) == before
    assert project.failed() == []


# -- a server without a free connection -----------------------------------------------------------


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlServer]:
    """Give a server of six connections, one or more of which are the administrator's."""
    config = ["max_connections=6"]
    made: SqlServer = (
        PostgresServer(tmp_path / "server", config=config)
        if request.param == "postgres"
        else MariadbServer(tmp_path / "server", config=config)
    )
    with made:
        yield made


def _connected(server: SqlServer) -> Any:
    url = make_url(server.url)
    words: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username}
    connect: Any = psycopg.connect if server.name == "PostgreSQL" else pymysql.connect
    return connect(**words)


def test_a_worker_waits_for_a_free_connection(small: SqlServer, tmp_path: Path) -> None:
    with DatabaseProject(tmp_path / "app", url=small.prepared()) as project:
        sent = project.python(
            "from qframe import dispatch\nfrom jobs import Note\ndispatch(Note())"
        )
        assert sent.code == 0, sent.err
        project.close()
        with ExitStack() as held:
            with suppress(psycopg.Error, pymysql.Error):
                while True:
                    held.enter_context(closing(_connected(small)))
            refused = project.qframe("size")
            assert (refused.code, "Traceback" in refused.err) == (69, False)
            assert "\n" not in refused.err.strip()
            worker = project.start("work")
            wait_for_line(worker, "database gone: ")
            assert worker.alive()
        project.wait_for_note("note")
        assert worker.stop() == 0
        assert "Traceback" not in worker.out + worker.err
