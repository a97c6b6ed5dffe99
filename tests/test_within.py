"""Dispatches in the program's own transaction: committed with its rows, or not at all."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from qframe import (
    InvalidJob,
    Queueable,
    QueueManager,
    abulk,
    batch,
    bulk,
    chain,
    dispatch,
    events,
    job_status,
)
from qframe.contracts.status import State
from qframe.dispatch.batch import MemberJobs, find_batch
from qframe.dispatch.draft import flush
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidTransaction, Unsupported
from qframe.testing import drain, fake
from tests.support.shop import Shop

RAN: list[str] = []


class Ship(Queueable):
    order: str = "a"

    def handle(self) -> None:
        RAN.append(self.order)


class ShipOnce(Ship):
    unique = True


class Fetched(Queueable):
    of: str = ""

    def handle(self) -> None:
        RAN.append("fetched")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    with Session(shop.engine) as made:
        yield made


def test_it_is_committed_with_the_row(shop: Shop, session: Session) -> None:
    shop.order(session)
    sent = dispatch(Ship()).on_queue("x").delay(5).within(session)
    assert len(sent.id) == 36
    assert shop.waiting() == 0
    session.commit()
    assert shop.queue.sizes("x").delayed == 1
    del sent
    flush()
    assert shop.waiting() == 1


def test_it_is_rolled_back_with_the_row(shop: Shop, session: Session) -> None:
    shop.order(session)
    dispatch(Ship()).within(session)
    dispatch(ShipOnce(order="b")).track().within(session)
    session.rollback()
    flush()
    session.close()
    assert (shop.waiting(), shop.orders()) == (0, [])


def test_a_unique_job_locks_with_the_commit(shop: Shop, session: Session) -> None:
    dispatch(ShipOnce()).within(session)
    session.rollback()
    first = dispatch(ShipOnce()).within(session)
    second = dispatch(ShipOnce()).within(session)
    assert second.id == first.id
    session.commit()
    assert shop.waiting() == 1
    assert dispatch(ShipOnce()).send() == first.id


def test_a_tracked_job_has_its_status_with_the_commit(session: Session) -> None:
    sent = dispatch(Ship()).track().within(session)
    assert job_status(sent.id) is None
    session.commit()
    found = job_status(sent.id)
    assert found is not None
    assert found.state is State.WAITING


def test_a_chain(shop: Shop, session: Session) -> None:
    chain([Ship(order="a"), Ship(order="b")]).within(session)
    session.rollback()
    identity = chain([Ship(order="c"), Ship(order="d")]).on_queue("x").within(session)
    assert len(identity) == 36
    assert shop.waiting() == 0
    session.commit()
    drain(queues=["x"])
    assert RAN == ["c", "d"]


def test_a_batch(shop: Shop, session: Session) -> None:
    jobs: list[MemberJobs] = [
        Ship(order="a"),
        ShipOnce(order="b"),
        [Ship(order="c"), Ship(order="d")],
    ]
    gone = batch(jobs).within(session)
    session.rollback()
    assert find_batch(gone.id) is None
    made = batch(jobs).then(Fetched()).within(session)
    assert (made.total, made.is_finished) == (3, False)
    assert shop.waiting() == 0
    session.commit()
    session.close()
    drain()
    assert sorted(RAN) == ["a", "b", "c", "d", "fetched"]
    assert made.fresh().is_finished


def test_many_at_once(shop: Shop, session: Session) -> None:
    bulk([Ship(), ShipOnce()], within=session)
    session.rollback()
    ids = bulk([Ship(), Ship(), ShipOnce(), ShipOnce()], "x", within=session)
    assert len(set(ids)) == 3
    assert [each.job_class for each in ids] == [Ship, Ship, ShipOnce, ShipOnce]
    assert shop.waiting() == 0
    session.commit()
    assert shop.waiting() == 3


def test_what_goes_wrong_is_raised_and_nothing_is_pushed_behind_it(
    shop: Shop, session: Session
) -> None:
    with pytest.raises(InvalidTransaction, match="not str"):
        dispatch(Ship()).within("session")
    with create_engine("sqlite://", poolclass=NullPool).connect() as elsewhere:
        pending = dispatch(Ship())
        with pytest.raises(InvalidTransaction, match="the transaction is one of"):
            pending.within(elsewhere)
        del pending
    flush()
    assert shop.waiting() == 0


def test_it_is_within_or_after_the_commit(shop: Shop, session: Session) -> None:
    with pytest.raises(InvalidJob, match="one of them"):
        dispatch(Ship()).after_commit(lambda act: None).within(session)
    shop.order(session)
    with pytest.raises(InvalidJob, match="one of them"):
        dispatch(Ship()).after_commit(session).within(session)
    session.commit()
    flush()
    sent = dispatch(Ship()).on_connection("null")
    sent.send()
    with pytest.raises(InvalidJob, match="pushed already"):
        sent.within(session)
    assert shop.waiting() == 0


def test_where_the_jobs_are_elsewhere(session: Session) -> None:
    manager = QueueManager({"connections": {"queue": {"driver": "redis"}}})
    with pytest.raises(Unsupported, match=r"'queue' \(redis\) cannot push within"):
        joined(manager.connection("queue"), session)


def test_sync_runs_it_at_once_and_null_drops_it(session: Session) -> None:
    dispatch(Ship(order="now")).on_connection("sync").within(session)
    assert RAN == ["now"]
    session.rollback()
    dispatch(Ship(order="never")).on_connection("null").within(session)
    chain([Ship(order="b"), Ship(order="c")]).on_connection("sync").within(session)
    assert RAN == ["now", "b", "c"]


def test_a_fake_writes_it_down_whatever_the_transaction(session: Session) -> None:
    with fake() as queued:
        dispatch(Ship()).on_queue("x").within(object())
        bulk([Ship(order="b")], within=object())
        chain([Ship(), Ship()]).within(object())
        batch([Ship()]).within(session)
    queued.assert_dispatched(Ship, queue="x", times=1)
    queued.assert_chained([Ship, Ship])
    queued.assert_batched(jobs=[Ship])


# -- asynchronous ---------------------------------------------------------------------------------


@pytest.fixture
def engine(shop: Shop) -> AsyncEngine:
    return shop.async_engine()


def run(engine: AsyncEngine, act: Callable[[AsyncSession], Any], *, commit: bool = True) -> Any:
    async def main() -> Any:
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO orders VALUES ('a')"))
            try:
                return await act(session)
            finally:
                await (session.commit() if commit else session.rollback())
                await session.close()
                await engine.dispose()

    return asyncio.run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_an_asynchronous_session_is_awaited(shop: Shop, engine: AsyncEngine, commit: bool) -> None:
    async def act(session: AsyncSession) -> None:
        identity = await dispatch(Ship()).within(session)
        assert len(identity) == 36
        assert len(await abulk([Ship(), ShipOnce()], within=session)) == 2
        await chain([Ship(), Ship()]).within(session)
        made = await batch([Ship(), Ship()]).within(await session.connection())
        assert made.total == 2
        assert shop.waiting() == 0

    run(engine, act, commit=commit)
    assert shop.waiting() == 6 * commit


def test_one_that_is_never_awaited_is_reported(
    shop: Shop,
    engine: AsyncEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    failed: list[events.JobDispatchFailed] = []
    events.listen(events.JobDispatchFailed)(failed.append)

    async def act(session: AsyncSession) -> None:
        dispatch(Ship()).within(session)
        with pytest.raises(InvalidJob, match="by awaiting it"):
            dispatch(Ship()).within(session).send()
        gc.collect()

    with caplog.at_level(logging.CRITICAL):
        run(engine, act)
        flush()
    assert "by awaiting it" in caplog.text
    assert len(failed) == 1
    assert shop.waiting() == 0


def test_the_events_of_sqlalchemy_see_what_runs(session: Session) -> None:
    seen: list[str] = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *a: seen.append(a[2]))
    dispatch(Ship()).within(session)
    session.commit()
    assert any(each.startswith("INSERT INTO jobs") for each in seen)
