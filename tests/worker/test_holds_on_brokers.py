"""Holds where a delayed message can be neither woken nor found: SQS and RabbitMQ."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, Worker, WorkerOptions, dispatch, job_status, manager
from qframe.connection import Connection
from qframe.features import hold as facts
from qframe.operations import holds
from qframe.testing import drain
from tests.support import here
from tests.support.broker_settings import broker_settings
from tests.support.process import wait_for

RAN: list[Any] = []
LEDGER = "ledger.fifo"


class Charge(Queueable):
    shop: int
    number: int = 0
    tries = 1
    queue = "mail"

    def handle(self) -> None:
        RAN.append((self.shop, self.number))


class Ordered(Charge):
    group = "shop:{shop}"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at what is set aside each second instead of each minute."""
    monkeypatch.setattr(facts, "_UNWAKEABLE", 1.0)


@pytest.fixture(params=["sqs", "rabbitmq"])
def connection(request: pytest.FixtureRequest, fresh: Path) -> Connection:
    return connected(fresh, request, request.param)


def connected(fresh: Path, request: pytest.FixtureRequest, kind: str) -> Connection:
    RAN.clear()
    return here.connected(fresh, broker_settings(kind, request), __name__)


def ran(count: int, queues: str = "mail") -> list[Any]:
    """Give what has run once that many jobs have."""

    def is_reached() -> bool:
        drain(queues=queues)
        return len(RAN) >= count

    wait_for(is_reached, f"{count} jobs")
    return RAN


def only(connection: Connection) -> holds.HoldState:
    (state,) = holds.listed(connection)
    return state


def all_aside(connection: Connection, count: int, queues: str = "mail") -> None:
    def is_reached() -> bool:
        drain(queues=queues)
        return only(connection).aside == count

    wait_for(is_reached, f"{count} jobs to be set aside")


def test_matching_jobs_are_set_aside_and_come_back_uncounted(connection: Connection) -> None:
    uuid = dispatch(Charge(shop=7)).track().send()
    dispatch(Charge(shop=8)).send()
    dispatch(Charge(shop=7, number=1)).send()
    made = holds.begin(connection, "class:*Charge args.shop:7", 3600, "ops")
    assert ran(1) == [(8, 0)]
    all_aside(connection, 2)
    status = job_status(uuid)
    assert status is not None
    assert (status.state.value, status.attempt) == ("WAITING", 0)
    assert made.id in status.remark
    assert holds.end(connection, made.id) == 2
    assert holds.said(connection, 2) == "2 jobs come back within a minute"
    assert holds.listed(connection) == []
    assert not connection.backend.scan("aside:")
    assert sorted(ran(3)[1:]) == [(7, 0), (7, 1)]  # with their one try
    status = job_status(uuid)
    assert status is not None
    assert (status.state.value, status.attempt) == ("COMPLETE", 1)
    assert connection.failed.count() == 0


def test_they_come_back_by_themselves_after_several_looks(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    delay = facts.HoldFeature.delay

    def counting(self: facts.HoldFeature, backend: Any) -> float:
        looks.append(delay(self, backend))
        return looks[-1]

    monkeypatch.setattr(facts.HoldFeature, "delay", counting)
    dispatch(Charge(shop=7)).send()
    holds.begin(connection, "args.shop:7", 3, "ops")
    assert ran(1) == [(7, 0)]
    assert len(looks) >= 2
    assert connection.failed.count() == 0


def test_a_job_of_a_strict_group_keeps_its_place(connection: Connection) -> None:
    for number in range(3):
        dispatch(Ordered(shop=7, number=number)).send()
    dispatch(Ordered(shop=8)).send()
    made = holds.begin(connection, "args.number:0 args.shop:7", 3600, "ops")
    assert ran(1) == [(8, 0)]
    all_aside(connection, 1)
    assert RAN == [(8, 0)]
    holds.end(connection, made.id)
    assert ran(4) == [(8, 0), (7, 0), (7, 1), (7, 2)]


def test_a_held_job_of_a_fifo_queue_holds_what_is_behind_it(
    fresh: Path, request: pytest.FixtureRequest
) -> None:
    connection = connected(fresh, request, "sqs")
    for number in range(2):
        dispatch(Charge(shop=7, number=number)).on_queue(LEDGER).send()
    made = holds.begin(connection, "args.number:0", 3600, "ops")
    all_aside(connection, 1, LEDGER)
    assert RAN == []
    holds.end(connection, made.id)
    assert ran(2, LEDGER) == [(7, 0), (7, 1)]


def test_a_worker_that_runs_learns_of_both(connection: Connection) -> None:
    worker = Worker(manager.default(), WorkerOptions(queues=("mail",), memory=0, sleep=0.01))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        made = holds.begin(connection, "args.shop:7", 3600, "ops")

        def is_held() -> bool:
            dispatch(Charge(shop=7)).send()
            return only(connection).aside > 0

        wait_for(is_held, "the worker to hear of the hold")
        dispatch(Charge(shop=8)).send()
        wait_for(lambda: (8, 0) in RAN, "a job that is not held")
        holds.end(connection, made.id)
        wait_for(lambda: connection.sizes("mail").total == 0, "the jobs that were held")
    finally:
        worker.stop()
        thread.join()
