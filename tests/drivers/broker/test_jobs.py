"""What a job can have works on a broker that only delivers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from qframe import (
    Cancelling,
    Queueable,
    QueueManager,
    State,
    batch,
    cancel,
    chain,
    job_status,
    manager,
)
from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Timing
from qframe.drivers.store import Store
from qframe.failed.retry import retry
from qframe.features.status import cancelled_key
from qframe.jobs import project
from qframe.testing import drain
from qframe.work import Worker
from qframe.worker import control
from qframe.worker.options import WorkerOptions
from tests.support.bare_broker import BareBroker, BrokerServer


class Shouted(Queueable):
    word: str
    fails: int = 0
    unique = True
    track = True
    tries = 2
    ran: ClassVar[list[str]] = []

    def handle(self) -> str:
        self.ran.append(self.word)
        if self.attempts <= self.fails:
            raise ValueError("no")
        return self.word


class OwnBroker(BareBroker):
    """A broker of its own for one test."""

    def __init__(
        self, name: str, settings: ConnectionSettings, facts: Callable[[], Backend]
    ) -> None:
        timing = Timing(hold=settings.retry_after)
        super().__init__(name, BrokerServer(timing), facts, timing)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> QueueManager:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.chdir(tmp_path)
    made = QueueManager(
        {"default": "own", "jobs": [__name__], "connections": {"own": {"driver": "own"}}}
    )
    made.extend("own", OwnBroker)
    monkeypatch.setattr(manager, "_default", made)
    Shouted.ran.clear()
    return made


def test_chains_batches_unique_jobs_statuses_and_failures(queues: QueueManager) -> None:
    first = Shouted.dispatch(word="a").send()
    assert Shouted.dispatch(word="a").is_duplicate
    chain([Shouted(word="b", fails=1), Shouted(word="c")]).dispatch()
    made = batch([Shouted(word="d"), Shouted(word="e", fails=9)]).allow_failures().dispatch()
    drain("own", "default")
    assert sorted(Shouted.ran) == ["a", "b", "b", "c", "d", "e", "e"]
    status = job_status(first)
    assert status is not None
    assert (status.state, status.result) == (State.COMPLETE, "a")
    assert (made.fresh().done, made.fresh().failed) == (1, 1)
    (record,) = queues.failed_store().all()
    assert record.attempts == 2
    assert (len(record.history.attempts), record.history.exceptions) == (2, 2)


def test_a_waiting_job_that_nobody_can_search_for_is_dropped_by_its_worker(
    queues: QueueManager,
) -> None:
    gone = Shouted.dispatch(word="gone").send()
    Shouted.dispatch(word="stays").send()
    assert cancel(gone) is Cancelling.NOTED
    assert queues.connection().store.keys(cancelled_key("own"))
    Worker(queues, WorkerOptions(stop_when_empty=True, memory=0)).run()
    assert Shouted.ran == ["stays"]
    status = job_status(gone)
    assert status is not None
    assert status.state is State.CANCELLED
    assert not queues.connection().store.keys(cancelled_key("own"))
    assert cancel(gone) is Cancelling.ABSENT


class Untracked(Queueable):
    word: str
    fails: bool = False
    tries = 1

    def handle(self) -> None:
        Shouted.ran.append(self.word)
        if self.fails:
            raise ValueError("no")


class CancelsAnother(Queueable):
    uuid: str

    def handle(self) -> None:
        assert cancel(self.uuid) is Cancelling.NOTED


def work(queues: QueueManager) -> None:
    Worker(queues, WorkerOptions(stop_when_empty=True, memory=0)).run()


def test_so_is_one_that_nobody_tracks(queues: QueueManager) -> None:
    gone = Untracked.dispatch(word="gone").send()
    Untracked.dispatch(word="stays").send()
    assert cancel(gone) is Cancelling.NOTED
    work(queues)
    assert Shouted.ran == ["stays"]
    assert not queues.connection().store.keys(cancelled_key("own"))


def test_one_that_is_queued_again_is_no_longer_cancelled(queues: QueueManager) -> None:
    uuid = Untracked.dispatch(word="fails", fails=True).send()
    work(queues)
    assert cancel(uuid) is Cancelling.NOTED  # nobody knows that it has ended
    (record,) = queues.failed_store().all()
    assert retry(queues, queues.failed_store(), record)
    work(queues)
    assert Shouted.ran == ["fails", "fails"]


def test_notes_are_listed_once_and_only_if_there_are_any(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    keys = Store.keys

    def note(store: Store, prefix: str) -> list[str]:
        listed.append(prefix)
        return keys(store, prefix)

    monkeypatch.setattr(Store, "keys", note)
    monkeypatch.setattr(control, "EVERY", 0.0)
    for times in (0, 1):
        for _ in range(20):
            Untracked.dispatch(word="plain").send()
        work(queues)
        assert listed.count(cancelled_key("own")) == times
        assert cancel("elsewhere") is Cancelling.NOTED
    assert len(Shouted.ran) == 40


def test_a_note_that_comes_while_a_worker_works_is_heard(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "EVERY", 0.0)
    late = Untracked.dispatch(word="gone").delay(0.3).send()
    CancelsAnother.dispatch(uuid=late).send()
    Worker(queues, WorkerOptions(max_time=1.5, sleep=0.1, memory=0)).run()
    assert Shouted.ran == []
    assert not queues.connection().store.keys(cancelled_key("own"))


def test_a_job_that_waits_for_an_hour_is_no_message_before(queues: QueueManager) -> None:
    Shouted.dispatch(word="late").delay(3600)
    broker = queues.backend("own")
    assert isinstance(broker, OwnBroker)
    drain("own", "default")
    assert not broker.server.messages
    broker.timing.skew += 3601
    drain("own", "default")
    assert Shouted.ran == ["late"]
