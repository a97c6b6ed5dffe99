"""Real workers on a RabbitMQ: order, kills, retries, heartbeats."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import wait_for
from tests.support.projects import RabbitmqProject
from tests.support.rabbitmq_server import RabbitmqServer


@pytest.fixture
def project(tmp_path: Path, rabbitmq_running: RabbitmqServer) -> Iterator[RabbitmqProject]:
    with RabbitmqProject(tmp_path / "app", rabbitmq_running) as made:
        yield made


def test_a_worker_drains_its_queues_in_order(project: RabbitmqProject) -> None:
    for number in range(3):
        project.push("Note", {"word": f"low{number}"}, queue="low")
        project.push("Note", {"word": f"high{number}"}, queue="high")
    project.drain("rabbitmq", "--queue", "high,low")
    assert project.done() == ["high0", "high1", "high2", "low0", "low1", "low2"]


def test_three_tries_killed_twice_then_done(project: RabbitmqProject) -> None:
    project.push("Kill", {"times": 2}, maxTries=3)
    for _ in range(2):
        assert project.work("rabbitmq").wait() == -signal.SIGKILL
    assert project.work("rabbitmq", "--max-jobs", 1).wait() == 0
    assert [line[2] for line in project.notes("start")] == ["1", "2", "3"]
    assert project.notes("end") == [["end", "kill", "3"]]
    assert project.failed() == []
    assert project.empty()


def test_retries_delays_and_a_failure(project: RabbitmqProject) -> None:
    project.push("Flaky", {"failures": 2, "word": "third"}, maxTries=3, backoff=[0, 1])
    project.push("Flaky", {"word": "never"}, maxTries=2)
    project.push("Note", {"word": "later"}, delay=1)
    worker = project.work("rabbitmq")
    wait_for(lambda: len(project.notes("start")) == 5 and project.done() == ["later"], "all starts")
    assert worker.stop() == 0
    assert project.empty()
    assert len(project.failed()) == 1
    assert project.failure().attempts == 2


@pytest.mark.slow
def test_a_job_runs_on_while_heartbeats_are_due(project: RabbitmqProject) -> None:
    project.configure(heartbeat=1)
    project.push("Sleep", {"seconds": 6})
    assert project.work("rabbitmq", "--max-jobs", 1).wait() == 0
    assert len(project.notes("start")) == 1
    assert project.empty()


@pytest.mark.slow
def test_the_server_is_killed_below_a_running_job(
    project: RabbitmqProject, rabbitmq_running: RabbitmqServer
) -> None:
    project.push("Held", maxTries=3)
    worker = project.work("rabbitmq")
    project.wait_for_note("start", "held")
    project.push("Note", {"word": "waits"})
    project.push("Note", {"word": "later"}, delay=3)
    rabbitmq_running.sync()
    rabbitmq_running.restart()
    project.let_go("held")
    project.wait_for_note("end", "held", count=2)
    wait_for(lambda: len(project.done()) == 2, "the others")
    assert worker.stop() == 0
    assert sorted(project.done()) == ["later", "waits"]
    assert len(project.notes("start")) == 2  # its lease was lost with the connection
    assert project.failed() == []
