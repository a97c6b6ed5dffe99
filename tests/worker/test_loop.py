"""A worker in this process, on the memory backend: what it runs, and why it stops."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, events, manager
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import pause_key
from qframe.exceptions import BackendUnavailable, BackendUnusable, ConfigurationError
from qframe.jobs.registry import Registry
from qframe.metrics import counters
from qframe.metrics.kept import Metrics
from qframe.worker import StopReason, roster
from qframe.worker.control import RESTART
from tests.support.process import PATIENCE

NOTES: list[Any] = []


class Note(Queueable):
    word: str = ""
    seconds: float = 0

    def handle(self) -> None:
        NOTES.append(self.word)
        time.sleep(self.seconds)


class Again(Queueable):
    tries: ClassVar[int | None] = 3

    def handle(self) -> None:
        NOTES.append(self.attempts)
        raise ValueError("boom")


class Backend(MemoryBackend):
    """Counts what it is asked, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.down = 0
        self.error: type[BackendUnavailable] = BackendUnavailable
        self.reads = 0
        self.listings = 0

    def reserve(
        self, queues: Any, limit: int = 1, *, first: Any = ()
    ) -> tuple[list[Reservation], list[Result]]:
        self._may_fail()
        return super().reserve(queues, limit, first=first)

    def apply(self, *steps: Step) -> list[Result]:
        self._may_fail()
        return super().apply(*steps)

    def read(self, *keys: str) -> list[str | None]:
        self.reads += 1
        self._may_fail()
        return super().read(*keys)

    def queues(self) -> list[str]:
        self.listings += 1
        return super().queues()

    def _may_fail(self) -> None:
        if self.down:
            self.down -= 1
            raise self.error("away")


class Quiet(Worker):
    heeds_signals = False


class Place:
    """A manager whose one connection is in memory, and its workers."""

    def __init__(self) -> None:
        settings = {"driver": "kept", "give_up_after": 1}
        self.manager = QueueManager({"default": "here", "connections": {"here": settings}})
        self.backend = Backend()
        self.manager.extend("kept", lambda _name, _settings: self.backend)
        self.connection = self.manager.connection()
        known = {each.__name__: each for each in (Note, Again)}

        class Known(Registry):
            def known(self, name: str) -> type[Queueable] | None:
                return known.get(name.rpartition(".")[2])

        self.manager.registry = Known()

    def push(self, job: type[Queueable], queue: str = "default", **data: Any) -> None:
        uuid = f"{job.__name__}-{time.monotonic_ns()}"
        message = {"uuid": uuid, "job": job.__name__, "data": data}
        self.connection.push_raw(json.dumps(message), queue)

    def work(self, **options: Any) -> Worker:
        worker = self._worker(stop_when_empty=True, **options)
        worker.run()
        return worker

    def start(self, **options: Any) -> tuple[Worker, threading.Thread]:
        worker = self._worker(**options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        return worker, thread

    def _worker(self, **options: Any) -> Worker:
        options = {"memory": 0, **options}  # that of the tests' process is not its own
        return Quiet(self.manager, WorkerOptions(**options))


@pytest.fixture
def place() -> Iterator[Place]:
    NOTES.clear()
    yield Place()
    manager.use(None)


def until(condition: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_runs_what_there_is_in_order_and_leaves_nothing(place: Place) -> None:
    for word in "abc":
        place.push(Note, word=word)
    worker = place.work()
    assert NOTES == ["a", "b", "c"]
    assert (worker.stop_reason, worker.jobs) == (StopReason.EMPTY, 3)
    assert place.connection.size() == 0
    store = place.connection.store
    assert roster.listed(store) == []
    counted = counters.read(Metrics(store, place.connection.name))
    assert counters.added_up(counted)["processed"] == 6  # by queue, and by class


def test_a_job_is_tried_as_often_as_it_may_be(place: Place) -> None:
    place.push(Again)
    worker = place.work()
    assert NOTES == [1, 2, 3]
    assert worker.jobs == 3
    assert place.connection.failed.count() == 1


@pytest.mark.parametrize(
    ("options", "reason", "ran"),
    [
        ({"once": True}, StopReason.ONCE, (1,)),
        ({"max_jobs": 2}, StopReason.MAX_JOBS, (2,)),
        ({"max_time": 0.05}, StopReason.MAX_TIME, (1, 2)),
        ({"memory": 0.5}, StopReason.MEMORY, (1,)),
    ],
)
def test_it_stops_when_it_has_had_enough(
    place: Place, options: dict[str, Any], reason: StopReason, ran: tuple[int, ...]
) -> None:
    for _ in range(5):
        place.push(Note, seconds=0.04)
    worker = place.work(**options)
    assert worker.stop_reason is reason
    assert len(NOTES) in ran
    sizes = place.connection.sizes()
    assert (sizes.ready, sizes.reserved) == (5 - len(NOTES), 0), "what was held is given back"


def test_an_idle_one_is_stopped_at_once_and_heard_of(place: Place) -> None:
    worker, thread = place.start()
    until(lambda: roster.listed(place.connection.store))
    (entry,) = roster.listed(place.connection.store)
    assert (entry.connection, entry.state, entry.jobs) == ("here", "idle", ())
    began = time.monotonic()
    worker.stop()
    thread.join(60)
    assert time.monotonic() - began < 10
    assert worker.stop_reason is StopReason.INTERRUPTED
    assert roster.listed(place.connection.store) == []


def test_a_push_wakes_it(place: Place) -> None:
    worker, thread = place.start()
    waited = []
    for number in range(5):
        time.sleep(0.1)  # by now it waits
        began = time.monotonic()
        place.push(Note, word="now")
        until(lambda: len(NOTES) > number)  # noqa: B023 (called at once)
        waited.append(time.monotonic() - began)
    assert min(waited) < 0.5, "it looks each second without being woken"
    worker.stop()
    thread.join(PATIENCE)


def test_a_restart_ends_it_and_a_pause_holds_it(place: Place) -> None:
    store = place.connection.store
    store.set(pause_key("here", "default"), "1")
    worker, thread = place.start()
    place.push(Note, word="later")
    time.sleep(0.2)
    assert NOTES == []
    store.delete(pause_key("here", "default"))
    until(lambda: NOTES == ["later"])
    store.set(RESTART, "new")
    thread.join(PATIENCE)
    assert worker.stop_reason is StopReason.RESTART


def test_a_backend_that_is_away_is_waited_for(place: Place) -> None:
    place.push(Note, word="a")
    names: list[str] = []

    def hear(event: events.WorkerEvent) -> None:
        names.append(type(event).__name__)

    events.listen(events.WorkerEvent)(hear)
    place.backend.down = 3
    try:
        worker = place.work()
    finally:
        events.forget(hear)
    assert NOTES == ["a"]
    assert worker.stop_reason is StopReason.EMPTY
    assert place.connection.size() == 0
    assert names[0] == "WorkerStarting"
    assert names.count("BackendLost") == names.count("BackendRestored") == 1


def test_one_that_stays_away_is_given_up(place: Place) -> None:
    place.backend.down = 10**6
    assert place.work().stop_reason is StopReason.LOST_BACKEND


def test_one_that_can_never_work_ends_it_at_once(place: Place) -> None:
    place.backend.error, place.backend.down = BackendUnusable, 10**6
    before = threading.enumerate()
    with pytest.raises(BackendUnusable):
        place.work()
    ended = [
        each
        for each in threading.enumerate()
        if each.name == "qframe-heartbeat" and each not in before
    ]
    for thread in ended:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in ended)


def test_a_failed_connection_of_its_own_fault_is_told_and_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.push(Note, word="a")
    reserve, calls = place.backend.reserve, []

    def broken(*args: Any, **more: Any) -> Any:
        calls.append(0)
        if len(calls) == 1:
            raise ZeroDivisionError
        return reserve(*args, **more)

    monkeypatch.setattr(place.backend, "reserve", broken)
    place.work()
    assert NOTES == ["a"]
    assert "the connection 'here' failed" in caplog.text


def test_patterns_find_queues_in_their_order(place: Place) -> None:
    for name in ("mail-b", "high", "mail-a", "other"):
        place.push(Note, name, word=name)
    place.work(queues=("high", "mail-*"))
    assert NOTES == ["high", "mail-a", "mail-b"]


def test_what_cannot_be_worked_is_refused(place: Place) -> None:
    place.manager.extend("null2", lambda *_: MemoryBackend())
    with pytest.raises(ConfigurationError, match="holds no jobs to work on"):
        Worker(place.manager, WorkerOptions(connection="null"))


def test_a_long_job_is_seen_and_its_lease_renewed(place: Place) -> None:
    place.connection.retry_after = place.connection.context.retry_after = 3
    place.push(Note, word="long", seconds=6)
    worker, thread = place.start()
    until(lambda: any(each.jobs for each in roster.listed(place.connection.store)))
    (entry,) = roster.listed(place.connection.store)
    (job,) = entry.jobs
    assert (entry.state, job.name, job.attempt) == ("running", "Note", 1)
    time.sleep(4)
    assert place.connection.reserve(["default"]) == [], "its lease is kept"
    worker.stop()
    thread.join(PATIENCE)
    assert NOTES == ["long"]
    assert place.connection.size() == 0
