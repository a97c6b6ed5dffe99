"""What `qframe check` says of a PostgreSQL and a MariaDB that lose or delay jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pymysql
import pytest

from qframe.contracts.backend import Health
from qframe.drivers.database import checks
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from tests.support.mariadb_server import MariadbServer
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer

SAFE = {
    "fsync": "on",
    "full_page_writes": "on",
    "idle_in_transaction_session_timeout": "300000",
    "max_prepared_transactions": "2",
}
DURABLE = ("innodb_flush_log_at_trx_commit=1", "innodb_doublewrite=1")


def health(url: str, **settings: object) -> Health:
    """Check a database anew; its tables are there afterwards."""
    with closing(DatabaseBackend("here", DatabaseSettings(url=url, **settings))) as backend:  # type: ignore[arg-type]
        backend.migrate()
        return backend.check()


def the_one(found: Health) -> str:
    """Give the only warning."""
    (warning,) = found.warnings
    return warning


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Give a PostgreSQL that is set up well."""
    config = [f"{name}={value}" for name, value in SAFE.items()]
    with PostgresServer(tmp_path_factory.mktemp("safe"), config=config) as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Give a new database on it."""
    return postgres.database()


@contextmanager
def setting(server: PostgresServer, url: str, name: str, value: str) -> Iterator[None]:
    """Have a setting in one database."""
    database = url.rsplit("/", 1)[1]
    server.sql(f"alter database {database} set {name} = '{value}'")
    yield
    server.sql(f"alter database {database} reset {name}")


def test_a_postgresql_that_is_set_up_well_has_no_warnings(
    postgres: PostgresServer, url: str
) -> None:
    version = postgres.sql("show server_version")[0][0].split(" ")[0]
    assert health(url) == Health(f"PostgreSQL {version}, {url}")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("synchronous_commit", "off", "synchronous_commit is off: a crash of the server loses"),
        (
            "default_transaction_isolation",
            "serializable",
            "default_transaction_isolation is serializable: claims of several workers conflict",
        ),
        ("idle_in_transaction_session_timeout", "0", "idle_in_transaction_session_timeout is 0: a"),
    ],
)
def test_a_setting_that_is_not_safe(
    postgres: PostgresServer, url: str, name: str, value: str, said: str
) -> None:
    with setting(postgres, url, name, value):
        assert the_one(health(url)).startswith(said)


def test_a_server_that_may_lose_what_it_wrote(postgres_running: PostgresServer) -> None:
    found = health(postgres_running.database()).warnings
    assert [each.split(":")[0] for each in found] == [
        "fsync is off",
        "full_page_writes is off",
        "idle_in_transaction_session_timeout is 0",
    ]


def test_a_transaction_that_was_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_LONG", 0)
    with psycopg.connect(url.replace("+psycopg", "")) as forgotten:
        forgotten.execute("select 1")
        pid = forgotten.info.backend_pid
        said = the_one(health(url))
    assert said.startswith(f"a transaction has been open for 0 minutes (process {pid} of ")
    assert "idle in transaction)" in said
    assert said.endswith(f"pg_terminate_backend({pid}) ends it")


def test_a_transaction_that_was_prepared_and_forgotten(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LONG", 0)
    with closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as other:
        other.execute("begin")
        other.execute("select 1")
        other.execute("create table t (x int)")
        other.execute("prepare transaction 'of nobody'")
        try:
            assert the_one(health(url)).startswith("the transaction of nobody was prepared and")
        finally:
            other.execute("rollback prepared 'of nobody'")


def test_a_replication_slot_that_nobody_reads(postgres: PostgresServer, url: str) -> None:
    postgres.sql("select pg_create_physical_replication_slot('left')")
    try:
        assert the_one(health(url)).startswith("nobody reads the replication slot left: ")
    finally:
        postgres.sql("select pg_drop_replication_slot('left')")


def test_dead_rows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_DEAD", 100)
    health(url)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("alter table jobs set (autovacuum_enabled = off)")
        rows = "select 'q', '{}', 0, 0, 0 from generate_series(1, 300)"
        other.execute(
            f"insert into jobs (queue, payload, attempts, available_at, created_at) {rows}"
        )
        other.execute("delete from jobs where id > 3")
        other.execute("analyze jobs")
    found = health(url).warnings
    assert found[0].startswith("autovacuum is off for jobs: ")
    assert re.match(
        "jobs has 297 dead rows beside \\d: VACUUM it; where they stay, an open", found[1]
    )


def test_tables_that_a_crash_empties(postgres: PostgresServer, url: str) -> None:
    health(url, schema="queue")
    postgres.sql("alter table queue.jobs set unlogged", database=url.rsplit("/", 1)[1])
    said = the_one(health(url, schema="queue"))
    assert said.startswith("queue.jobs is unlogged: a crash of the server empties it, ")


def test_a_server_that_is_almost_full(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_FULL", 0.01)
    assert the_one(health(url)).endswith(
        "of the server's 60 connections are in use: what finds none waits"
    )


def test_a_pooler_of_transactions(postgres: PostgresServer, url: str, tmp_path: Path) -> None:
    health(url)
    with PgbouncerServer(tmp_path, postgres) as bouncer:
        pooled = url.replace(f":{postgres.port}/", f":{bouncer.port}/")
        with closing(DatabaseBackend("here", DatabaseSettings(url=pooled))) as backend:
            assert the_one(backend.check()).startswith("a pooler in transaction mode is between: ")
        quiet = DatabaseSettings(url=pooled, listen=False)
        with closing(DatabaseBackend("here", quiet)) as backend:
            assert backend.check().warnings == ()


def test_a_standby(postgres: PostgresServer, url: str) -> None:
    health(url)
    backend = DatabaseBackend("here", DatabaseSettings(url=url))
    with setting(postgres, url, "default_transaction_read_only", "on"), closing(backend):
        said = the_one(backend.check())
    assert said.startswith("transaction_read_only is on: a standby, or read only: ")


# -- MariaDB ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """Give a MariaDB that writes what it has committed."""
    with MariadbServer(tmp_path_factory.mktemp("safe"), config=DURABLE) as server:
        yield server


@pytest.mark.slow
def test_a_mariadb_that_is_set_up_well_has_no_warnings(mariadb: MariadbServer) -> None:
    url = mariadb.database()
    found = health(url)
    version = mariadb.sql("select version()")[0][0].split("-")[0]
    assert found == Health(f"MariaDB {version}, {url}")


@pytest.mark.slow
def test_what_is_not_safe_on_mariadb(
    mariadb_running: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_PACKET", 2**30)
    monkeypatch.setattr(checks, "_FULL", 0.01)
    url = mariadb_running.database()
    health(url)
    name = url.rsplit("/", 1)[1]
    mariadb_running.sql("alter table qframe_marks engine = Aria", database=name)
    found = health(url).warnings
    assert [each.split(":")[0] for each in found if "Aria" not in each] == [
        "innodb_flush_log_at_trx_commit is 2",
        "innodb_doublewrite is OFF",
        "max_allowed_packet is 16,777,216 bytes",
        found[-1].split(":")[0],
    ]
    assert "qframe_marks is Aria, which has no transactions: use InnoDB" in found
    assert found[-1].endswith("of the server's 60 connections are in use: what finds none waits")


@pytest.mark.slow
def test_a_transaction_that_was_forgotten_on_mariadb(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LONG", 0)
    url = mariadb.database()
    health(url)
    with closing(
        pymysql.connect(
            host="127.0.0.1", port=mariadb.port, user=url.split("//")[1].split("@")[0],
            database=url.rsplit("/", 1)[1],
        )
    ) as forgotten, forgotten.cursor() as cursor:  # fmt: skip
        cursor.execute("start transaction")
        cursor.execute("select * from jobs for update")
        cursor.execute("do sleep(1.1)")
        said = the_one(health(url))
    thread = said.split("thread ")[1].split(")")[0]
    assert said.endswith(f"KILL {thread} ends it")


@pytest.mark.slow
def test_a_binary_log_of_statements(tmp_path: Path) -> None:
    config = (*DURABLE, "log_bin=log", "binlog_format=STATEMENT")
    with MariadbServer(tmp_path, config=config) as server:
        found = health(server.url).warnings
    assert [each.split(":")[0] for each in found] == [
        "sync_binlog is 0",
        "binlog_format is STATEMENT",
    ]
