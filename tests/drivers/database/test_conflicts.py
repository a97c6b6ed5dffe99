"""What the database undoes for the sake of others is done again, and what it refuses is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from qframe.contracts.step import APPLIED, LOST, Push, Set, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.errors import (
    ConnectionLost,
    NoConnectionLeft,
    TryAgain,
    translated,
)
from qframe.drivers.database.messages import Messages
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.support.postgres_server import PostgresServer
from tests.support.sql_server import SqlServer, wait_until

_FIRST, _SECOND = "a", "b"
_WAITING = {
    "PostgreSQL": "select count(*) from pg_locks where not granted",
    # Not innodb_trx: who asks for that again within 0.1 s is told what was.
    "MariaDB": "select variable_value + 0 from information_schema.global_status "
    "where variable_name = 'Innodb_row_lock_current_waits'",
}


@pytest.fixture(params=["postgres_running", "mariadb_running"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def backend(server: SqlServer) -> Iterator[DatabaseBackend]:
    made = DatabaseBackend("here", DatabaseSettings(url=server.database()))
    made.migrate()
    made.apply(Step(None, Set(_FIRST, "0"), Set(_SECOND, "0")))
    yield made
    made.close()


def changed(backend: DatabaseBackend, key: str) -> sa.TextClause:
    facts = backend.database.schema.facts.name
    quoted = backend.database.engine.dialect.identifier_preparer.quote("key")
    return sa.text(f"update {facts} set value = 'theirs' where {quoted} = '{key}'")


def is_waiting(server: SqlServer) -> bool:
    return bool(server.sql(_WAITING[server.name])[0][0])


def test_a_deadlock_with_others_is_heard_of_by_nobody(
    server: SqlServer, backend: DatabaseBackend
) -> None:
    undone = turns = 0
    while turns < 3 or undone == turns:  # of those that are undone, some are to be ours
        assert turns < 20
        turn, turns = turns, turns + 1
        push = Push("q", b"%d" % turn)
        mine = Step(None, Set(_FIRST, "ours"), push, Set(_SECOND, "ours"))
        said = threading.Thread(target=backend.apply, args=(mine,))
        engine = sa.create_engine(backend.database.url, poolclass=sa.NullPool)
        with engine.connect() as theirs:
            theirs.execute(changed(backend, _SECOND))
            said.start()
            wait_until(lambda: is_waiting(server), "our step to wait")
            try:
                theirs.execute(changed(backend, _FIRST))
                theirs.commit()
            except sa.exc.DBAPIError:
                undone += 1
                theirs.rollback()
        said.join()
    jobs, _ = backend.reserve(["q"], 20)
    assert [job.raw_body for job in jobs] == [b"%d" % turn for turn in range(turns)]
    assert backend.read(_FIRST, _SECOND) == ["ours", "ours"]


def test_a_session_that_was_serializable_by_default_is_tried_again(
    postgres_running: PostgresServer,
) -> None:
    url = postgres_running.database()
    name = sa.make_url(url).database
    backend = DatabaseBackend("here", DatabaseSettings(url=url))
    backend.migrate()
    isolation = "default_transaction_isolation = 'serializable'"
    postgres_running.sql(f'alter database "{name}" set {isolation}')
    errors: list[BaseException] = []

    def work(number: int) -> None:
        mine = DatabaseBackend("here", DatabaseSettings(url=url))
        try:
            for turn in range(10):
                step = Step(None, Set("n", str(turn)), Push("q", b"%d" % number))
                mine.apply(step)
        except BaseException as error:  # noqa: BLE001 (told by the test)
            errors.append(error)
        mine.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert backend.sizes("q").ready == 20
    backend.close()


def test_a_deletion_before_a_claim_that_is_undone_is_heard_as_done(
    postgres_running: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a transaction by itself there; when a claim is undone no test can decide."""
    backend = DatabaseBackend("here", DatabaseSettings(url=postgres_running.prepared()))
    backend.apply(Step(None, Push("q", b"1")), Step(None, Push("q", b"2")))
    (first,), _ = backend.reserve(["q"])
    claim, undone = Messages._claim, ["once"]

    def claimed(self: Messages, *given: Any) -> Any:
        if undone and undone.pop():
            raise TryAgain("the server undid it")
        return claim(self, *given)

    monkeypatch.setattr(Messages, "_claim", claimed)
    (second,), results = backend.reserve(["q"], first=[first.delete()])
    assert results == [APPLIED]
    assert second.raw_body == b"2"
    undone.append("once")
    _, results = backend.reserve(["q"], first=[first.delete()])
    assert results == [LOST], "that it was gone before is heard"
    backend.close()


def _mysql(number: int) -> BaseException:
    return pymysql.err.OperationalError(number, "some 'words'")


def _postgres(code: str) -> BaseException:
    return psycopg.errors.lookup(code)("some words")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (_postgres("53300"), NoConnectionLeft, "no connection left"),
        (_mysql(1040), NoConnectionLeft, "no connection left"),
        (_postgres("25006"), BackendUnavailable, "takes no writes"),
        (_mysql(1290), BackendUnavailable, "takes no writes"),
        (_postgres("53100"), BackendUnavailable, "disk is full"),
        (_mysql(1021), BackendUnavailable, "disk is full"),
        (_mysql(1205), BackendUnavailable, "is in use by"),
        (_postgres("57014"), BackendUnavailable, "time limit"),
        (_postgres("42501"), BackendUnusable, "does not let its user"),
        (_mysql(1142), BackendUnusable, "does not let its user"),
        (_postgres("42P01"), BackendUnusable, "qframe migrate"),
        (_mysql(1146), BackendUnusable, "no table words: run `qframe migrate`"),
    ],
    ids=str,
)
def test_errors_are_known_by_their_codes(
    error: BaseException, kind: type[BackendUnavailable], words: str
) -> None:
    told = translated(error, "here")
    assert type(told) is kind
    assert words in str(told)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_postgres("57P01"), "shutting down"),
        (_postgres("57P05"), "time limit"),
        (_postgres("08P01"), "does not answer"),
        (_mysql(2013), "does not answer"),
        (_mysql(9999), "does not answer"),
    ],
    ids=str,
)
def test_whatever_the_code_the_driver_says_whether_the_connection_ended(
    error: BaseException, words: str
) -> None:
    told = translated(error, "here", lambda _: True)
    assert type(told) is ConnectionLost
    assert words in str(told)
    assert type(translated(error, "here", lambda _: False)) is BackendUnavailable


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.set(username="nobody", password="wrong"), "refuses its user"),
        (lambda url: url.set(database="qframe_none"), "is not there"),
    ],
    ids=["user", "database"],
)
def test_who_cannot_connect_is_told_why(
    server: SqlServer, change: Callable[[sa.URL], sa.URL], words: str
) -> None:
    url = change(sa.make_url(server.url)).render_as_string(hide_password=False)
    backend = DatabaseBackend("here", DatabaseSettings(url=url))
    with closing(backend), pytest.raises(BackendUnusable, match=words):
        backend.sizes("q")
