"""The tables on PostgreSQL and MariaDB: made, upgraded, and by many processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Add, Arrive, Close, Extend, Open, Push, Record, Set, Start, Step
from qframe.contracts.tables import Change
from qframe.drivers.database import changes, migrate
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.support.sql_server import SqlServer

ROOT = Path(__file__).resolve().parents[3]
LARAVEL = {
    # What Schema::create of Laravel 10 to 12 says, and of 13.
    ("PostgreSQL", 10): """
        create table jobs (id bigserial not null primary key, queue varchar(255) not null,
            payload text not null, attempts smallint not null, reserved_at integer null,
            available_at integer not null, created_at integer not null);
        create index jobs_queue_index on jobs (queue);
        create table failed_jobs (id bigserial not null primary key, uuid varchar(255) not null,
            connection text not null, queue text not null, payload text not null,
            exception text not null,
            failed_at timestamp(0) without time zone not null default CURRENT_TIMESTAMP);
        alter table failed_jobs add constraint failed_jobs_uuid_unique unique (uuid)""",
    ("MariaDB", 10): """
        create table jobs (id bigint unsigned not null auto_increment primary key,
            queue varchar(255) not null, payload longtext not null,
            attempts tinyint unsigned not null, reserved_at int unsigned null,
            available_at int unsigned not null, created_at int unsigned not null)
            default character set utf8mb4 collate 'utf8mb4_unicode_ci';
        alter table jobs add index jobs_queue_index(queue);
        create table failed_jobs (id bigint unsigned not null auto_increment primary key,
            uuid varchar(255) not null, connection text not null, queue text not null,
            payload longtext not null, exception longtext not null,
            failed_at timestamp not null default CURRENT_TIMESTAMP)
            default character set utf8mb4 collate 'utf8mb4_unicode_ci';
        alter table failed_jobs add unique failed_jobs_uuid_unique(uuid)""",
}
for name in ("PostgreSQL", "MariaDB"):
    later = LARAVEL[name, 10].replace("attempts tinyint", "attempts smallint")
    for column in ("connection", "queue"):
        later = later.replace(f"{column} text", f"{column} varchar(255)")
    LARAVEL[name, 13] = (
        later + "; create index failed_jobs_connection_queue_failed_at_index"
        " on failed_jobs (connection, queue, failed_at)"
    )
ROWS = """
    insert into jobs (queue, payload, attempts, reserved_at, available_at, created_at)
        values ('a', '{"uuid": "1"}', {attempts}, null, 1700000000, 1700000000);
    insert into failed_jobs (uuid, connection, queue, payload, exception, failed_at) values
        ('u3', 'database', 'a', '{"displayName": "App.Mail"}', 'Exception: no',
         '2024-01-02 03:04:05')
"""
AT_ONCE = """
import json, os, sys, time
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.backend import DatabaseBackend

count, values = int(sys.argv[1]), json.loads(sys.argv[2])
DatabaseBackend("here", DatabaseSettings.model_validate(values)).migration(ask=False)
moment, answers = time.monotonic() + 0.3, []
for _ in range(count):
    answer, told = os.pipe()
    answers.append(answer)
    if os.fork() == 0:
        said = "died"
        try:
            backend = DatabaseBackend("here", DatabaseSettings.model_validate(values))
            time.sleep(max(0, moment - time.monotonic()))
            said = [change.what for change in backend.migrate()]
        finally:
            os.write(told, json.dumps(said).encode())
            os._exit(0)
    os.close(told)
print(json.dumps([json.loads(os.read(answer, 65536)) for answer in answers]))
"""

Opener = Callable[..., DatabaseBackend]


@pytest.fixture(params=["postgres_running", "mariadb_running"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(server: SqlServer) -> str:
    """Give the URL of an empty database."""
    return server.database()


@pytest.fixture
def opened(url: str, request: pytest.FixtureRequest) -> Opener:
    """Open a backend on the database."""

    def open_one(**settings: Any) -> DatabaseBackend:
        settings = {"url": url, **settings}
        backend = DatabaseBackend("here", DatabaseSettings.model_validate(settings))
        request.addfinalizer(backend.close)
        return backend

    return open_one


def run(url: str, script: str) -> None:
    """Run statements that a semicolon parts."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.exec_driver_sql(statement)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def described(url: str, schema: str | None = None) -> dict[str, Any]:
    """Give all there is to be known of the tables of a database."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    found: dict[str, Any] = {}
    with engine.connect() as connection:
        look = sa.inspect(connection)
        for table in look.get_table_names(schema):
            columns = {
                each["name"]: (repr(each["type"]), each["nullable"], each["default"])
                for each in look.get_columns(table, schema)
            }
            indexes = sorted(repr(each) for each in look.get_indexes(table, schema))
            keys = look.get_pk_constraint(table, schema)["constrained_columns"]
            options = None
            if engine.dialect.name == "postgresql":
                where = "SELECT reloptions FROM pg_class WHERE oid = to_regclass(:name)"
                name = f"{schema}.{table}" if schema else table
                options = connection.execute(sa.text(where), {"name": name}).scalar()
            else:
                options = look.get_table_options(table, schema)
            found[table] = (columns, indexes, keys, options)
    return found


def named(done: list[Change]) -> list[str]:
    return [change.what for change in done]


def runs(backend: DatabaseBackend) -> None:
    """Do something in every table."""
    backend.apply(Step(None, Push("a", b'{"uuid": "2"}')), Step(None, Push("a", b"later", 60.0)))
    (job,), _ = backend.reserve(["a"])
    assert backend.apply(Step(job, Start(60.0)))[0].applied
    assert backend.adopt(job.fence) is not None
    record = FailedJob("u", "here", "a", b"{}", "no", "x", 1, History(), 1795402959.0)
    together = (Set("k", "v", 60.0), Add("n", 2, 60.0), Add("n", 3, 60.0), Record(record))
    latch = (Open("l", Push("done", b"then")), Extend("l", 1), Arrive("l", 0), Close("l"))
    steps = (Step(None, each) for each in (*together, *latch))
    results = backend.apply(*steps, job.delete())
    assert all(result.applied for result in results)
    assert backend.read("k", "n") == ["v", "5"]
    assert [found for found, _ in backend.scan("")] == ["k", "n"]
    assert backend.find_failed("u") == record
    assert backend.queues() == ["a", "done"]
    assert backend.sizes("a").delayed == 1
    assert len(backend.search("a", b"later")) == 1
    assert backend.purge("a") == 1


# -- made -----------------------------------------------------------------------------------------


def test_they_are_made_once(opened: Opener) -> None:
    assert "created the table jobs" in named(opened().migrate())
    assert opened().migrate() == []
    assert opened().migration() == []
    runs(opened())


def test_without_them_it_is_one_line(opened: Opener, server: SqlServer) -> None:
    backend = opened()
    for act in (
        lambda: backend.apply(Step(None, Push("a", b"{}"))),
        lambda: backend.reserve(["a"]),
        lambda: backend.read("k"),
        backend.check,
    ):
        with pytest.raises(BackendUnusable, match=r"has no table .*: run `qframe migrate`$"):
            act()
    backend.migrate()
    runs(backend)


def test_a_column_of_a_later_version_is_one_line(opened: Opener, url: str) -> None:
    backend = opened()
    backend.migrate()
    run(url, "alter table failed_jobs drop column history")
    for act in (backend.list_failed, backend.check):
        with pytest.raises(BackendUnusable, match=r"has no column .*history.*: run `qframe migr"):
            act()
    assert named(backend.migrate()) == ["added failed_jobs.history"]
    assert backend.list_failed() == []


def test_an_index_that_is_missing_is_a_warning(opened: Opener, url: str) -> None:
    backend = opened()
    backend.migrate()
    assert not any("qframe migrate" in each for each in backend.check().warnings)
    run(url, "drop index jobs_due_at" + (" on jobs" if "mysql" in url or "maria" in url else ""))
    assert any("run `qframe migrate`" in each for each in backend.check().warnings)
    assert named(backend.migrate()) == ["created the index jobs_due_at"]


def test_an_index_of_no_more_use_is_dropped(
    opened: Opener, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().migrate()
    before = described(url)
    run(url, "create index jobs_old on jobs (queue, created_at)")
    run(url, "create index jobs_somebodys on jobs (queue, created_at)")
    monkeypatch.setattr(changes, "FORMER_INDEXES", ("old",))
    assert named(opened().migrate()) == ["dropped the index jobs_old"]
    run(url, "create index jobs_old on jobs (queue, created_at)")
    run(url, ";".join(change.sql for change in opened().migration(ask=False) or ()))
    run(url, "drop index jobs_somebodys" + ("" if "postgres" in url else " on jobs"))
    assert described(url) == before


def test_in_a_schema_of_choice(opened: Opener, url: str, server: SqlServer) -> None:
    schema = f"{url.rpartition('/')[2]}_q"
    backend = opened(schema=schema)
    with pytest.raises(BackendUnusable, match=rf"has no table {schema}\.jobs"):
        backend.sizes("a")
    assert named(backend.migrate())[1:3] == [
        f"created the table {schema}.failed_jobs", f"created the table {schema}.jobs",
    ]  # fmt: skip
    assert backend.migrate() == []
    runs(backend)
    assert described(url) == {}
    assert {*described(url, schema)} == {*backend.tables()}
    opened().migrate()
    backend.apply(Step(None, Push("a", b"{}")))
    assert (backend.sizes("a").ready, opened().sizes("a").ready) == (1, 0)


def test_names_that_must_be_quoted(opened: Opener) -> None:
    names = {"table": "Order", "fact_table": "select", "failed_table": "My_Failed"}
    backend = opened(**names)
    backend.migrate()
    assert backend.migrate() == []
    runs(backend)


# -- by many --------------------------------------------------------------------------------------


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("count", "laravel"),
    [(8, False), *(pytest.param(*each, marks=SLOW) for each in ((2, False), (2, True), (8, True)))],
)
def test_processes_at_once(url: str, server: SqlServer, count: int, *, laravel: bool) -> None:
    values = {"url": url, **({} if laravel else {"schema": f"{url.rpartition('/')[2]}_q"})}
    if laravel:
        run(url, LARAVEL[server.name, 10])
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, str(count), json.dumps(values)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert len(said) == count, done.stderr
    assert sorted(map(len, said))[:-1] == [0] * (count - 1), said
    assert DatabaseBackend("here", DatabaseSettings.model_validate(values)).migrate() == []


def test_a_long_transaction_is_waited_for_only_so_long(
    opened: Opener, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().migrate()
    run(url, "alter table jobs drop column notes")
    monkeypatch.setattr(migrate, "_PATIENCE", 1)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as busy:
        busy.exec_driver_sql("select * from jobs")
        with pytest.raises(BackendUnavailable, match="is in use by a transaction of others"):
            opened().migrate()
    assert named(opened().migrate()) == ["added jobs.notes"]


# -- Laravel's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [10, 13])
def test_tables_of_laravel_are_upgraded(
    opened: Opener, url: str, server: SqlServer, version: int
) -> None:
    run(url, LARAVEL[server.name, version])
    run(url, ROWS.replace("{attempts}", "255"))
    theirs = described(url)
    done = named(opened().migrate())
    assert any(each.endswith("widened jobs.attempts") for each in done)
    assert "created the table jobs" not in done
    assert opened().migrate() == []
    after = described(url)
    for table, (columns, indexes, keys, _) in theirs.items():
        now = after[table]
        for column, what in columns.items():
            assert now[0][column] == what or (table, column) == ("jobs", "attempts")
        assert all(new[1] for name, new in now[0].items() if name not in columns)
        assert {*indexes} <= {*now[1]}
        assert keys == now[2]
    backend = opened()
    (job,), _ = backend.reserve(["a"])
    assert (job.raw_body, job.attempts) == (b'{"uuid": "1"}', 255)
    assert backend.apply(Step(job, Start(60.0)))[0].applied
    assert rows(url, "select attempts from jobs") == [(256,)]
    (record,) = backend.list_failed()
    assert (record.uuid, record.name) == ("u3", "App.Mail")
    assert record.failed_at == 1704164645.0
    backend.apply(job.delete())
    runs(backend)
    run(url, ROWS.replace("{attempts}", "0").replace("u3", "u4"))  # Laravel goes on
    assert len(backend.reserve(["a"])[0]) == 1


def test_laravel_writes_to_tables_of_ours(opened: Opener, url: str) -> None:
    backend = opened()
    backend.migrate()
    run(url, ROWS.replace("{attempts}", "0"))
    (job,), _ = backend.reserve(["a"])
    assert job.raw_body == b'{"uuid": "1"}'
    assert backend.list_failed()[0].uuid == "u3"


@pytest.mark.parametrize("version", [10, *(pytest.param(no, marks=SLOW) for no in (0, 13))])
def test_the_printed_sql_does_what_migrate_does(
    opened: Opener, server: SqlServer, version: int
) -> None:
    found = []
    for ask, times in ((None, 1), (True, 1), (False, 1), (False, 2)):
        url = server.database()
        run(url, LARAVEL.get((server.name, version), ""))
        backend = opened(url=url)
        if ask is None:
            backend.migrate()
        else:
            run(url, ";".join(change.sql for change in (backend.migration(ask=ask) or []) * times))
        found.append(described(url))
    assert found[1:] == found[:1] * 3
