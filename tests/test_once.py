"""Idempotency keys as they are declared and dispatched: `dispatch(job).once(key, within=...)`."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from qframe import (
    InvalidJob,
    JobDefinitionError,
    Queueable,
    QueueManager,
    abulk,
    batch,
    bulk,
    chain,
    dispatch,
    dispatch_sync,
    events,
    foreign,
    manager,
    queueable,
)
from qframe.dispatch.draft import flush
from qframe.exceptions import BackendUnavailable
from qframe.payload.envelope import create
from qframe.testing import drain, fake
from tests.conftest import settings_of
from tests.support.shop import Shop

RAN: list[str] = []


class Charge(Queueable):
    order: int = 7
    fails: bool = False

    def handle(self) -> None:
        RAN.append(f"{self.order}")
        if self.fails:
            raise ValueError("no")


class Refund(Charge):
    pass


class Report(Queueable):
    day: str = "mon"
    full: bool = False
    once = timedelta(hours=1)

    def unique_id(self) -> str:
        return self.day

    def handle(self) -> None:
        RAN.append(self.day)


@queueable(once=60)
def ping(host: str) -> None: ...


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> QueueManager:
    RAN.clear()
    made = QueueManager({"root": fresh, "default": "database", "jobs": [__name__]})
    manager.use(made)
    return made


def let_pass(queues: QueueManager, seconds: float) -> None:
    queues.connection().backend.timing.skew += seconds


# -- a dispatch -----------------------------------------------------------------------------------


def test_a_second_dispatch_with_the_key_gives_the_first_ones_id(queues: QueueManager) -> None:
    first = dispatch(Charge()).once("order-7", within=3600)
    second = dispatch(Charge(order=8)).once("order-7", within=60)
    assert first.send() == second.send()
    assert second.is_duplicate
    assert not first.is_duplicate
    assert queues.connection().size() == 1


def test_whatever_became_of_the_first_and_until_its_time_is_over(queues: QueueManager) -> None:
    first = dispatch(Charge(fails=True)).once("k", within=timedelta(hours=1)).send()
    assert drain().failed == 1
    let_pass(queues, 3599)
    assert dispatch(Charge()).once("k", within=1e9).send() == first
    let_pass(queues, 2)
    assert dispatch(Charge()).once("k", within=60).send() != first
    assert RAN == ["7"]


def test_keys_of_other_jobs_are_other_keys(queues: QueueManager) -> None:
    kinds: list[Callable[[], Any]] = [Charge, Refund, lambda: foreign("App\\Charge", {})]
    sent = [dispatch(each()).once("order-7", within=60) for each in kinds for _ in range(2)]
    assert [each.is_duplicate for each in sent] == [False, True] * 3


def test_a_key_is_a_text_a_number_or_a_uuid(queues: QueueManager) -> None:
    one = uuid.uuid4()
    keys: list[Any] = [7, "7", one, str(one), "é", "x" * 5000]
    sent = [dispatch(Charge()).once(key, within=60) for key in keys]
    assert [each.is_duplicate for each in sent] == [False, True, False, True, False, False]
    found = queues.connection().store.keys("once:")
    assert len(found) == 4
    assert all(key.isascii() and len(key) < 150 for key in found)


@pytest.mark.parametrize("key", ["", None, True, 1.5, b"x", ["x"]])
def test_what_is_no_key_is_refused(queues: QueueManager, key: Any) -> None:
    with pytest.raises(InvalidJob, match="once: the key must be a text, a whole number or a UUID"):
        dispatch(Charge()).once(key, within=60)
    flush()
    assert queues.connection().size() == 0, "a call that raised disarms the dispatch"


@pytest.mark.parametrize(
    "within", [0, -1, "60", None, True, float("inf"), timedelta(0), datetime.now(UTC)]
)
def test_what_is_no_time_is_refused(within: Any) -> None:
    with pytest.raises(InvalidJob, match="once: within must"):
        dispatch(Charge()).once("k", within=within)


def test_other_words_keep_the_key(queues: QueueManager) -> None:
    def pending() -> Any:
        made = dispatch(Charge()).once("k", within=60).on_queue("high")
        return made.on_connection("database").track().priority(5).delay(1)

    assert [pending().is_duplicate for _ in range(2)] == [False, True]
    assert queues.connection().size("high") == 1


def test_an_event_tells_of_the_duplicate_also_of_a_dropped_one(queues: QueueManager) -> None:
    heard: list[events.JobDuplicate] = []
    with events.kept():
        events.listen(events.JobDuplicate)(heard.append)
        first = dispatch(Charge()).once("k", within=60).send()
        dispatch(Charge()).once("k", within=60)
        gc.collect()
        flush()
        assert asyncio.run(awaited()) == first
    assert [(each.id, each.queue) for each in heard] == [(first, "default")] * 2
    assert queues.connection().size() == 1


async def awaited() -> str:
    return await dispatch(Charge()).once("k", within=60)


def test_a_push_that_fails_leaves_no_key(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BackendUnavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(type(queues.connection().backend), "apply", gone)
        with pytest.raises(BackendUnavailable):
            dispatch(Charge()).once("k", within=60).send()
    assert not dispatch(Charge()).once("k", within=60).is_duplicate


def test_a_dispatch_that_is_sent_again_is_no_duplicate_of_itself(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was pushed, and its reply was lost."""
    backend = queues.connection().backend
    apply = backend.apply

    def unheard(*steps: Any) -> Any:
        apply(*steps)
        raise BackendUnavailable("the reply is lost")

    pending = dispatch(Charge()).once("k", within=60)
    with monkeypatch.context() as broken:
        broken.setattr(backend, "apply", unheard)
        with pytest.raises(BackendUnavailable):
            pending.send()
    other = dispatch(Charge()).once("k", within=60)
    assert pending.send() == other.send()
    assert (pending.is_duplicate, other.is_duplicate) == (False, True)
    assert queues.connection().size() == 1


# -- a class --------------------------------------------------------------------------------------


def test_a_class_declares_it_and_its_unique_id_is_the_key(queues: QueueManager) -> None:
    first = Report.dispatch(day="mon").send()
    assert bulk([Report(day="mon", full=True), Report(day="tue"), Report(day="tue")])[0] == first
    assert drain().done == 2
    assert dispatch(Report(day="mon")).is_duplicate
    let_pass(queues, 3601)
    assert not dispatch(Report(day="mon")).is_duplicate
    assert [ping.dispatch(host).is_duplicate for host in "aab"] == [False, True, False]


def test_a_dispatch_has_a_key_in_place_of_the_classs(queues: QueueManager) -> None:
    Report.dispatch().send()
    assert not Report.dispatch().once("by hand", within=60).is_duplicate
    assert Report.dispatch().once("by hand", within=60).is_duplicate


def test_a_unique_job_may_have_both(queues: QueueManager) -> None:
    class Both(Report):
        job_name = "both"
        unique = True
        once = timedelta(minutes=1)

    first = Both.dispatch().send()
    assert Both.dispatch().once("another", within=60).send() == first, "it waits"
    drain()
    assert Both.dispatch().send() == first, "it was a moment ago"
    assert not Both.dispatch().once("another", within=60).is_duplicate


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"once": 0}, "once must be more than 0 seconds, or a timedelta, not 0"),
        ({"once": True}, "once must be more than 0 seconds"),
        ({"once": 5, "debounce": 5}, "debounce and once do not go together"),
        ({"once": 5, "unique_for": 5}, "unique_for does nothing without unique = True"),
        ({"unique_id": "x"}, "unique_id does nothing without unique = True, or debounce, or once"),
    ],
)
def test_what_is_declared_wrongly_is_one_clear_line(body: dict[str, Any], told: str) -> None:
    with pytest.raises(JobDefinitionError, match=told) as caught:
        type("Wrong", (Queueable,), {"handle": lambda self: None, **body})
    assert "\n" not in str(caught.value)


def test_a_foreign_job_gets_its_key_at_its_dispatch() -> None:
    options: dict[str, Any] = {"once": 5}
    with pytest.raises(InvalidJob, match=r"give the key at its dispatch, \.once\(key, within"):
        foreign("App\\Import", {}, **options)


def test_the_payload_says_it_where_drivers_do_not_look() -> None:
    said = create(Report(day="mon"))
    assert said["once"]["for"] == 3600
    assert said["once"]["key"].startswith("once:tests.test_once.Report:")
    assert list(said)[-3:] == ["id", "attempts", "delay"]
    assert "once" not in create(Charge())


# -- wherever jobs are dispatched -----------------------------------------------------------------


def test_bulk_gives_the_ids_in_order(queues: QueueManager) -> None:
    first, again, other, plain = bulk([Report(), Report(), Report(day="tue"), Charge()])
    assert first == again
    assert len({first, other, plain}) == 3
    assert asyncio.run(abulk([Report(), Report(day="wed"), Report(day="wed")]))[0] == first
    assert queues.connection().size() == 4


def test_a_chain_passes_over_a_link_that_was_dispatched_before(queues: QueueManager) -> None:
    Report.dispatch(day="mon").send()
    chain([Charge(order=1), Report(day="mon"), Report(day="tue"), Charge(order=2)]).dispatch()
    drain()
    assert sorted(RAN) == ["1", "2", "mon", "tue"]
    chain([Report(day="mon"), Charge(order=3)]).dispatch()
    drain()
    assert RAN[4:] == ["3"]


def test_a_batch_counts_such_a_member_as_done(queues: QueueManager) -> None:
    Report.dispatch(day="mon").send()
    made = batch([Report(day="mon"), Report(day="tue"), Report(day="tue")]).then(Charge())
    sent = made.dispatch()
    drain()
    assert RAN == ["mon", "tue", "7"]
    assert sent.fresh().is_finished


def test_within_a_transaction_the_key_is_committed_with_the_job(shop: Shop) -> None:
    for commits in (False, True):
        with Session(shop.engine) as session:
            shop.order(session)
            assert not dispatch(Charge()).once("k", within=60).within(session).is_duplicate
            assert dispatch(Charge()).once("k", within=60).within(session).is_duplicate
            if commits:
                session.commit()
        assert shop.waiting() == commits
    assert dispatch(Charge()).once("k", within=60).is_duplicate


def test_after_a_commit_the_key_is_taken_by_the_push(shop: Shop) -> None:
    for commits in (False, True):
        with Session(shop.engine) as session:
            shop.order(session)
            pending = dispatch(Charge()).once("k", within=60).after_commit(session)
            if commits:
                session.commit()
        flush()
        assert shop.waiting() == commits
        del pending
    assert dispatch(Charge()).once("k", within=60).is_duplicate


def test_on_sync_and_at_once(queues: QueueManager) -> None:
    first = dispatch(Report()).on_connection("sync").send()
    assert dispatch(Report()).on_connection("sync").send() == first
    assert RAN == ["mon"]
    dispatch_sync(Report())
    assert RAN == ["mon", "mon"], "which runs it, whatever was dispatched"
    with pytest.raises(ValueError, match="no"):
        dispatch(Charge(fails=True)).once("k", within=60).on_connection("sync").send()
    assert dispatch(Charge()).once("k", within=60).on_connection("sync").is_duplicate


def test_null_keeps_no_key() -> None:
    sent = [dispatch(Report()).on_connection("null") for _ in range(2)]
    assert not any(each.is_duplicate for each in sent)


def test_a_fake_records_it_once(queues: QueueManager) -> None:
    with fake() as queued:
        first = dispatch(Charge()).once("k", within=60).send()
        assert dispatch(Charge(order=8)).once("k", within=60).send() == first
        assert Report.dispatch().send() == Report.dispatch().send()
    queued.assert_dispatched(Charge, times=1)
    queued.assert_dispatched(Report, times=1)
    assert not dispatch(Charge()).once("k", within=60).is_duplicate


@pytest.mark.parametrize(
    "connected",
    ["memory", "redis", "redis cluster", "postgresql", "mariadb", "beanstalkd"],
    indirect=True,
)
def test_on_every_backend(connected: QueueManager) -> None:
    connection = connected.connection()
    key, queue = uuid.uuid4(), uuid.uuid4().hex
    pending = [
        dispatch(Charge(order=each)).on_queue(queue).once(key, within=60) for each in range(3)
    ]
    first = pending[0].send()
    assert [each.send() for each in pending] == [first] * 3
    (job,) = connection.reserve([queue], 5)
    assert job.uuid == first
    assert job.skip_reason() is None
    assert connection.backend.apply(job.start_plan())[0].applied
    job.delete()
    assert dispatch(Charge()).on_queue(queue).once(key, within=60).send() == first
    assert connection.reserve([queue], 5) == []
    connection.close()


@pytest.fixture
def connected(request: pytest.FixtureRequest, queues: QueueManager, fresh: Path) -> QueueManager:
    made = QueueManager(
        {"root": fresh, "default": "here", "connections": {"here": settings_of(request)}}
    )
    manager.use(made)
    return made
