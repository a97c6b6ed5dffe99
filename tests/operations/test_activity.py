"""What the metrics say of a time: rates, and each minute's numbers, also of one queue or class."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import Queueable, QueueManager, dispatch, manager
from qframe.connection import Connection
from qframe.metrics import kept, recorder
from qframe.metrics.kept import Gauge, Metrics
from qframe.metrics.recorder import Recorder
from qframe.operations import activity
from qframe.operations.activity import Activity, Rates
from qframe.operations.board import Board
from qframe.operations.queues import states
from qframe.worker.measuring import Measuring

START = 1_800_000_000.0  # a whole minute


class Noop(Queueable):
    def handle(self) -> None: ...


class Past:
    """A connection whose past a test writes, minute by minute."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.now = START
        self.metrics = Metrics(connection.store, connection.name)
        self.recorder = Recorder()

    def minute(self, *, ended: int = 0, pushed: int = 0, **sizes: int) -> None:
        """Let a minute pass in which so much happened; then somebody looks at the queue."""
        for _ in range(ended):
            self.recorder.started("app.A", "q", None)
            self.recorder.ended("app.A", "q", "done", 0.1)
        if pushed:
            self.recorder.pushed("app.A", "q", pushed)
        self.metrics.write(self.recorder)
        self.metrics.put_together([Gauge("q", sizes)] if sizes else [])
        self.now += 60

    def read(self) -> Activity:
        found = Activity.of(self.connection)
        assert found is not None
        return found


@pytest.fixture
def past(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    made = QueueManager({"default": "memory", "root": fresh})
    manager.use(made)
    past = Past(made.connection())
    for module in (kept, recorder, activity):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: past.now))
    return past


def test_a_queue_that_grows_and_one_that_shrinks(past: Past) -> None:
    for number in range(7):
        past.minute(ended=10, ready=100 + 30 * number, delayed=1)
    assert past.read().rates("q", 5) == Rates(0, 10, 30)
    assert past.read().rates("q", 5).came == 40
    for number in range(7):
        past.minute(ended=50, ready=280 - 40 * number, delayed=1)
    rates = past.read().rates("q", 5)
    assert (rates.ended, rates.grown, rates.came) == (50, -40, 10)
    assert past.read().rates("other", 5) == Rates(0, 0, None)


def test_what_was_counted_came_even_where_it_was_removed(past: Past) -> None:
    for _ in range(7):
        past.minute(ended=10, pushed=25, ready=100)  # 15 a minute are cleared
    assert past.read().rates("q", 5).came == 25


def test_before_two_looks_only_what_was_counted_is_known(past: Past) -> None:
    past.minute(ended=10)
    assert past.read().rates("q", 5).came is None
    past.minute(pushed=50)
    assert past.read().rates("q", 5).came == 10


def test_when_a_queue_will_be_empty(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        past.minute(ended=10, ready=100 - 5 * number)
    for _ in range(70):
        dispatch(Noop()).on_queue("q").send()
    (state,) = (each for each in states(past.connection, past.read()) if each.queue == "q")
    assert (state.in_per_minute, state.out_per_minute) == (5, 10)
    assert state.empty_in_seconds == 70 / 5 * 60


def test_each_minute_of_all_of_a_queue_and_of_a_class(past: Past) -> None:
    past.recorder.ended("app.B", "other", "failed", 0.1)
    past.minute(ended=2, pushed=3, ready=5, oldest=70)
    past.minute()
    past.metrics.put_together([Gauge("other", {"ready": 4, "oldest": 9})])
    past.minute(pushed=1, ready=6, oldest=0)
    read = past.read()
    every, own, by_class = read.trend(), read.trend("q"), read.trend(job="app.B")
    assert (every.pushed[-4:], own.pushed[-4:]) == ([3, 0, 1, 0], [3, 0, 1, 0])
    assert (every.failed[-4:], own.failed[-4:]) == ([1, 0, 0, 0], [0, 0, 0, 0])
    assert (by_class.failed[-4:], by_class.started[-4:]) == ([1, 0, 0, 0], [0, 0, 0, 0])
    assert every.ready[-4:] == [5, None, 10, None]
    assert every.oldest_seconds[-4:] == [70, None, 9, None]
    assert own.oldest_seconds[-4:] == [70, None, 0, None]
    assert by_class.ready[-4:] == [None] * 4
    together = activity.put_together([every, own])
    assert together is not None
    assert (together.ready[-4:], together.pushed[-4:]) == ([10, None, 16, None], [6, 0, 2, 0])
    assert together.oldest_seconds[-4:] == [70, None, 9, None]


def test_a_worker_looks_how_long_the_next_job_has_been_ready(
    fresh: Path, backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"database": {"driver": "database"}, backend["driver"]: backend}
    name, *_ = reversed(used)
    made = QueueManager({"default": name, "connections": used, "root": fresh})
    manager.use(made)
    connection = made.connection()
    dispatch(Noop()).on_queue("q").send()
    dispatch(Noop()).on_queue("later").delay(500).send()
    real = time.time
    monkeypatch.setattr("qframe.worker.queue_facts.time.time", lambda: real() + 30)
    metrics = Metrics(connection.store, name)
    Measuring(connection, metrics, "me", ["q", "later"]).beat()
    trend = Board(made).trend(connection=name, queue="q")
    assert trend is not None
    assert [each for each in trend.ready if each is not None] == [1]
    (oldest,) = (each for each in trend.oldest_seconds if each is not None)
    assert 29 <= oldest <= 90
    later = Board(made).trend(queue="later")
    assert later is not None
    assert [each for each in later.oldest_seconds if each is not None] == [0]


def test_a_board_that_was_looked_at_before_shows_the_rates_of_now(past: Past) -> None:
    """What is computed once, outside of what is read again, would stay as it was at first."""
    for _ in range(7):
        past.minute(ended=10, ready=100)
    dispatch(Noop()).on_queue("q").send()
    board = Board(manager.default())

    def rate() -> float | None:
        board.forget("queues", "activity 1.0")
        (state,) = [each for each in board.queues() if each.queue == "q"]
        return state.out_per_minute

    assert rate() == 10
    for _ in range(6):
        past.minute(ended=50, ready=60)
    assert rate() == 50
