"""Jobs that are completed within a transaction of their own: done with its rows, or not at all."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from qframe import Queueable, batch, chain, dispatch, events, job_status
from qframe.connection import Connection
from qframe.contracts.status import State
from qframe.exceptions import InvalidTransaction, JobAlreadySettled
from qframe.jobs import completing
from qframe.testing import drain, run
from tests.support.shop import Shop

PLACE: dict[str, Any] = {}
"""Where the jobs of this module find the database, and what they are to do."""


def engine() -> Engine:
    return shop().engine


def shop() -> Shop:
    made: Shop = PLACE["shop"]
    return made


def insert(session: Session, name: str) -> None:
    shop().order(session, name)


def rows() -> list[str]:
    return shop().orders()


class Book(Queueable):
    """Adds a row, and is done with it."""

    name: str = "a"
    tries: ClassVar[int | None] = 3
    backoff: ClassVar[Any] = 0

    def handle(self) -> None:
        with Session(engine()) as session, session.begin():
            insert(session, self.name)
            self.job.complete(within=session)

    def succeeded(self) -> None:
        PLACE.setdefault("succeeded", []).append(self.name)


class Once(Book):
    """There is but one at a time."""

    unique: ClassVar[Any] = True


class Acts(Book):
    """Does what a test says, once; then as `Book`."""

    def handle(self) -> None:
        acts: list[Callable[[Acts], None]] = PLACE["acts"]
        if acts:
            try:
                acts.pop(0)(self)
            except AssertionError as error:
                PLACE["wrong"] = error
                raise
        else:
            super().handle()


@pytest.fixture(autouse=True)
def connection(shop: Shop) -> Iterator[Connection]:
    PLACE.clear()
    PLACE.update(shop=shop, acts=[], wrong=None)
    yield shop.queue
    assert PLACE["wrong"] is None


@pytest.fixture
def processed() -> list[events.JobProcessed]:
    heard: list[events.JobProcessed] = []
    events.listen(events.JobProcessed)(heard.append)
    return heard


def acts(*what: Callable[[Acts], None]) -> None:
    PLACE["acts"] = list(what)
    dispatch(Acts()).send()


def test_the_job_is_gone_with_its_rows(processed: list[events.JobProcessed]) -> None:
    dispatch(Book(name="a")).send()
    dispatch(Book(name="b")).send()
    drained = drain()
    assert rows() == ["a", "b"]
    assert len(processed) == 2
    assert PLACE["succeeded"] == ["a", "b"]
    assert drained.done == 2


def test_where_it_is_not_committed_the_job_has_failed_and_says_so(connection: Connection) -> None:
    def forgets(job: Acts) -> None:
        with Session(engine()) as session:
            insert(session, "forgotten")
            job.job.complete(within=session)

    acts(forgets, forgets, forgets)
    drain()
    (failed,) = connection.failed.page(9)
    assert "was completed within a transaction that did not commit" in failed.exception
    assert failed.attempts == 3
    assert rows() == []


def test_after_a_failure_it_runs_again() -> None:
    def raises(job: Acts) -> None:
        with Session(engine()) as session, session.begin():
            insert(session, "undone")
            job.job.complete(within=session)
            raise RuntimeError("before the commit")

    acts(raises)
    drain()
    assert rows() == ["a"]


def test_what_raises_after_the_commit_is_done(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(job: Acts) -> None:
        with Session(engine()) as session, session.begin():
            insert(session, "done")
            job.job.complete(within=session)
        raise RuntimeError("after the commit")

    acts(raises)
    drain()
    assert rows() == ["done"]
    assert connection.size() == 0
    assert connection.failed.page(9) == []
    assert "had settled itself and then raised" in caplog.text


def test_a_transaction_that_is_tried_again(connection: Connection) -> None:
    def tries_twice(job: Acts) -> None:
        for attempt in range(2):
            with Session(engine()) as session:
                insert(session, f"attempt {attempt}")
                job.job.complete(within=session)
                with pytest.raises(JobAlreadySettled):
                    job.job.release()
                if attempt:
                    session.commit()

    acts(tries_twice)
    drain()
    assert rows() == ["attempt 1"]
    assert connection.size() == 0


def test_it_can_be_settled_otherwise_after_a_rollback_only_by_the_worker() -> None:
    def settles(job: Acts) -> None:
        with Session(engine()) as session:
            job.job.complete(within=session)
            session.rollback()
        with pytest.raises(JobAlreadySettled):
            job.job.delete()

    acts(settles)
    drain()
    assert rows() == ["a"]


def test_twice_in_one_transaction_is_an_error_of_the_second_call(connection: Connection) -> None:
    def says_it_twice(job: Acts) -> None:
        with Session(engine()) as session:
            insert(session, "once")
            job.job.complete(within=session)
            began = time.monotonic()
            with pytest.raises(JobAlreadySettled, match="already completed within a transaction"):
                job.job.complete(within=session)
            assert time.monotonic() - began < 15  # else until it gives up, after 20 s or more
            session.commit()

    acts(says_it_twice)
    drain()
    assert rows() == ["once"]
    assert connection.size() == 0


def test_twice_and_not_caught_is_a_failure_like_any_other(
    connection: Connection, processed: list[events.JobProcessed]
) -> None:
    def says_it_twice(job: Acts) -> None:
        with Session(engine()) as session, session.begin():
            insert(session, "undone")
            job.job.complete(within=session)
            job.job.complete(within=session)

    acts(says_it_twice)
    drain()
    assert rows() == ["a"]
    assert len(processed) == 1
    assert connection.size() == 0


def test_once_more_after_the_commit_and_beside_an_open_transaction() -> None:
    def says_it_in_another(job: Acts) -> None:
        with Session(engine()) as session, Session(engine()) as other:
            insert(session, "done")
            job.job.complete(within=session)
            if shop().kind != "sqlite":  # which has one writer
                with pytest.raises(JobAlreadySettled):
                    job.job.complete(within=other)
                other.rollback()
            session.commit()
            with pytest.raises(JobAlreadySettled):
                job.job.complete(within=other)

    acts(says_it_in_another)
    drain()
    assert rows() == ["done"]


def test_after_a_savepoint_that_was_rolled_back(connection: Connection) -> None:
    def tries_a_savepoint(job: Acts) -> None:
        with Session(engine()) as session, session.begin():
            insert(session, "kept")
            with session.begin_nested() as savepoint:
                job.job.complete(within=session)
                savepoint.rollback()
            job.job.complete(within=session)

    acts(tries_a_savepoint)
    drain()
    assert rows() == ["kept"]
    assert connection.size() == 0


# -- snapshots that are older than the start ------------------------------------------------------

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]


class Snapshot(Queueable):
    """Looks at the database first, and is done with a row at the end."""

    tries: ClassVar[int | None] = 1

    def handle(self) -> None:
        with PLACE["engine"].connect() as connection:
            connection.execute(text("SELECT count(*) FROM orders")).scalar()
            PLACE["release"]()
            connection.execute(text("INSERT INTO orders VALUES ('snapshot')"))
            PLACE["finish"](self.job, connection)


class SnapshotHere(Snapshot):
    """Says itself that it is done."""

    def handle(self) -> None:
        with PLACE["engine"].connect() as connection:
            connection.execute(text("SELECT count(*) FROM orders")).scalar()
            PLACE["release"]()
            connection.execute(text("INSERT INTO orders VALUES ('snapshot')"))
            self.job.complete(within=connection)
            connection.commit()


def _finish(job: Any, connection: Any) -> None:
    job.complete(within=connection)
    connection.commit()


@pytest.fixture
def late_start(connection: Connection) -> Iterator[Engine]:
    """Have each start wait for a lock of somebody's until its handler looks, or a moment."""
    there = create_engine(shop().url, poolclass=NullPool)
    over: list[threading.Event] = []
    threads: list[threading.Thread] = []

    def lock(_event: events.JobPopped) -> None:
        if shop().kind == "sqlite":
            return
        locked, released = threading.Event(), threading.Event()
        moment = PLACE.pop("first moment", 0.3)

        def hold() -> None:
            with there.begin() as session:
                session.execute(text("SELECT id FROM jobs FOR UPDATE"))
                locked.set()
                released.wait(moment)

        over.append(released)
        threads.append(threading.Thread(target=hold))
        threads[-1].start()
        assert locked.wait(60)

    def release() -> None:
        for each in over:
            each.set()

    events.listen(events.JobPopped)(lock)
    PLACE.update(release=release, finish=_finish)
    completing.waits.clear()
    yield there
    release()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("level", LEVELS)
def test_the_start_is_there_before_a_handler_that_completes_begins(
    connection: Connection,
    late_start: Engine,
    processed: list[events.JobProcessed],
    level: str,
) -> None:
    given_back: list[events.AttemptGivenBack] = []
    events.listen(events.AttemptGivenBack)(given_back.append)
    PLACE["engine"] = late_start.execution_options(isolation_level=_level(level))
    for _ in range(3):
        dispatch(SnapshotHere()).send()
    drain()
    assert rows() == ["snapshot"] * 3
    assert (len(processed), given_back) == (3, [])
    assert connection.failed.page(9) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_whose_call_is_not_found_is_given_back_once_and_uncounted(
    connection: Connection, late_start: Engine, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    completing.succeeded(Snapshot.own_name(), Snapshot)  # one was done without
    # On a machine that stood still between the two, the worker would wait for the start's answer.
    reserved_at = connection.backend.clock()
    monkeypatch.setattr(connection.backend, "clock", lambda: reserved_at)
    given_back: list[events.AttemptGivenBack] = []
    events.listen(events.AttemptGivenBack)(given_back.append)
    PLACE["engine"] = late_start.execution_options(isolation_level=_level(level))
    if shop().kind == "postgresql":
        PLACE["first moment"] = 20  # the handler looks before, however busy the machine is
    for _ in range(3):
        dispatch(Snapshot()).send()
    drain()
    assert rows() == ["snapshot"] * 3
    assert len(given_back) == (1 if shop().kind == "postgresql" else 0)
    assert connection.failed.page(9) == []


def _level(level: str) -> str:
    return "SERIALIZABLE" if shop().kind == "sqlite" else level


def test_who_names_no_completion_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "waits", {})
    for name, kind in {
        "plain": Fetched,
        "elsewhere": Snapshot,
        "here": SnapshotHere,
        "inherited": Once,
        "by a function": ByFunction,
        "unknown": None,
    }.items():
        completing.succeeded(name, kind)
    waited_for = {"here": True, "inherited": True, "by a function": True}
    assert completing.waits == {"plain": False, "elsewhere": False, **waited_for}
    completing.learn("plain")
    completing.succeeded("plain", Fetched)
    assert completing.waits["plain"]


class Fetched(Queueable):
    def handle(self) -> None:
        rows()


class ByFunction(Queueable):
    def handle(self) -> None:
        with engine().begin() as connection:
            _finish(self.job, connection)


def test_a_lease_that_was_lost(
    connection: Connection, processed: list[events.JobProcessed]
) -> None:
    lost: list[events.JobLeaseLost] = []
    events.listen(events.JobLeaseLost)(lost.append)

    def is_late(job: Acts) -> None:
        with engine().begin() as theirs:
            theirs.execute(text("UPDATE jobs SET lease = 'another', reserved_at = leased_at"))
        with Session(engine()) as session, session.begin():
            insert(session, "twice")
            job.job.complete(within=session)

    acts(is_late)
    drain()
    assert rows() == []
    assert len(lost) == 1
    assert processed == []
    assert connection.size() == 1


def test_the_next_link_comes_with_the_commit() -> None:
    def fails_once(job: Acts) -> None:
        with Session(engine()) as session, session.begin():
            job.job.complete(within=session)
            raise RuntimeError("not yet")

    PLACE["acts"] = [fails_once]
    chain([Acts(name="a"), Book(name="b"), Book(name="c")]).dispatch()
    drain()
    assert rows() == ["a", "b", "c"]


def test_a_batch_counts_with_the_commit() -> None:
    made = batch([Book(name="a"), [Book(name="b"), Book(name="c")]]).then(Book(name="then"))
    found = made.dispatch()
    drain()
    assert rows() == ["a", "b", "c", "then"]
    assert found.fresh().is_finished


def test_a_status_and_a_lock() -> None:
    sent = dispatch(Once()).track()
    identity = sent.send()
    drain()
    found = job_status(identity)
    assert found is not None
    assert found.state is State.COMPLETE
    assert dispatch(Once()).send() != identity  # the lock is free


def test_without_a_transaction_it_is_done_at_once(connection: Connection) -> None:
    def completes(job: Acts) -> None:
        job.job.complete()
        assert connection.size() == 0
        with pytest.raises(JobAlreadySettled):
            job.job.complete(within=engine().connect())

    acts(completes)
    drain()
    gc.collect()
    assert connection.failed.page(9) == []


def test_no_transaction_is_an_error_of_the_job(connection: Connection) -> None:
    def mistakes(job: Acts) -> None:
        with pytest.raises(InvalidTransaction, match="not object"):
            job.job.complete(within=object())
        assert not job.job.is_settled

    acts(mistakes)
    drain()
    assert connection.size() == 0


def test_an_asynchronous_session() -> None:
    async def main(job: Acts) -> None:
        made = shop().async_engine()
        async with AsyncSession(made) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES ('async')"))
            await job.job.complete(within=session)
        await made.dispose()

    acts(lambda job: asyncio.run(main(job)))
    drain()
    assert rows() == ["async"]


def test_no_renewal_waits_for_the_transaction_and_one_that_was_rolled_back_is_renewed() -> None:
    def takes_long(job: Acts) -> None:
        reserved: Any = job.job
        with Session(engine()) as session:
            job.job.complete(within=session)
            began = time.monotonic()
            reserved.renew()
            assert (
                time.monotonic() - began < 15
            )  # SQLite waits 20 s for its writer, others for ever
            session.rollback()
        before = reserved.reservation.sure_until
        reserved.renew()
        assert reserved.reservation.sure_until > before
        with Session(engine()) as session, session.begin():
            insert(session, "long")
            job.job.complete(within=session)

    acts(takes_long)
    drain()
    assert PLACE["wrong"] is None
    assert rows() == ["long"]


def test_a_transaction_that_is_left_open_is_not_waited_for_longer_than_a_moment(
    connection: Connection,
) -> None:
    if shop().kind == "sqlite":
        pytest.skip("its one writer keeps everybody waiting")

    def leaves(job: Acts) -> None:
        session = PLACE["open"] = Session(engine())
        insert(session, "open")
        job.job.complete(within=session)

    acts(leaves)
    try:
        drain()
    finally:
        PLACE["open"].commit()
        PLACE["open"].close()
    assert rows() == ["open"]
    assert connection.size() == 0


def test_where_the_jobs_are_elsewhere() -> None:
    ran = run(Book())  # memory has no transactions
    ran.assert_done()


def test_the_sync_connection_runs_and_completes_at_once() -> None:
    dispatch(Book(name="sync")).on_connection("sync").send()
    assert rows() == ["sync"]
