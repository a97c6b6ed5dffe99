"""Dispatches after the commit of a session that has joined a transaction of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from qframe import Queueable, QueueManager, dispatch
from qframe.testing import fake
from tests.support.postgres_server import PostgresServer

Mode = Literal["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]
FOLLOWS: tuple[Mode, ...] = ("conditional_savepoint", "rollback_only", "create_savepoint")
MODES: tuple[Mode, ...] = (*FOLLOWS, "control_fully")


class Welcome(Queueable):
    user: int = 1

    def handle(self) -> None: ...


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)


class Left(Base):
    __tablename__ = "left"
    id: Mapped[int] = mapped_column(primary_key=True)


def on_sqlite(folder: Path) -> Engine:
    engine = create_engine(f"sqlite:///{folder / 'shop.sqlite3'}")

    # As SQLAlchemy has it for savepoints: Python's client would begin late.
    @event.listens_for(engine, "connect")
    def no_begin(line: Any, _: object) -> None:
        line.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        made = on_sqlite(tmp_path)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_running")
        made = create_engine(make_url(server.database()).set(drivername="postgresql+psycopg"))
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE users (id INTEGER PRIMARY KEY)"))
    yield made
    made.dispose()


@pytest.fixture
def outer(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


def insert(session: Session, user: int = 1) -> None:
    session.execute(text("INSERT INTO users VALUES (:id)"), {"id": user})


def welcome(session: object, user: int = 1) -> None:
    dispatch(Welcome(user=user)).after_commit(session)


def waiting(queues: QueueManager) -> list[int]:
    jobs = queues.connection().reserve(["default"], 9)
    found = [job.payload["data"]["user"] for job in jobs]
    for job in jobs:
        job.delete()
    return found


def users(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM users ORDER BY id")))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["commit", "rollback", "close", "lost"])
def test_a_job_is_there_if_the_row_is(
    qframe_database: QueueManager, engine: Engine, mode: Mode, end: str
) -> None:
    connection = engine.connect()
    connection.begin()
    with Session(connection, join_transaction_mode=mode) as session:
        insert(session)
        welcome(session)
        session.commit()
        if mode in FOLLOWS:
            assert waiting(qframe_database) == [], "what decides is open yet"
    if end == "lost":
        connection.invalidate()
        connection.close()
    elif connection.in_transaction() or end == "close":
        getattr(connection, end)()
    connection.close()
    with engine.begin() as another:  # perhaps the same one of the pool
        another.execute(text("SELECT 1"))
    assert waiting(qframe_database) == users(engine)


@pytest.mark.parametrize("mode", MODES)
def test_sessions_one_after_the_other(
    qframe_database: QueueManager, engine: Engine, outer: Connection, mode: Mode
) -> None:
    outer.begin()
    for user in (1, 2, 3):
        with Session(outer, join_transaction_mode=mode) as session:
            insert(session, user)
            welcome(session, user)
            if user == 2:
                session.rollback()
                if not outer.in_transaction():
                    outer.begin()
            else:
                session.commit()
                if not outer.in_transaction():
                    outer.begin()
    if outer.get_transaction() is not None:
        outer.commit()
    assert waiting(qframe_database) == users(engine)


def test_a_savepoint_that_is_rolled_back_outside_of_the_session(
    qframe_database: QueueManager, engine: Engine, outer: Connection
) -> None:
    outer.begin()
    with Session(outer) as session:
        insert(session, 1)
        welcome(session, 1)
        session.commit()
    savepoint = outer.begin_nested()
    with Session(outer) as session:  # "conditional_savepoint" makes one here
        with session.begin_nested():
            insert(session, 2)
            welcome(session, 2)
        session.commit()
    inner = outer.begin_nested()
    inner.rollback()
    savepoint.rollback()
    with outer.begin_nested(), Session(outer) as session:
        insert(session, 3)
        welcome(session, 3)
        session.commit()
        outer.begin_nested().rollback()  # a later one
    assert waiting(qframe_database) == []
    outer.commit()
    assert waiting(qframe_database) == users(engine) == [1, 3]


@pytest.mark.parametrize(
    "made",
    [
        Session,
        lambda outer: Session(binds={User: outer}),
        lambda outer: Session(binds={Base: outer}),
    ],
    ids=["bind", "binds-of-a-class", "binds-of-a-base"],
)
def test_before_the_sessions_own_transaction_has_begun(
    qframe_database: QueueManager, outer: Connection, made: Callable[[Connection], Session]
) -> None:
    with outer.begin():
        welcome(made(outer))
        assert waiting(qframe_database) == []
    assert waiting(qframe_database) == [1]
    with outer.begin() as transaction:
        welcome(made(outer))
        transaction.rollback()
    assert waiting(qframe_database) == []
    welcome(made(outer))
    assert waiting(qframe_database) == [1], "nothing is open"


def test_two_connections_have_to_be_committed(
    qframe_database: QueueManager, tmp_path: Path, outer: Connection
) -> None:
    other_engine = create_engine(f"sqlite:///{tmp_path / 'other.sqlite3'}")
    for ends in (("commit", "commit"), ("commit", "rollback")):
        with other_engine.connect() as other:
            outer.begin()
            other.begin()
            session = Session(binds={User: outer, Left: other})
            for each in (User, Left):
                session.connection(bind_arguments={"mapper": each})
            welcome(session)
            session.commit()
            getattr(outer, ends[0])()
            assert waiting(qframe_database) == []
            getattr(other, ends[1])()
            assert waiting(qframe_database) == ([1] if ends[1] == "commit" else [])
            session.close()
    other_engine.dispose()


def test_a_commit_that_fails_pushes_nothing(
    qframe_database: QueueManager, engine: Engine, outer: Connection
) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("a constraint that is looked at by the commit")
    outer.execute(text("ALTER TABLE users ADD boss INTEGER REFERENCES users INITIALLY DEFERRED"))
    outer.execute(text("INSERT INTO users VALUES (1, 99)"))
    with Session(outer) as session:
        welcome(session)
        session.connection()
        session.commit()
    with pytest.raises(Exception, match="foreign key"):
        outer.commit()
    outer.rollback()
    with outer.begin():
        outer.execute(text("SELECT 1"))
    assert waiting(qframe_database) == []


def test_a_fake_has_it_at_the_sessions_commit(
    qframe_database: QueueManager, outer: Connection
) -> None:
    with fake() as queued:
        outer.begin()
        with Session(outer) as session:
            insert(session)
            welcome(session)
            queued.assert_nothing_dispatched()
            session.commit()
            queued.assert_dispatched(Welcome, times=1)
        outer.rollback()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_async_session(
    qframe_database: QueueManager, postgres_running: PostgresServer, end: str
) -> None:
    url = make_url(postgres_running.database()).set(drivername="postgresql+psycopg")

    async def place() -> None:
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            await connection.begin()
            async with AsyncSession(connection) as session:
                await session.execute(text("SELECT 1"))
                welcome(session)
                await session.commit()
            assert await asyncio.to_thread(waiting, qframe_database) == []
            await getattr(connection, end)()
        await engine.dispose()

    asyncio.run(place())
    assert waiting(qframe_database) == ([1] if end == "commit" else [])


def test_two_phases(qframe_database: QueueManager, tmp_path: Path) -> None:
    config = ["max_prepared_transactions=2"]
    with PostgresServer(tmp_path / "postgres", config=config) as server:
        engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg"))
        for is_prepared in (False, True):
            for end, pushed in (("commit", [1]), ("rollback", [])):
                with engine.connect() as connection:
                    outer = connection.begin_twophase()
                    with Session(connection) as session:
                        session.execute(text("SELECT 1"))
                        welcome(session)
                        session.commit()
                    if is_prepared:
                        outer.prepare()
                    assert waiting(qframe_database) == []
                    getattr(outer, end)()
                    assert waiting(qframe_database) == pushed
        with Session(engine, twophase=True) as own:
            own.execute(text("SELECT 1"))
            welcome(own, 2)
            assert waiting(qframe_database) == []
            own.commit()
            assert waiting(qframe_database) == [2]
        engine.dispose()
