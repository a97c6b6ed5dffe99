"""What a plain job costs: the calls of Python functions for its dispatch and for its drain.

A feature nobody uses costs it nothing. Calls are counted, not timed: their number is the same on
every machine. Whoever raises a budget says why in the commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, dispatch, manager
from tests.conftest import settings_of

JOBS = 100


class Plain(Queueable):
    """Has an argument and no feature."""

    number: int

    def handle(self) -> None:
        """Do nothing."""


@pytest.fixture
def connected(request: pytest.FixtureRequest, fresh: Path) -> QueueManager:
    """The manager of a process whose default connection is the backend of a parameter."""
    del fresh  # its folder is the working directory
    here = {"here": settings_of(request)}
    made = QueueManager({"default": "here", "connections": here, "jobs": [Plain.__module__]})
    manager.use(made)
    return made


def calls(work: Callable[[], object]) -> int:
    """How often `work` calls a Python function."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def push(number: int) -> None:
    for each in range(number):
        dispatch(Plain(number=each)).send()


def drained(queues: QueueManager, number: int) -> int:
    """The calls of a worker from its start to its end, after so many jobs."""
    push(number)
    worker = Worker(queues, WorkerOptions(stop_when_empty=True, memory=0))
    count = calls(worker.run)
    assert (worker.jobs, queues.connection().failed.count()) == (number, 0)
    return count


@pytest.mark.parametrize(
    ("connected", "budget"), [("database", 47), ("redis", 56)], indirect=["connected"]
)
@pytest.mark.usefixtures("connected")
def test_a_dispatch(budget: int) -> None:
    push(20)
    assert calls(lambda: push(JOBS)) / JOBS <= budget


@pytest.mark.parametrize(
    ("connected", "budget"), [("database", 130), ("redis", 122)], indirect=["connected"]
)
def test_a_drained_job(connected: QueueManager, budget: int) -> None:
    # On a slow machine a worker reserves fewer jobs ahead, so each pays more of a reservation.
    few, many = drained(connected, 2 * JOBS), drained(connected, 12 * JOBS)
    assert (many - few) / (10 * JOBS) <= budget
