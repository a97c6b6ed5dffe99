"""Whatever a program calls its transaction, on each database: its rows and its jobs are one."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import django
import psycopg
import psycopg2
import pymysql
import pymysql.cursors
import pytest
from django.conf import settings
from sqlalchemy.engine import make_url

from qframe import Queueable, bulk, chain, dispatch, job_status
from qframe.drivers.database.caller import CallerConnection
from qframe.exceptions import InvalidTransaction
from qframe.testing import drain
from tests.support.shop import Shop

RAN: list[str] = []
_INSERT = "INSERT INTO orders VALUES ('a')"
_ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mariadb": "mysql"}


class Ship(Queueable):
    order: str = "a"

    def handle(self) -> None:
        RAN.append(self.order)


class ShipOnce(Ship):
    unique = True


class Caller:
    """A transaction, as a program has it: what it gives to `within`, and how it ends."""

    def __init__(
        self,
        given: Any,
        execute: Callable[[str], object],
        commit: Callable[[], object],
        rollback: Callable[[], object],
    ) -> None:
        self.given = given
        self.execute = execute
        self.commit = commit
        self.rollback = rollback


def _words(shop: Shop) -> dict[str, Any]:
    url = make_url(shop.url)
    return {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password or "",
        "database": url.database,
    }


def _of(connection: Any, *, cursor: bool = False) -> Caller:
    mine = connection.cursor()
    given = mine if cursor else connection
    return Caller(given, mine.execute, connection.commit, connection.rollback)


def _by_hand(connection: Any, begin: str, *, cursor: bool = False) -> Caller:
    """Begin a transaction in autocommit mode."""
    mine = connection.cursor()
    mine.execute(begin)
    return Caller(
        mine if cursor else connection,
        mine.execute,
        lambda: mine.execute("COMMIT"),
        lambda: mine.execute("ROLLBACK"),
    )


# -- SQLite ---------------------------------------------------------------------------------------


@contextmanager
def _sqlite3(shop: Shop, **words: Any) -> Iterator[Any]:
    with closing(sqlite3.connect(str(make_url(shop.url).database), **words)) as made:
        yield made


@contextmanager
def sqlite3_connection(shop: Shop) -> Iterator[Caller]:
    with _sqlite3(shop) as made:
        yield _of(made)


@contextmanager
def sqlite3_cursor(shop: Shop) -> Iterator[Caller]:
    with _sqlite3(shop) as made:
        yield _of(made, cursor=True)


@contextmanager
def sqlite3_begun_by_hand(shop: Shop) -> Iterator[Caller]:
    with _sqlite3(shop, isolation_level=None) as made:
        yield _by_hand(made, "BEGIN")


# -- PostgreSQL -----------------------------------------------------------------------------------


@contextmanager
def _psycopg(shop: Shop, **words: Any) -> Iterator[psycopg.Connection[Any]]:
    found = _words(shop)
    name = found.pop("database")
    with psycopg.connect(**found, dbname=name, **words) as made:
        yield made
        made.rollback()


@contextmanager
def psycopg_connection(shop: Shop) -> Iterator[Caller]:
    with _psycopg(shop) as made:
        yield _of(made)


@contextmanager
def psycopg_cursor(shop: Shop) -> Iterator[Caller]:
    with _psycopg(shop) as made:
        yield _of(made, cursor=True)


@contextmanager
def psycopg_rows_as_dicts(shop: Shop) -> Iterator[Caller]:
    with _psycopg(shop, row_factory=psycopg.rows.dict_row) as made:
        yield _of(made)


@contextmanager
def psycopg_transaction_block(shop: Shop) -> Iterator[Caller]:
    """In autocommit mode, with a `transaction()` open."""

    def undone() -> None:
        stack.pop_all().__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    with _psycopg(shop, autocommit=True) as made, ExitStack() as stack:
        stack.enter_context(made.transaction())
        yield Caller(made, made.execute, stack.close, undone)


@contextmanager
def _psycopg2(shop: Shop) -> Iterator[Any]:
    with closing(psycopg2.connect(**_words(shop))) as made:
        yield made


@contextmanager
def psycopg2_connection(shop: Shop) -> Iterator[Caller]:
    with _psycopg2(shop) as made:
        yield _of(made)


@contextmanager
def psycopg2_cursor(shop: Shop) -> Iterator[Caller]:
    with _psycopg2(shop) as made:
        yield _of(made, cursor=True)


# -- MariaDB --------------------------------------------------------------------------------------


@contextmanager
def _pymysql(shop: Shop, **words: Any) -> Iterator[Any]:
    with closing(pymysql.connect(**_words(shop), **words)) as made:
        yield made


@contextmanager
def pymysql_connection(shop: Shop) -> Iterator[Caller]:
    with _pymysql(shop) as made:
        yield _of(made)


@contextmanager
def pymysql_cursor(shop: Shop) -> Iterator[Caller]:
    with _pymysql(shop) as made:
        yield _of(made, cursor=True)


@contextmanager
def pymysql_rows_as_dicts(shop: Shop) -> Iterator[Caller]:
    with _pymysql(shop, cursorclass=pymysql.cursors.DictCursor) as made:
        yield _of(made)


@contextmanager
def pymysql_begun_by_hand(shop: Shop) -> Iterator[Caller]:
    with _pymysql(shop, autocommit=True) as made:
        yield _by_hand(made, "START TRANSACTION", cursor=True)


# -- Django ---------------------------------------------------------------------------------------


@contextmanager
def _django(shop: Shop) -> Iterator[tuple[Any, Any]]:
    """Give Django's `connection` and `transaction`."""
    pymysql.install_as_MySQLdb()
    found = _words(shop)
    words = {"PASSWORD": found["password"], "NAME": found["database"], "USER": found["user"]}
    words |= {"HOST": found["host"] or "", "PORT": found["port"] or ""}
    engine = f"django.db.backends.{_ENGINES[shop.kind]}"
    if not settings.configured:
        settings.configure(DATABASES={})
        django.setup()
    db = importlib.import_module("django.db")
    before = db.connections._settings
    db.connections.settings = db.connections.configure_settings(
        {"default": {"ENGINE": engine, **words}}
    )
    try:
        yield db.connection, db.transaction
    finally:
        db.connection.close()
        del db.connections["default"]
        db.connections._settings = before
        vars(db.connections).pop("settings", None)


@contextmanager
def _atomic(shop: Shop, *, module: bool) -> Iterator[Caller]:
    def undone() -> None:
        transaction.set_rollback(True)
        stack.close()

    with _django(shop) as (connection, transaction), ExitStack() as stack:
        stack.enter_context(transaction.atomic())
        given = transaction if module else connection
        yield Caller(given, lambda sql: connection.cursor().execute(sql), stack.close, undone)


@contextmanager
def django_connection(shop: Shop) -> Iterator[Caller]:
    with _atomic(shop, module=False) as made:
        yield made


@contextmanager
def django_transaction(shop: Shop) -> Iterator[Caller]:
    with _atomic(shop, module=True) as made:
        yield made


# -------------------------------------------------------------------------------------------------

Way = Callable[[Shop], Any]
_ANY = [django_connection, django_transaction]
WAYS: dict[str, list[Way]] = {
    "sqlite": [sqlite3_connection, sqlite3_cursor, sqlite3_begun_by_hand, *_ANY],
    "postgres": [
        psycopg_connection,
        psycopg_cursor,
        psycopg_rows_as_dicts,
        psycopg_transaction_block,
        psycopg2_connection,
        psycopg2_cursor,
        *_ANY,
    ],
    "mariadb": [
        pymysql_connection,
        pymysql_cursor,
        pymysql_rows_as_dicts,
        pymysql_begun_by_hand,
        *_ANY,
    ],
}
EACH = [
    pytest.param(
        kind,
        way,
        id=f"{kind}-{way.__name__}",
        marks=[pytest.mark.slow] if kind == "mariadb" else [],
    )
    for kind in WAYS
    for way in WAYS[kind]
]


@pytest.fixture
def caller(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Caller]:
    RAN.clear()
    with request.param(shop) as made:
        yield made


def each_way(test: Callable[..., None]) -> Any:
    return pytest.mark.parametrize(("shop", "caller"), EACH, indirect=True)(test)


@each_way
def test_jobs_are_committed_with_the_row(shop: Shop, caller: Caller) -> None:
    caller.execute(_INSERT)
    identity = dispatch(Ship()).track().within(caller.given).id
    bulk([Ship(order="b"), Ship(order="c")], within=caller.given)
    chain([ShipOnce(order="d"), Ship(order="e")]).within(caller.given)
    assert (shop.waiting(), job_status(identity)) == (0, None)
    caller.commit()
    assert shop.orders() == ["a"]
    assert job_status(identity) is not None
    assert drain().done == 5
    assert sorted(RAN) == ["a", "b", "c", "d", "e"]


@each_way
def test_jobs_are_rolled_back_with_the_row(shop: Shop, caller: Caller) -> None:
    caller.execute(_INSERT)
    dispatch(ShipOnce()).track().within(caller.given)
    bulk([Ship(), Ship()], within=caller.given)
    caller.rollback()
    assert (shop.waiting(), shop.orders()) == (0, [])
    dispatch(ShipOnce()).send()  # its lock is free
    assert shop.waiting() == 1


@each_way
def test_a_refused_unique_job_leaves_the_transaction_as_it_was(shop: Shop, caller: Caller) -> None:
    first = dispatch(ShipOnce()).send()
    caller.execute(_INSERT)
    assert dispatch(ShipOnce()).within(caller.given).id == first
    dispatch(Ship()).within(caller.given)
    caller.commit()
    assert (shop.waiting(), shop.orders()) == (2, ["a"])


@pytest.mark.parametrize(
    ("shop", "caller"),
    [("postgres", psycopg_connection), ("postgres", psycopg2_connection)],
    indirect=True,
)
def test_a_connection_is_asked_once_which_database_it_is_on(
    shop: Shop, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    run = CallerConnection.run

    def noted(self: CallerConnection, *told: Any) -> Any:
        asked.append(told[0])
        return run(self, *told)

    monkeypatch.setattr(CallerConnection, "run", noted)
    for _ in range(2):
        dispatch(Ship()).within(caller.given)
        caller.commit()
    assert asked.count("SELECT current_database()") == 1
    assert shop.waiting() == 2


def test_django_outside_of_atomic_is_refused(shop: Shop) -> None:
    with (
        _django(shop) as (connection, _),
        pytest.raises(InvalidTransaction, match=r"atomic\(\)"),
    ):
        dispatch(Ship()).within(connection)


def test_autocommit_is_refused(shop: Shop) -> None:
    openers = {"sqlite": _sqlite3, "postgresql": _psycopg, "mariadb": _pymysql}
    words = {"isolation_level": None} if shop.kind == "sqlite" else {"autocommit": True}
    with (
        openers[shop.kind](shop, **words) as made,
        pytest.raises(InvalidTransaction, match="autocommit mode with none"),
    ):
        dispatch(Ship()).within(made)
    assert shop.waiting() == 0


def test_an_asynchronous_connection_of_psycopg_is_refused(shop: Shop) -> None:
    async def main() -> None:
        found = _words(shop)
        name = found.pop("database")
        async with await psycopg.AsyncConnection.connect(**found, dbname=name) as made:
            for given in (made, made.cursor()):
                with pytest.raises(InvalidTransaction, match="AsyncSession"):
                    dispatch(Ship()).within(given)

    if shop.kind == "postgresql":
        asyncio.run(main())
