"""Dispatches that wait for the commit of the program's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from qframe import (
    BackendUnavailable,
    InvalidJob,
    InvalidQueueName,
    Queueable,
    QueueManager,
    dispatch,
    events,
)
from qframe.dispatch.draft import flush
from qframe.testing import fake


class Welcome(Queueable):
    user: int = 1

    def handle(self) -> None: ...


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite3'}")
    with Session(engine) as made:
        made.execute(text("CREATE TABLE users (id INTEGER)"))
        made.commit()
        yield made
    engine.dispose()


def insert(session: Session) -> None:
    session.execute(text("INSERT INTO users VALUES (1)"))


def waiting(queues: QueueManager) -> int:
    return queues.connection().size() + queues.connection().size("x")


def test_it_is_pushed_after_the_commit_and_not_before(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    pending = dispatch(Welcome()).after_commit(session).on_queue("x")
    identity = pending.id
    del pending
    assert waiting(qframe_database) == 0
    session.commit()
    (job,) = qframe_database.connection().reserve(["x"])
    assert job.uuid == identity
    job.delete()
    insert(session)
    session.commit()
    assert waiting(qframe_database) == 0, "once"


def test_it_is_never_pushed_after_a_rollback(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    dispatch(Welcome()).after_commit(session)
    session.rollback()
    insert(session)
    session.commit()
    assert waiting(qframe_database) == 0


def test_it_is_never_pushed_after_the_session_was_closed(
    qframe_database: QueueManager, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "qframe.dispatch")
    insert(session)
    dispatch(Welcome()).after_commit(session).send()
    with session.begin_nested():
        dispatch(Welcome()).after_commit(session).send()
    session.close()
    assert "not dispatched, as the transaction was not committed: 2" in caplog.messages
    insert(session)
    session.commit()
    assert waiting(qframe_database) == 0


def test_a_savepoint_that_is_rolled_back_takes_its_dispatches_along(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    with session.begin_nested():
        dispatch(Welcome(user=1)).after_commit(session)
    assert waiting(qframe_database) == 0, "its savepoint is no commit"
    inner = session.begin_nested()
    dispatch(Welcome(user=2)).after_commit(session)
    inner.rollback()
    dispatch(Welcome(user=3)).after_commit(session)
    session.commit()
    jobs = qframe_database.connection().reserve(["default"], 3)
    assert [job.payload["data"]["user"] for job in jobs] == [1, 3]


def test_a_savepoint_that_ended_well_in_a_transaction_that_did_not(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    with session.begin_nested():
        dispatch(Welcome()).after_commit(session)
    session.rollback()
    insert(session)
    session.commit()
    assert waiting(qframe_database) == 0


def test_without_a_transaction_it_is_pushed_at_once(
    qframe_database: QueueManager, session: Session
) -> None:
    dispatch(Welcome()).after_commit(session)
    assert waiting(qframe_database) == 1


def test_sessions_of_other_kinds(qframe_database: QueueManager, session: Session) -> None:
    registry = scoped_session(sessionmaker(session.get_bind()))
    registry.execute(text("INSERT INTO users VALUES (1)"))
    dispatch(Welcome()).after_commit(registry)
    registry.commit()
    assert waiting(qframe_database) == 1
    registry.remove()
    insert(session)
    dispatch(Welcome()).after_commit(SimpleNamespace(sync_session=session))  # as an AsyncSession
    assert waiting(qframe_database) == 1
    session.commit()
    assert waiting(qframe_database) == 2


def test_a_function_as_djangos_on_commit(qframe_database: QueueManager) -> None:
    hooks: list[Callable[[], None]] = []
    dispatch(Welcome()).after_commit(hooks.append).delay(0)
    assert waiting(qframe_database) == 0
    (hook,) = hooks
    hook()
    hook()
    assert waiting(qframe_database) == 1


def test_what_is_no_transaction_is_one_clear_line(qframe_database: QueueManager) -> None:
    with pytest.raises(InvalidJob, match="after_commit takes a SQLAlchemy Session, or a function"):
        (pending := dispatch(Welcome())).after_commit("session")
    assert waiting(qframe_database) == 0
    assert pending.send(), "it waits for nothing"
    assert waiting(qframe_database) == 1


def test_a_fluent_call_that_raised_disarms_what_waits_for_a_commit(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    with pytest.raises(InvalidQueueName):
        dispatch(Welcome()).after_commit(session).on_queue("bad name")
    pending = dispatch(Welcome()).after_commit(session)
    with pytest.raises(InvalidJob):
        pending.delay(-5)
    with pytest.raises(InvalidJob):
        (before := dispatch(Welcome())).delay(-5)
    before.after_commit(session)
    session.commit()
    assert waiting(qframe_database) == 0


def test_a_dispatch_that_was_disarmed_is_pushed_at_the_commit_where_it_is_sent_all_the_same(
    qframe_database: QueueManager, session: Session
) -> None:
    insert(session)
    pending = dispatch(Welcome()).after_commit(session)
    with pytest.raises(InvalidJob):
        pending.delay(-5)
    assert pending.send()
    assert waiting(qframe_database) == 0
    session.commit()
    assert waiting(qframe_database) == 1


def test_awaiting_it_gives_the_id_and_pushes_nothing(
    qframe_database: QueueManager, session: Session
) -> None:
    async def order() -> str:
        insert(session)
        return await dispatch(Welcome()).after_commit(session)

    assert asyncio.run(order())
    assert waiting(qframe_database) == 0


def test_a_push_that_fails_after_the_commit_is_told_and_breaks_nothing(
    qframe_database: QueueManager, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    raised: list[Any] = []
    monkeypatch.setattr(events, "_listeners", [])
    events.listen(events.JobDispatchFailed)(told.append)
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    queue = qframe_database.connection()
    queue.settings.push_retries = 0

    def broken(*_: object) -> str:
        raise BackendUnavailable("no way")

    monkeypatch.setattr(queue.backend, "apply", broken)
    insert(session)
    dispatch(Welcome()).after_commit(session)
    session.commit()
    flush()
    assert [str(event.error) for event in told] == ["no way"]
    assert len(raised) == 1


def test_a_fake_has_it_at_the_commit(session: Session, qframe_database: QueueManager) -> None:
    with fake() as queued:
        insert(session)
        dispatch(Welcome()).after_commit(session)
        queued.assert_nothing_dispatched()
        session.commit()
        queued.assert_dispatched(Welcome, times=1)
