"""Dispatches within a transaction for a queue elsewhere, and the relay that hands them on."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from qframe import (
    Queueable,
    QueueManager,
    batch,
    bulk,
    chain,
    dispatch,
    events,
    job_status,
    manager,
)
from qframe.contracts.backend import Backend
from qframe.contracts.outbox import Outbox
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Push, Set, Step
from qframe.dispatch.batch import find_batch
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import ConfigurationError, PayloadTooLarge, Unsupported
from qframe.outbox import handing
from qframe.outbox.relay import Relay
from qframe.outbox.text import encoded
from qframe.payload import signature
from qframe.testing import drain
from tests.outbox.conftest import count, settings
from tests.support.redis_server import RedisServer

RAN: list[str] = []


class Ship(Queueable):
    order: str = "a"

    def handle(self) -> None:
        RAN.append(self.order)


class ShipOnce(Ship):
    unique = True


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


Run = Callable[[], Relay]


def orders(queues: QueueManager, name: str | None = None) -> list[str]:
    """The orders that wait, in their order."""
    found = queues.connection(name).backend.reserve(["default"], 100_000)[0]
    return [json.loads(each.raw_body)["data"]["order"] for each in found]


def test_it_is_handed_on_after_the_commit(
    queues: QueueManager, session: Session, relay: Run
) -> None:
    sent = dispatch(Ship(order="1")).within(session)
    assert relay().totals.handed_on == 0
    session.commit()
    assert relay().totals.handed_on == 1
    (job,) = queues.connection().reserve(["default"])
    assert job.uuid == sent.id
    assert count(session) == 0


def test_what_is_rolled_back_is_not(session: Session, relay: Run) -> None:
    dispatch(Ship()).within(session)
    chain([Ship(), Ship()]).within(session)
    session.rollback()
    assert relay().totals.handed_on == 0
    assert count(session) == 0


def test_all_in_the_order_of_the_dispatches(
    queues: QueueManager, session: Session, relay: Run
) -> None:
    for number in range(120):
        dispatch(Ship(order=str(number))).within(session)
        if number % 50 == 0:
            session.commit()
    bulk([Ship(order=str(number)) for number in range(120, 400)], within=session)
    session.commit()
    assert relay().totals.handed_on == 123
    assert orders(queues) == [*map(str, range(400))]


def test_every_kind_of_dispatch(queues: QueueManager, session: Session, relay: Run) -> None:
    tracked = dispatch(Ship(order="tracked")).track().within(session)
    chain([Ship(order="c1"), Ship(order="c2")]).within(session)
    made = (
        batch([Ship(order="b1"), [Ship(order="b2"), Ship(order="b3")]])
        .then(Ship(order="then"))
        .within(session)
    )
    assert (made.total, made.pending) == (2, 2)
    assert find_batch(made.id) is None
    session.commit()
    relay()
    found = job_status(tracked.id)
    assert found is not None
    assert found.state is State.WAITING
    drain()
    assert sorted(RAN) == ["b1", "b2", "b3", "c1", "c2", "then", "tracked"]
    assert made.fresh().is_finished


def test_a_duplicate_is_judged_where_it_arrives(
    queues: QueueManager, session: Session, relay: Run
) -> None:
    heard: list[events.JobDuplicate] = []
    events.listen(events.JobDuplicate)(heard.append)
    first = dispatch(ShipOnce()).within(session)
    second = dispatch(ShipOnce()).within(session)
    assert first.id != second.id
    session.commit()
    totals = relay().totals
    assert (totals.handed_on, totals.duplicates) == (1, 1)
    assert [(each.queue, each.id) for each in heard] == [("default", first.id)]
    assert orders(queues) == ["a"]


def test_a_chain_and_a_batch_go_on_behind_a_duplicate(session: Session, relay: Run) -> None:
    dispatch(ShipOnce(order="one")).within(session)
    chain([ShipOnce(order="one"), Ship(order="c")]).within(session)
    made = (
        batch([ShipOnce(order="one"), [ShipOnce(order="one"), Ship(order="b")]])
        .then(Ship(order="then"))
        .within(session)
    )
    session.commit()
    assert relay().totals.duplicates == 2  # one more, in the batch, was seen at once
    drain()
    assert sorted(RAN) == ["b", "c", "one", "then"]
    assert made.fresh().is_finished


def test_a_delay_counts_from_the_dispatch(queues: QueueManager, outbox: Outbox, relay: Run) -> None:
    queues.backend("main").timing.skew = -30
    outbox.add("redis", [encoded(Step(None, Push("default", b"{}", delay=10)))])
    outbox.add("redis", [encoded(Step(None, Push("default", b"{}", delay=100)))])
    queues.backend("main").timing.skew = 0
    relay()
    sizes = queues.connection().sizes()
    assert (sizes.ready, sizes.delayed) == (1, 1)


# -- at least once, applied once ------------------------------------------------------------------


class Dead(BaseException):
    """The relay is at its end."""


def die(*_: object, **__: object) -> Any:
    raise Dead


@pytest.mark.parametrize("jobs", [[Ship(order="1")], [ShipOnce(order="1"), Ship(order="2")]])
def test_a_step_whose_row_was_not_removed_is_applied_once(
    queues: QueueManager,
    session: Session,
    relay: Run,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Ship],
) -> None:
    for job in jobs:
        dispatch(job).within(session)
    session.commit()
    with monkeypatch.context() as patch:
        patch.setattr("qframe.drivers.database.outbox._DatabaseClaim.remove", die)
        with pytest.raises(Dead):
            relay()
    assert count(session) == len(jobs)
    assert relay().totals.handed_on == len(jobs)
    assert orders(queues) == [job.order for job in jobs]


def test_marks_are_kept_long_only_while_their_rows_are_there(
    queues: QueueManager, session: Session, outbox: Outbox, redis_running: RedisServer
) -> None:
    made = Relay(queues, outbox)
    for _ in range(2):
        dispatch(Ship()).within(session)
        session.commit()
        made.turn()
    keys = redis_running.command("KEYS", "*relayed:*")
    lives = sorted(redis_running.command("TTL", key) for key in keys)
    assert lives[0] <= handing.KEPT_REMOVED
    assert handing.KEPT - 60 < lives[1] <= handing.KEPT


def test_one_relay_at_a_time(queues: QueueManager, session: Session, outbox: Outbox) -> None:
    dispatch(Ship()).within(session)
    session.commit()
    found: list[object] = []

    def look() -> None:
        other = queues.backend("main").outbox()
        with other.claim("redis") as claim:
            found.append(claim)
        other.close()

    with outbox.claim("redis") as claim:
        assert claim is not None
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [None]
    look()
    assert found[1] is not None


def test_a_claim_that_is_old_is_not_trusted(
    queues: QueueManager, session: Session, outbox: Outbox
) -> None:
    dispatch(Ship()).within(session)
    session.commit()
    with outbox.claim("redis") as claim:
        assert claim is not None
        since = queues.connection().backend.clock() - handing.STALE - 1
        rows = handing.Handing(queues.connection(), claim.rows, since, (), handing.Totals())
        rows.hand_on()
        assert rows.done == []
    assert queues.connection().size() == 0


# -- what cannot be handed on ---------------------------------------------------------------------


def test_a_dispatch_needs_no_receiver_and_others_go_on(
    fresh: object, url: str, redis_url: str, relay: object
) -> None:
    away = {"driver": "redis", "url": "redis://127.0.0.1:9/0", "connect_timeout": 0.5}
    tubes = {"driver": "beanstalkd", "port": 9, "connect_timeout": 0.5}
    here = {"driver": "redis", "url": redis_url}
    queues = QueueManager(settings(url, away=away, tubes=tubes, here=here))
    manager.use(queues)
    queues.backend("main").migrate()
    outbox = queues.outbox()
    assert outbox is not None
    from sqlalchemy import create_engine

    engine = create_engine(url)
    with Session(engine) as session:
        for name in ("away", "tubes", "here"):
            dispatch(Ship()).on_connection(name).within(session)
            dispatch(ShipOnce()).on_connection(name).track().within(session)
            chain([Ship(), Ship()]).on_connection(name).within(session)
            batch([Ship(), Ship()]).on_connection(name).within(session)
        session.commit()
    engine.dispose()
    lost: list[str] = []
    made = Relay(queues, outbox, lambda name, _: lost.append(name))
    made.run(0, lambda: False, until_empty=True)
    assert queues.connection("here").size() == 5
    assert sorted(lost) == sorted(made.unanswered) == ["away", "tubes"]
    assert [(lag.connection, lag.set_aside) for lag in outbox.lags()] == [
        ("away", 0), ("tubes", 0),
    ]  # fmt: skip


def test_an_unknown_connection_waits_to_be_known(
    queues: QueueManager, outbox: Outbox, session: Session, relay: Run
) -> None:
    outbox.add("other", [encoded(Step(None, Push("default", b"{}")))])
    dispatch(Ship()).within(session)
    session.commit()
    made = relay()
    assert made.unanswered == ["other"]
    assert queues.connection().size() == 1
    assert [lag.connection for lag in outbox.lags()] == ["other"]


def test_what_cannot_be_taken_is_set_aside(
    queues: QueueManager, outbox: Outbox, session: Session, relay: Run
) -> None:
    poison = '{"version":1,"operations":[{"is":"Nothing"}]}'
    dispatch(Ship(order="1")).within(session)
    session.commit()
    outbox.add("redis", [poison, encoded(Step(None, Expect("nobody", "has"), Set("it", "now")))])
    dispatch(Ship(order="2")).within(session)
    session.commit()
    assert relay().totals.set_aside == 2
    assert orders(queues) == ["1", "2"]
    (lag,) = outbox.lags()
    assert (lag.waiting, lag.set_aside) == (0, 2)
    assert "unknown here: 'Nothing'" in lag.error
    queues.connection().backend.apply(Step(None, Set("nobody", "has")))
    assert outbox.retry() == 2
    assert relay().totals.handed_on == 1
    assert queues.connection().backend.read("it") == ["now"]
    assert [lag.set_aside for lag in outbox.lags()] == [1]


def test_a_job_that_is_set_aside_holds_nothing_and_takes_it_when_it_is_taken_up(
    queues: QueueManager, outbox: Outbox, session: Session, relay: Run,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """Where its lock and its status are written before its push: nobody is its duplicate."""
    facts = QueueManager(
        {"connections": {"f": {"driver": "database", "url": f"sqlite:///{tmp_path}/f"}}}
    )
    receiver = queues.connection()
    ordered = OrderedBackend(receiver.backend, facts.backend("f"), facts.backend("f"))
    monkeypatch.setattr(receiver, "context", dataclasses.replace(receiver.context, backend=ordered))
    pending = dispatch(ShipOnce(order="1")).track()
    pending.within(session)
    session.commit()
    with monkeypatch.context() as broken:
        broken.setattr(ordered, "messages", _Refusing(receiver.backend))
        assert relay().totals.set_aside == 1
    assert ordered.scan("unique:") == ordered.scan("status:") == ordered.scan("relayed:") == []
    assert outbox.retry() == 1
    assert relay().totals.handed_on == 1
    assert orders(queues) == ["1"]
    assert len(ordered.scan("unique:")) == len(ordered.scan("status:")) == 1
    facts.close()


class _Refusing:
    """Messages in a backend that takes none of these."""

    def __init__(self, backend: Backend) -> None:
        self.clock = backend.clock

    def apply(self, *_: Step) -> list[Any]:
        raise PayloadTooLarge("larger than the server takes")


def test_a_payload_too_large_is_refused_at_the_dispatch(
    queues: QueueManager, session: Session
) -> None:
    with pytest.raises(PayloadTooLarge):
        dispatch(Ship(order="x" * 1_000_001)).within(session)


# -- which outbox ---------------------------------------------------------------------------------


def test_without_an_outbox_it_says_what_to_configure(
    queues: QueueManager, session: Session, redis_url: str
) -> None:
    manager.use(QueueManager({
        "default": "redis", "connections": {"redis": {"driver": "redis", "url": redis_url}},
    }))  # fmt: skip
    with pytest.raises(Unsupported, match=r'under \[outbox\], such as connection = "main"'):
        dispatch(Ship()).within(session)


def test_an_outbox_is_in_a_database(redis_url: str) -> None:
    queues = QueueManager({"outbox": {"connection": "redis"}})
    with pytest.raises(ConfigurationError, match="'redis' is no SQL database"):
        queues.outbox()


def test_jobs_in_another_database_go_by_the_outbox(
    queues: QueueManager, session: Session, url: str, tmp_path: object
) -> None:
    other = {"driver": "database", "url": f"sqlite:///{tmp_path}/jobs.sqlite3"}
    made = QueueManager(settings(url, other=other))
    manager.use(made)
    dispatch(Ship(order="1")).within(session)
    dispatch(ShipOnce(order="2")).within(session)
    assert made.connection().size() == 0
    session.commit()
    outbox = made.outbox()
    assert outbox is not None
    relay = Relay(made, outbox)
    relay.run(0, lambda: False, until_empty=True)
    assert made.connection().size() == 2
    dispatch(Ship(order="3")).on_connection("main").within(session)
    session.commit()
    assert made.connection("main").size() == 1
    made.close()


KEYED = {"signing_keys": ["a signing key of these tests"]}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("forgery", ["unsigned", "changed", "another connection's"])
def test_a_row_that_nobody_signed_is_set_aside_at_once(
    queues: QueueManager, url: str, redis_url: str, session: Session, forgery: str
) -> None:
    redis = {"driver": "redis", "url": redis_url}
    queues = QueueManager({**settings(url, redis=redis, other=redis), **KEYED})
    manager.use(queues)
    heard: list[events.StoredRefused] = []
    dispatch(Ship(order="honest")).within(session)
    session.commit()
    (step,) = session.execute(text("SELECT step FROM qframe_outbox")).scalars()
    forged = {
        "unsigned": signature.unsealed(step),
        "changed": step.replace("honest", "evil!!"),
        "another connection's": step,
    }[forgery]
    to = "other" if forgery.startswith("another") else "redis"
    session.execute(
        text("UPDATE qframe_outbox SET step = :step, connection = :to"), {"step": forged, "to": to}
    )
    session.commit()
    outbox = queues.outbox()
    assert outbox is not None
    reader, writer = os.pipe()
    with events.kept():
        events.listen(events.StoredRefused)(heard.append)
        made = Relay(queues, outbox)
        made.run(reader, lambda: False, until_empty=True)
    os.close(reader)
    os.close(writer)
    assert (made.totals.handed_on, made.totals.set_aside) == (0, 1)
    assert [each.connection for each in heard] == [to]
    (lag,) = outbox.lags()
    assert "sign" in lag.error
    assert queues.connection("redis").size() == 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_was_signed_is_handed_on(
    queues: QueueManager, url: str, redis_url: str, session: Session
) -> None:
    queues = QueueManager({**settings(url, redis={"driver": "redis", "url": redis_url}), **KEYED})
    manager.use(queues)

    for order in ("1", "1"):
        chain([ShipOnce(order=order), Ship(order="2")]).within(session)
    batch([Ship(order="3")]).then(Ship(order="4")).within(session)
    session.commit()
    outbox = queues.outbox()
    assert outbox is not None
    reader, writer = os.pipe()
    Relay(queues, outbox).run(reader, lambda: False, until_empty=True)
    os.close(reader)
    os.close(writer)
    drain("redis")
    assert sorted(RAN) == ["1", "2", "2", "3", "4"]
