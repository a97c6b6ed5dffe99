"""What a plain job costs: the calls of Python functions for its dispatch and for its drain.

A feature nobody uses costs it nothing. Calls are counted, not timed: their number is the same on
every machine. Whoever raises a budget says why in the commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest

from qframe import Chunk, Flow, Queueable, QueueManager, Worker, WorkerOptions, dispatch, manager
from qframe.jobs import definition
from qframe.jobs.definition import JobDefinition
from qframe.worker.prefetch import Prefetch
from tests.conftest import settings_of

JOBS = 100


class Plain(Queueable):
    """Has an argument and no feature."""

    number: int

    def handle(self) -> None:
        """Do nothing."""


class Bulk(Queueable):
    """Is there, so that the others are told from it."""

    chunk = Chunk(10)

    @classmethod
    def handle_many(cls, jobs: Sequence[Bulk]) -> None:
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


def of_flows() -> int:
    """Whether the process has made a flow, as other tests have: each job made costs one call more.

    A dispatch makes two, the second from the first one's data.
    """
    return int("__new__" in vars(JobDefinition))


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
    assert calls(lambda: push(JOBS)) / JOBS <= budget + 2 * of_flows()


@pytest.mark.parametrize(
    ("connected", "budget"), [("database", 105), ("redis", 105)], indirect=["connected"]
)
def test_a_drained_job(
    connected: QueueManager, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It takes about 102; on a slow machine what is done each second comes more often.
    # A slow machine would also reserve fewer jobs ahead, so that each pays more of a reservation.
    monkeypatch.setattr(Prefetch, "limit", lambda _: 64)
    few, many = drained(connected, 2 * JOBS), drained(connected, 12 * JOBS)
    assert (many - few) / (10 * JOBS) <= budget + of_flows()


@pytest.mark.parametrize("connected", ["database"], indirect=True)
def test_in_a_process_with_flows_and_chunks(connected: QueueManager) -> None:
    """A dispatch of a job that is neither pays two calls for the flows, and none for chunks."""
    del connected
    push(20)
    before = calls(lambda: push(JOBS)) / JOBS - 2 * of_flows()
    Flow()
    assert round(calls(lambda: push(JOBS)) / JOBS - before) == 2
    assert definition.chunked
