"""`qframe migrate` where no server is needed: SQLite, what has no tables, what does not answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.console.conftest import Shop

SILENT = '[connections.pg]\ndriver = "database"\nurl = "postgresql://u:secret@127.0.0.1:1/app"\n'
MARIADB = SILENT.replace("pg", "maria").replace("postgresql", "mysql+pymysql")


def test_it_makes_the_tables_once_and_says_so(shop: Shop) -> None:
    said = shop.run("migrate")
    assert (said.code, said.err) == (0, "")
    assert "database: created the table jobs" in said.lines
    assert "database: created the index jobs_due_at" in said.lines
    assert shop.run("migrate").lines == ["database: nothing to do"]
    assert shop.run("migrate", "database").lines == ["database: nothing to do"]


def test_sql_makes_nothing_and_is_what_migrate_does(shop: Shop) -> None:
    said = shop.run("migrate", "--sql")
    assert said.code == 0
    assert not (shop.root / "qframe.sqlite3").exists()
    with closing(sqlite3.connect(":memory:")) as by_hand:
        by_hand.executescript(said.out)
        made = set(by_hand.execute("select name, sql from sqlite_master"))
    shop.run("migrate")
    with closing(sqlite3.connect(shop.root / "qframe.sqlite3")) as file:
        found = set(file.execute("select name, sql from sqlite_master"))
    assert made == found
    assert shop.run("migrate", "--sql").lines == ["-- database: nothing to do"]


def test_what_store_and_failed_name_is_migrated_too(shop: Shop) -> None:
    shop.write(
        "qframe.toml",
        'default = "redis"\nstore.driver = "facts"\nfailed.driver = "database"\n'
        '[connections.facts]\ndriver = "database"\nurl = "sqlite:///facts.sqlite3"\n'
        "[connections.null]\n[connections.beanstalkd]\n",
    )
    said = shop.run("migrate")
    assert said.code == 0
    for name in ("redis", "null", "beanstalkd"):
        assert f"{name}: has no tables" in said.lines
    for name in ("facts", "database"):
        assert f"{name}: created the table qframe_facts" in said.lines


def test_beanstalkd_keeps_things_in_the_connection_database(shop: Shop) -> None:
    shop.write("qframe.toml", 'default = "beanstalkd"')
    assert shop.run("migrate").lines[:2] == [
        "beanstalkd: has no tables", "database: created the table failed_jobs",
    ]  # fmt: skip


def test_a_database_that_does_not_answer_is_one_line_and_holds_up_nobody(shop: Shop) -> None:
    shop.write("qframe.toml", SILENT)
    said = shop.run("migrate")
    assert said.code == 69
    assert "database: created the table jobs" in said.lines
    (line,) = said.err.splitlines()
    assert line.startswith("qframe: pg: the database postgresql://u:***@127.0.0.1:1/app does not")
    assert shop.run("migrate", "pg").code == 69


@pytest.mark.parametrize("configured", [SILENT, MARIADB])
def test_sql_without_a_server_is_everything_and_says_so(shop: Shop, configured: str) -> None:
    shop.write(
        "qframe.toml", f'default = "{"pg" if configured == SILENT else "maria"}"\n{configured}'
    )
    said = shop.run("migrate", "--sql")
    assert said.code == 0
    assert said.lines[0].startswith("-- ")
    assert "so this is everything" in said.lines[0]
    assert "secret" not in said.out + said.err
    for table in ("jobs", "failed_jobs", "qframe_facts", "qframe_latches", "qframe_latch_members"):
        assert f"CREATE TABLE IF NOT EXISTS {table} (" in said.lines
    assert "ADD COLUMN IF NOT EXISTS due BIGINT" in said.out
    assert "CREATE INDEX IF NOT EXISTS" in said.out


def test_the_schema_is_in_every_statement(shop: Shop) -> None:
    shop.write("qframe.toml", SILENT + 'schema = "queue"')
    said = shop.run("migrate", "pg", "--sql")
    assert said.lines[1] == "CREATE SCHEMA IF NOT EXISTS queue;"
    for line in said.lines[2:]:
        if line.startswith(("CREATE TABLE", "ALTER", "CREATE INDEX")):
            assert "queue." in line, line


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        ('[connections.database]\nschema = "queue"', "SQLite has no schema"),
        ('[connections.database]\nschma = "queue"', "did you mean 'schema'"),
        ('[connections.database]\nurl = "sqlite:///shop.py"', "shop.py is not an SQLite database"),
        ('[connections.database]\nurl = "oracle://x"', "not SQLite, PostgreSQL or MariaDB"),
    ],
)
def test_what_is_wrong_is_one_line(shop: Shop, configured: str, words: str) -> None:
    shop.write("qframe.toml", configured)
    said = shop.run("migrate")
    assert said.code == 2
    assert words in said.only()


def test_an_unknown_connection_is_one_line(shop: Shop) -> None:
    said = shop.run("migrate", "databse")
    assert said.code == 2
    assert "did you mean 'database'" in said.only()


def test_a_table_older_than_laravel_10_is_one_line(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.root / "qframe.sqlite3")) as file:
        file.execute("create table failed_jobs (id integer primary key, payload text not null)")
    said = shop.run("migrate")
    assert said.code == 2
    assert 'the table "failed_jobs" has no column "uuid"' in said.only()
    with closing(sqlite3.connect(shop.root / "qframe.sqlite3")) as file:
        assert len(file.execute("select 1 from sqlite_master").fetchall()) == 1
