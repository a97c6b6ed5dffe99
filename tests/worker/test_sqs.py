"""Real workers on SQS: order, kills, retries, stops during a long poll."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.contracts.backend import Timing
from tests.support.process import wait_for
from tests.support.projects import SqsProject
from tests.support.sqs_server import SqsServer


@pytest.fixture
def server(sqs_running: SqsServer) -> SqsServer:
    sqs_running.empty()
    sqs_running.timing = Timing()
    return sqs_running


@pytest.fixture
def project(tmp_path: Path, server: SqsServer) -> Iterator[SqsProject]:
    with SqsProject(tmp_path / "app", server, retry_after=3) as made:
        yield made


def test_three_tries_killed_twice_then_done(project: SqsProject, server: SqsServer) -> None:
    project.push("Kill", {"times": 2}, maxTries=3)
    for _ in range(2):
        assert project.work("sqs").wait() == -signal.SIGKILL
    assert project.work("sqs", "--max-jobs", 1).wait() == 0
    assert [line[2] for line in project.notes("start")] == ["1", "2", "3"]
    assert project.notes("end") == [["end", "kill", "3"]]
    assert project.failed() == []
    assert not any(queue.messages for queue in server.queues.values())


@pytest.mark.slow
def test_retries_delays_and_a_failure_in_slots(project: SqsProject) -> None:
    project.push("Flaky", {"failures": 2, "word": "third"}, maxTries=3, backoff=[0, 1])
    project.push("Flaky", {"word": "never"}, maxTries=2)
    project.push("Note", {"word": "later"}, delay=1)
    worker = project.work("sqs", "--concurrency", 4)
    wait_for(lambda: len(project.notes("start")) == 5 and project.done() == ["later"], "all starts")
    assert worker.stop() == 0
    assert len(project.failed()) == 1
    assert project.failure().attempts == 2


def test_a_stop_during_a_long_poll_is_prompt_and_hides_no_message(
    project: SqsProject, server: SqsServer
) -> None:
    project.configure(block_for=2)
    project.push("Note", {"word": "first"})
    worker = project.work("sqs")
    wait_for(lambda: project.done() == ["first"], "the first job")
    polls = server.calls["ReceiveMessage"]
    wait_for(lambda: server.calls["ReceiveMessage"] > polls, "a poll of the idle worker")
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    project.push("Note", {"word": "second"})
    assert worker.wait() == 0
    assert time.monotonic() - began < 30
    name = next(iter(server.queues))
    assert server.in_flight(name) == []
    project.drain("sqs")
    assert project.done() == ["first", "second"]
