"""A worker drives what others have asked for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, manager
from qframe.contracts import FailedJob, History
from qframe.operations import retries
from qframe.payload import envelope
from qframe.retries.terms import RetryTerms
from qframe.worker import side_tasks
from tests.support.process import wait_for

pytestmark = pytest.mark.usefixtures("fresh")


class Charged(Queueable):
    def handle(self) -> None: ...


def test_a_worker_takes_up_a_retry_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_tasks, "LOOK_EVERY", 0.1)
    root = Path(__file__).resolve().parents[2]
    queues = QueueManager({"default": "memory", "root": root, "jobs": [__name__]})
    manager.use(queues)
    store = queues.failed_store()
    for _ in range(6):
        made = envelope.create(Charged(), None)
        raw, uuid = envelope.encode(made), made["uuid"]
        store.add(FailedJob(uuid, "memory", "default", raw, "E", "Charged", 1, History(), 1.0))
    worker = Worker(queues, WorkerOptions(memory=0, schedule=False))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        chosen = [*map(retries.choose, store.all())]
        retries.start(queues, RetryTerms.read(2, "100/s"), chosen, "all", "ops")
        wait_for(lambda: retries.states(queues)[0].stage == "done", "its end")
    finally:
        worker.stop()
        thread.join(60)
        manager.use(None)
    (seen,) = retries.states(queues)
    assert (seen.retried, seen.done, store.count()) == (6, 6, 0)
