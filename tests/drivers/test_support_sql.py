"""The private SQL servers that other tests stand on do what they are asked for."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.support.mariadb_server import MariadbServer
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer
from tests.support.sql_server import SqlServer, wait_until


@pytest.fixture(params=["postgres", "mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def running(request: pytest.FixtureRequest, kind: str) -> SqlServer:
    server: SqlServer = request.getfixturevalue(f"{kind}_running")
    return server


@pytest.fixture
def own(request: pytest.FixtureRequest, kind: str) -> SqlServer:
    server: SqlServer = request.getfixturevalue(f"own_{kind}")
    return server


def test_the_user_of_a_url_can_make_tables_and_empty_forgets_their_rows(running: SqlServer) -> None:
    one, two = running.database(), running.database()
    engine = create_engine(one)
    with engine.begin() as connection:
        connection.execute(text("create table here (a int)"))
        connection.execute(text("insert into here values (1)"))
        assert connection.execute(text("select * from here")).all() == [(1,)]
    other = create_engine(two)
    with other.begin() as connection:
        connection.execute(text("create table here (a int)"))
    name = one.rpartition("/")[2]
    running.empty(name)
    assert running.sql("select * from here", database=name) == []
    assert running.sql("select %s + 1", 1) == [(2,)]
    engine.dispose()
    other.dispose()


def test_what_was_committed_is_there_after_a_kill_and_a_restart(own: SqlServer) -> None:
    own.sql("create table here (a int)")
    own.sql("insert into here values (1)")
    pid, port = own.pid, own.port
    engine = create_engine(own.url)
    with engine.connect():  # somebody is connected
        own.kill()
    assert not own.alive()
    assert not own.answers()
    own.start()
    assert (own.port, own.sql("select a from here")) == (port, [(1,)])
    assert own.pid != pid
    own.restart()
    assert own.sql("select a from here") == [(1,)]
    engine.dispose()


def test_a_paused_server_answers_nobody_until_it_goes_on(own_postgres: PostgresServer) -> None:
    server = own_postgres
    where = f"host=127.0.0.1 port={server.port} user=qframe dbname=qframe"
    with psycopg.connect(where, autocommit=True) as connection:
        server.pause()
        connection.pgconn.send_query(b"select 1")
        connection.pgconn.flush()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(where, connect_timeout=2)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        server.resume()
        results = iter(connection.pgconn.get_result, None)
        assert [each.get_value(0, 0) for each in results] == [b"1"]
    server.pause()
    server.stop()
    assert not server.alive()


def test_a_server_that_cannot_start_says_why(tmp_path: Path, kind: str) -> None:
    made = {"postgres": PostgresServer, "mariadb": MariadbServer}[kind]
    server = made(tmp_path, config=["no_such_setting=1"])
    with pytest.raises(AssertionError, match="no_such_setting"):
        server.start()


def test_lines_of_configuration_go_before_the_fast_ones(tmp_path: Path) -> None:
    with MariadbServer(tmp_path / "m", config=["innodb_snapshot_isolation=ON"]) as server:
        assert server.sql("select @@innodb_snapshot_isolation") == [(1,)]
    with PostgresServer(tmp_path / "p", config=["fsync=on"]) as postgres:
        assert postgres.sql("show fsync") == [("on",)]


def test_a_synchronous_standby_has_what_was_committed_and_is_promoted(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    own_postgres.sql("create table here (a int)")
    with own_postgres.standby(tmp_path / "standby", synchronous=True) as standby:
        own_postgres.sql("insert into here values (1)")
        own_postgres.kill()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.sql("insert into here values (2)")
        standby.promote()
        standby.sql("insert into here values (2)")
        assert standby.sql("select a from here order by a") == [(1,), (2,)]


def test_a_pooler_is_reached_as_the_server_is(
    postgres_running: PostgresServer, tmp_path: Path
) -> None:
    with PgbouncerServer(tmp_path, postgres_running) as pooler:
        engine = create_engine(pooler.url, connect_args={"prepare_threshold": None})
        with engine.connect() as connection:
            assert connection.execute(text("select 1")).all() == [(1,)]
        engine.dispose()
        modes = {row[-1] for row in pooler.sql("show pools", database="pgbouncer")}
        assert modes >= {"transaction"}
        wait_until(pooler.alive, "it to live on")
