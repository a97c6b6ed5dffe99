"""Within: steps in a transaction of the caller's own, whatever the caller has of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from qframe.contracts.step import APPLIED, Expect, Outcome, Push, Set, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable, InvalidTransaction

PUSH = Step(None, Push("q", b"one"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite3"


@pytest.fixture
def backend(file: Path) -> Iterator[DatabaseBackend]:
    made = DatabaseBackend("here", DatabaseSettings(url=f"sqlite:///{file}", busy_timeout=0.2))
    yield made
    made.close()


def _raw(file: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(file)) as connection:
        yield connection, connection.commit


def _cursor(file: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(file)) as connection:
        yield connection.cursor(), connection.commit


def _rows_are_dicts(file: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = lambda cursor, row: {
            each[0]: row[number] for number, each in enumerate(cursor.description)
        }
        yield connection, connection.commit


def _begun_by_hand(file: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield connection, lambda: connection.execute("COMMIT")


def _connection(file: Path) -> Iterator[Any]:
    with create_engine(f"sqlite:///{file}").connect() as connection:
        yield connection, connection.commit


def _session(file: Path) -> Iterator[Any]:
    with Session(create_engine(f"sqlite:///{file}")) as session:
        yield session, session.commit


def _scoped(file: Path) -> Iterator[Any]:
    scoped = scoped_session(sessionmaker(create_engine(f"sqlite:///{file}")))
    yield scoped, scoped.commit
    scoped.remove()


WAYS = [_raw, _cursor, _rows_are_dicts, _begun_by_hand, _connection, _session, _scoped]


@pytest.fixture(params=WAYS, ids=[way.__name__.strip("_") for way in WAYS])
def transaction(
    request: pytest.FixtureRequest, file: Path, backend: DatabaseBackend
) -> Iterator[tuple[Any, Callable[[], object]]]:
    backend.sizes("q")  # the tables are there
    yield from request.param(file)


def test_a_push_is_there_when_the_caller_has_committed(
    backend: DatabaseBackend, transaction: tuple[Any, Callable[[], object]]
) -> None:
    place, commit = transaction
    view = backend.within(place)
    assert view.apply(PUSH) == [APPLIED]
    assert view.sizes("q").ready == 1
    assert backend.sizes("q").ready == 0
    commit()
    assert backend.sizes("q").ready == 1
    (job,), _ = backend.reserve(["q"])
    assert job.raw_body == b"one"


def test_a_refused_step_leaves_the_rest(
    backend: DatabaseBackend, transaction: tuple[Any, Callable[[], object]]
) -> None:
    place, commit = transaction
    backend.apply(Step(None, Set("lock", "theirs")))
    view = backend.within(place)
    results = view.apply(PUSH, Step(None, Expect("lock", None), Push("q", b"two")))
    assert [result.outcome for result in results] == [Outcome.APPLIED, Outcome.REFUSED]
    assert results[1].holds == "theirs"
    commit()
    assert backend.sizes("q").ready == 1


def test_nothing_is_there_when_the_caller_rolls_back(backend: DatabaseBackend, file: Path) -> None:
    backend.sizes("q")
    with closing(sqlite3.connect(file)) as connection:
        backend.within(connection).apply(PUSH)
        connection.rollback()
    assert backend.sizes("q").ready == 0


def test_a_call_that_fails_is_undone_and_the_rest_goes_on(
    backend: DatabaseBackend, file: Path
) -> None:
    backend.sizes("q")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE own (n INTEGER)")
        connection.execute("INSERT INTO own VALUES (1)")
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.payload = 'two'"
            " BEGIN SELECT RAISE(FAIL, 'not this one'); END"
        )
        view = backend.within(connection)
        with pytest.raises(BackendUnavailable, match="not this one"):
            view.apply(Step(None, Set("fact", "1"), Push("q", b"one"), Push("q", b"two")))
        view.apply(PUSH)
        connection.commit()
        assert connection.execute("SELECT * FROM own").fetchall() == [(1,)]
    assert backend.sizes("q").ready == 1
    assert backend.read("fact") == [None]


def test_the_tables_are_made_by_the_first_who_needs_them(
    backend: DatabaseBackend, file: Path
) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE own (n INTEGER)")
        connection.execute("INSERT INTO own VALUES (1)")  # it has the write lock
        backend.within(connection).apply(PUSH)
        connection.commit()
    assert backend.sizes("q").ready == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: sqlite3.connect(":memory:"), "the transaction is one of in memory"),
        (
            lambda file: sqlite3.connect(file.with_name("other.sqlite3")),
            r"jobs.sqlite3, the transaction is one of .*other.sqlite3",
        ),
        (lambda file: sqlite3.connect(file, isolation_level=None), "autocommit mode"),
        (lambda file: create_engine(f"sqlite:///{file}"), "not Engine"),
        (lambda _: sessionmaker(), "not sessionmaker"),
        (lambda _: Session, "not the class Session"),
        (lambda _: Session(), "no connection of its own to give"),
        (lambda _: None, "not NoneType"),
        (lambda _: "the transaction", "not str"),
    ],
)
def test_what_is_no_transaction_of_this_database_is_refused(
    backend: DatabaseBackend, file: Path, make: Callable[[Path], Any], words: str
) -> None:
    backend.sizes("q")
    given = make(file)
    with pytest.raises(InvalidTransaction, match=words):
        backend.within(given)
    if hasattr(given, "close"):
        given.close() if not isinstance(given, type) else None


def test_autocommit_of_sqlalchemy_is_refused(backend: DatabaseBackend, file: Path) -> None:
    backend.sizes("q")
    engine = create_engine(f"sqlite:///{file}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(InvalidTransaction, match="autocommit"):
        backend.within(connection)


def test_nothing_is_swept_in_the_callers_transaction(backend: DatabaseBackend, file: Path) -> None:
    backend.apply(*(Step(None, Set(f"old{n}", "", ttl=-1)) for n in range(9)))
    with closing(sqlite3.connect(file)) as connection:
        view = backend.within(connection)
        for number in range(120):
            view.apply(Step(None, Set(f"new{number}", "")))
        kept = connection.execute("SELECT count(*) FROM qframe_facts WHERE key LIKE 'old%'")
        assert kept.fetchone() == (9,)


def test_savepoints_of_the_caller_are_kept(backend: DatabaseBackend, file: Path) -> None:
    backend.sizes("q")
    with Session(create_engine(f"sqlite:///{file}")) as session, session.begin():
        backend.within(session).apply(PUSH)
        inner = session.begin_nested()
        backend.within(session).apply(Step(None, Push("q", b"two")))
        inner.rollback()
        session.execute(text("SELECT 1"))
    (job,), _ = backend.reserve(["q"], 9)
    assert job.raw_body == b"one"
