"""A worker with one slot, to which messages flow one by one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qframe import Queueable, Worker, WorkerOptions, bulk, manager
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.rabbitmq import consumer, flow
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.jobs import project
from qframe.manager import QueueManager
from tests.drivers.broker.acts import begin, do, push, taken
from tests.drivers.rabbitmq.conftest import Connect
from tests.drivers.rabbitmq.test_flow import at_once, some
from tests.support.rabbitmq_server import RabbitmqServer

COUNT = 3 * consumer._IN_A_ROW
RAN: list[int] = []


def flowing(backend: RabbitmqBackend) -> BrokerJob:
    """Push messages, and take them one by one until they flow; returns the one that runs."""
    push(backend, *(b"%d" % number for number in range(COUNT)))
    (job,) = some(backend, 1)
    while backend._consumers.mine._flow is None:
        (job,) = some(backend, 1, job)
    return job


def test_all_arrive_in_their_order_and_none_beside_the_one_that_runs(
    backend: RabbitmqBackend,
) -> None:
    job, mine = flowing(backend), backend._consumers.mine
    seen = [int(job.raw_body)]
    while found := some(backend, 1, job):
        (job,) = found
        assert at_once(backend) == 1
        seen.append(int(job.raw_body))
    assert seen == [*range(consumer._IN_A_ROW, COUNT)]
    assert mine._flow is None


def test_an_end_behind_the_flow_makes_room_for_nothing(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    job = flowing(backend)
    backend.wait((), 0)
    do(backend, job)
    other = connect()
    following = taken(other)
    assert following is not None
    assert int(following.raw_body) == int(job.raw_body) + 1
    assert backend._facts().scan("kept:") == []


def test_a_flow_that_is_narrower_than_the_worker_ends(
    backend: RabbitmqBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, mine = flowing(backend), backend._consumers.mine
    narrow = mine._flow
    monkeypatch.setattr(flow, "_SPARE", 0.0)
    time.sleep(0.001)
    jobs = some(backend, 5, job)
    jobs = some(backend, 5, *jobs)
    assert mine._flow is not narrow


def test_a_queue_that_brings_one_now_and_then_does_not_flow(backend: RabbitmqBackend) -> None:
    for _ in range(COUNT):
        push(backend, b"1")
        do(backend, begin(backend))
        assert some(backend, 1) == []
    assert backend._consumers.mine._flow is None


class Counted(Queueable):
    number: int

    def handle(self) -> None:
        RAN.append(self.number)


@pytest.fixture
def queues(
    server: RabbitmqServer, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> QueueManager:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.chdir(tmp_path)
    settings = {"driver": "rabbitmq", "prefix": prefix, **server.settings}
    made = QueueManager({"default": "r", "jobs": [__name__], "connections": {"r": settings}})
    monkeypatch.setattr(manager, "_default", made)
    RAN.clear()
    return made


@pytest.mark.parametrize(
    "options",
    [WorkerOptions(max_jobs=COUNT, memory=0), WorkerOptions(max_jobs=COUNT, rest=0.01, memory=0)],
)
def test_workers_that_follow_each_other_keep_the_order(
    queues: QueueManager, options: WorkerOptions
) -> None:
    bulk([Counted(number=number) for number in range(2 * COUNT)])
    for _ in range(2):
        Worker(queues, options).run()
    assert [*range(2 * COUNT)] == RAN
    assert queues.connection().store.keys("kept:") == []
