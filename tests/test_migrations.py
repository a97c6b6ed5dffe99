"""What an application's own migrations run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from qframe import QueueManager, manager
from qframe.exceptions import ConfigurationError
from qframe.migrations import statements, tables

SILENT = {"driver": "database", "url": "postgresql://app@127.0.0.1:1/app", "schema": "queue"}


@pytest.fixture(autouse=True)
def _configured() -> Iterator[None]:
    mine = {"driver": "database", "url": "sqlite:///never.sqlite3", "table": "my_jobs"}
    manager.use(QueueManager({"default": "pg", "connections": {"pg": SILENT, "mine": mine}}))
    yield
    manager.use(None)


def test_the_statements_need_no_server() -> None:
    assert statements() == statements("pg")
    assert statements()[0] == "CREATE SCHEMA IF NOT EXISTS queue"
    harmless = ("IF NOT EXISTS", "DROP INDEX IF EXISTS", " SET (autovacuum")
    assert all(any(words in each for words in harmless) for each in statements())


def test_they_make_the_tables() -> None:
    with closing(sqlite3.connect(":memory:")) as raw:
        for statement in statements("mine"):
            raw.execute(statement)
        made = raw.execute("select name from sqlite_master where type = 'table'").fetchall()
    assert tables("mine") == {name for (name,) in made} - {"sqlite_sequence"}
    assert "my_jobs" in tables("mine")


def test_what_has_no_tables_has_no_statements() -> None:
    assert statements("redis") == []
    assert tables("redis") == frozenset()


def test_an_unknown_connection_is_named() -> None:
    with pytest.raises(ConfigurationError, match="unknown connection 'nine'"):
        statements("nine")
