"""`assert_repeatable` sees what databases and HTTP clients do, whichever library a job uses."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from qframe import Queueable
from qframe.testing import run
from qframe.testing.repeating import AT_END
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("fresh")

Execute = Callable[[str], Awaitable[Any]]
AT: dict[str, str] = {}
"""Where the jobs find their database, or their service."""


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[Any]:
    engine = create_async_engine(AT["url"])
    try:
        yield engine
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_engine() -> AsyncIterator[Execute]:
    async with _engine() as engine, engine.begin() as connection:
        yield connection.exec_driver_sql


@contextlib.asynccontextmanager
async def sqlalchemy_session() -> AsyncIterator[Execute]:
    async with _engine() as engine, AsyncSession(engine) as session:
        connection: Any = await session.connection()
        yield connection.exec_driver_sql
        await session.commit()


@contextlib.asynccontextmanager
async def psycopg_block() -> AsyncIterator[Execute]:
    with psycopg.connect(AT["url"]) as connection:
        yield _awaitable(connection.execute)


@contextlib.asynccontextmanager
async def psycopg_by_hand() -> AsyncIterator[Execute]:
    connection = psycopg.connect(AT["url"])  # which a killed job does not close
    yield _awaitable(connection.execute)
    connection.commit()
    connection.close()


@contextlib.asynccontextmanager
async def psycopg_transaction() -> AsyncIterator[Execute]:
    with psycopg.connect(AT["url"], autocommit=True) as connection, connection.transaction():
        yield _awaitable(connection.execute)


@contextlib.asynccontextmanager
async def psycopg_autocommit() -> AsyncIterator[Execute]:
    with psycopg.connect(AT["url"], autocommit=True) as connection:
        yield _awaitable(connection.execute)


@contextlib.asynccontextmanager
async def psycopg_async() -> AsyncIterator[Execute]:
    async with await psycopg.AsyncConnection.connect(AT["url"]) as connection:
        yield connection.execute


@contextlib.asynccontextmanager
async def psycopg_async_transaction() -> AsyncIterator[Execute]:
    opened = await psycopg.AsyncConnection.connect(AT["url"], autocommit=True)
    async with opened as connection, connection.transaction():
        yield connection.execute


@contextlib.asynccontextmanager
async def psycopg_async_autocommit() -> AsyncIterator[Execute]:
    async with await psycopg.AsyncConnection.connect(AT["url"], autocommit=True) as connection:
        yield connection.execute


@contextlib.asynccontextmanager
async def asyncpg_autocommit() -> AsyncIterator[Execute]:
    connection = await importlib.import_module("asyncpg").connect(AT["url"])
    try:
        yield connection.execute
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_transaction() -> AsyncIterator[Execute]:
    connection = await importlib.import_module("asyncpg").connect(AT["url"])
    try:
        async with connection.transaction():
            yield connection.execute
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_by_hand() -> AsyncIterator[Execute]:
    connection = await importlib.import_module("asyncpg").connect(AT["url"])
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield connection.execute
        await transaction.commit()
    finally:
        await connection.close()


def _awaitable(execute: Callable[[Any], Any]) -> Execute:
    async def called(sql: str) -> None:
        execute(sql)

    return called


WAYS: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Execute]]] = {
    each.__name__: each
    for each in (
        sqlalchemy_engine,
        sqlalchemy_session,
        psycopg_block,
        psycopg_by_hand,
        psycopg_transaction,
        psycopg_autocommit,
        psycopg_async,
        psycopg_async_transaction,
        psycopg_async_autocommit,
        asyncpg_autocommit,
        asyncpg_transaction,
        asyncpg_by_hand,
    )
}


class Orders(Queueable):
    """Writes two rows, each in a transaction of its own."""

    way: str
    again: ClassVar[str] = ""
    """What a statement does with a row that is there."""

    async def handle(self) -> None:
        for number in (1, 2):
            async with WAYS[self.way]() as execute:
                await execute("SELECT 1")
                await execute(f"INSERT INTO repeated_orders VALUES ({number}) {self.again}")


class OrdersOnce(Orders):
    again: ClassVar[str] = "ON CONFLICT DO NOTHING"


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    AT["url"] = f"sqlite+aiosqlite:///{tmp_path / 'shop.sqlite3'}"
    sqlite3 = importlib.import_module("sqlite3")

    def sql(statement: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return [*found]

    return sql


@pytest.fixture
def postgres(postgres_running: PostgresServer) -> Any:
    postgres_running.empty()
    AT["url"] = postgres_running.url.replace("+psycopg", "")

    def sql(statement: str) -> list[Any]:
        with psycopg.connect(AT["url"]) as connection:
            done = connection.execute(statement)
            return [*done] if done.description else []

    yield sql
    sql("DROP TABLE IF EXISTS repeated_orders")


def assert_found(way: str, sql: Callable[[str], list[Any]], point: str) -> None:
    """Assert that both transactions are points, and that what is lost between them is found."""

    def reset() -> None:
        sql("DROP TABLE IF EXISTS repeated_orders")
        sql(f"CREATE TABLE repeated_orders (number INTEGER {unique})")

    def state() -> list[Any]:
        return sql("SELECT number FROM repeated_orders ORDER BY 1")

    unique = "UNIQUE"
    points = run(OrdersOnce(way=way)).assert_repeatable(state, reset)
    assert [each.partition(" (")[0] for each in points[:-1]] == [point] * 2
    assert all("test_repeatable_libraries.py:" in each for each in points[:-1])
    unique = ""
    with pytest.raises(AssertionError) as raised:
        run(Orders(way=way)).assert_repeatable(state, reset)
    said = str(raised.value)
    assert "2 of 3 points differ" in said  # killed before the first, it has done nothing
    assert "after one run: [(1,), (2,)]" in said
    assert "after this:    [(1,), (1,), (2,)]" in said
    assert AT_END in said


@pytest.mark.parametrize("way", [each for each in WAYS if each.startswith("sqlalchemy")])
def test_sqlalchemy_async(sqlite: Any, way: str) -> None:
    assert_found(way, sqlite, "a commit")


@pytest.mark.parametrize("way", [each for each in WAYS if each.startswith("psycopg")])
def test_psycopg(postgres: Any, way: str) -> None:
    by_itself = "the INSERT that is committed by itself"
    assert_found(way, postgres, by_itself if way.endswith("autocommit") else "a commit")


@pytest.mark.parametrize("way", [each for each in WAYS if each.startswith("asyncpg")])
def test_asyncpg(postgres: Any, way: str) -> None:
    by_itself = "the INSERT that is committed by itself"
    assert_found(way, postgres, by_itself if way.endswith("autocommit") else "a commit")


class Asks(Queueable):
    """Makes two calls, whose requests a service counts by their keys."""

    key: str = ""

    async def handle(self) -> None:
        aiohttp = importlib.import_module("aiohttp")
        async with aiohttp.ClientSession() as session:
            for number in (1, 2):
                query = {"key": f"{self.key}{number}"} if self.key else {}
                async with session.post(AT["url"], params=query) as answer:
                    await answer.read()


@pytest.fixture
def paid() -> Iterator[list[str]]:
    found: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            key = self.path.partition("?key=")[2]
            if not key or key not in found:
                found.append(key)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        AT["url"] = f"http://127.0.0.1:{server.server_port}/pay"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_aiohttp(paid: list[str]) -> None:
    points = run(Asks(key="a")).assert_repeatable(lambda: [*paid], paid.clear)
    assert [each.partition(" (")[0] for each in points[:-1]] == [f"the call POST {AT['url']}"] * 2
    with pytest.raises(AssertionError, match="2 of 3 points differ"):
        run(Asks()).assert_repeatable(lambda: [*paid], paid.clear)
