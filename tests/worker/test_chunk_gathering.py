"""How a worker in this process, on the memory backend, collects a chunk."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from qframe import Chunk, Queueable, QueueManager, Worker, WorkerOptions, events, manager
from qframe.contracts.step import Reservation, Result
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import pause_key
from qframe.exceptions import BackendUnavailable
from qframe.worker import StopReason
from tests.support.process import wait_for

CALLS: list[list[int]] = []
SEEN: list[Any] = []
LOOK: list[Callable[[], object]] = []
"""What each call looks at, for `SEEN`."""


class Many(Queueable):
    row: int = 0
    chunk: ClassVar[Chunk | None] = Chunk(4, within=0)

    @classmethod
    def handle_many(cls, jobs: Sequence[Many]) -> None:
        CALLS.append([job.row for job in jobs])
        SEEN.extend(look() for look in LOOK)


class Waits(Many):
    """Waits long for more."""

    chunk: ClassVar[Chunk | None] = Chunk(4, within=60)


class Plain(Queueable):
    def handle(self) -> None:
        """Do nothing."""


class Backend(MemoryBackend):
    """Counts waits, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[int] = []
        self.waits = 0
        self.down = range(0)
        """The reservations that fail."""

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Any = ()
    ) -> tuple[list[Reservation], list[Result]]:
        self.reserved.append(limit)
        if len(self.reserved) in self.down:
            raise BackendUnavailable("away")
        return super().reserve(queues, limit, first=first)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self.waits += 1
        super().wait(queues, timeout, wake)


class Quiet(Worker):
    heeds_signals = False


class Place:
    """A manager whose one connection is in memory, and its worker."""

    def __init__(self, **settings: object) -> None:
        here = {"default": "here", "connections": {"here": {"driver": "kept"}}, **settings}
        self.manager = QueueManager(here | {"jobs": [__name__]})
        self.backend = Backend()
        self.manager.extend("kept", lambda _name, _settings: self.backend)
        self.connection = self.manager.connection()

    def push(self, job: type[Queueable], *rows: int) -> None:
        for row in rows:
            name = job.own_name()
            message = {"uuid": f"{name}-{row}", "job": name, "data": {"row": row}}
            self.connection.push_raw(json.dumps(message), "default")

    def worker(self, **options: Any) -> Worker:
        return Quiet(self.manager, WorkerOptions(**{"memory": 0, **options}))

    def drain(self) -> None:
        self.worker(stop_when_empty=True).run()

    def count_ready(self) -> int:
        return self.backend.sizes("default").ready


class Started:
    """A worker in a thread; it ends with the body."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.thread = threading.Thread(target=worker.run)

    def __enter__(self) -> Worker:
        self.thread.start()
        return self.worker

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self.thread.join()


@pytest.fixture
def place() -> Iterator[Place]:
    yield from made()


def made(**settings: object) -> Iterator[Place]:
    for each in (CALLS, SEEN, LOOK):
        each.clear()
    yield Place(**settings)
    manager.use(None)


def test_a_backend_that_goes_away_meanwhile_costs_no_held_job(place: Place) -> None:
    place.backend.timing.hold = 1000.0  # those that are dropped are gone for the test
    place.backend.down = range(2, 4)
    place.push(Many, 0, 1, 2)
    with Started(place.worker()):
        wait_for(lambda: sum(map(len, CALLS)) == 3, "all to be handled")
    assert sorted(row for rows in CALLS for row in rows) == [0, 1, 2]


def test_a_signal_does_not_make_it_spin(place: Place) -> None:
    place.push(Waits, 0)
    with Started(place.worker()) as worker:
        wait_for(lambda: place.backend.waits > 1, "it to collect")
        assert worker._signals is not None
        worker._signals.wake()
        before = place.backend.waits
        time.sleep(1)
        assert place.backend.waits - before < 30, "about one in 0.3 s"
    assert not CALLS


def test_a_pause_ends_the_wait_and_gives_all_back(place: Place) -> None:
    place.push(Waits, 0, 1, 2)
    with Started(place.worker()):
        wait_for(lambda: place.count_ready() == 0, "all to be held")
        place.connection.store.set(pause_key("here"), "1", 60)
        wait_for(lambda: place.count_ready() == 3, "all to be back")
        assert not CALLS
        place.connection.store.delete(pause_key("here"))
        wait_for(lambda: place.count_ready() == 0, "all to be held again")


def test_a_worker_with_a_time_to_end_waits_no_longer(place: Place) -> None:
    place.push(Waits, 0, 1)
    worker = place.worker(max_time=1.0)
    began = time.monotonic()
    worker.run()
    assert time.monotonic() - began < 30
    assert worker.stop_reason is StopReason.MAX_TIME
    assert CALLS == [[0, 1]]


def test_each_job_is_popped_once(place: Place) -> None:
    popped: list[str] = []

    def hear(event: events.JobPopped) -> None:
        popped.append(event.job.uuid.rpartition(".")[2])

    events.listen(events.JobPopped)(hear)
    try:
        place.push(Many, 0, 1)
        place.push(Plain, 0)
        place.push(Many, 2)
        place.drain()
    finally:
        events.forget(hear)
    assert sorted(popped) == ["Many-0", "Many-1", "Many-2", "Plain-0"]


def test_jobs_it_has_no_use_for_are_left_to_other_workers(place: Place) -> None:
    LOOK.append(place.count_ready)
    place.push(Many, 0)
    place.push(Plain, 1, 2, 3, 4)
    place.push(Many, 5)
    place.drain()
    assert SEEN[0] >= 3, "one may be held"
    assert place.count_ready() == 0
    assert sorted(row for rows in CALLS for row in rows) == [0, 5]


def test_the_limit_of_a_queue_counts_those_collected() -> None:
    for place in made(queues={"default": {"concurrency": 2}}):
        LOOK.append(place.count_ready)
        place.push(Many, *range(6))
        place.drain()
        assert CALLS == [[0, 1], [2, 3], [4, 5]]
        assert SEEN == [4, 2, 0], "more are not even held"


def test_a_full_queue_ends_the_wait() -> None:
    for place in made(queues={"default": {"concurrency": 2}}):
        place.push(Waits, *range(4))
        with Started(place.worker()):
            wait_for(lambda: len(CALLS) == 2, "the calls", 20)
        assert CALLS == [[0, 1], [2, 3]]
