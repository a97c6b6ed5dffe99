"""By tag: counted where it is asked for, shown to people and to Prometheus; else nothing is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, manager
from qframe.operations.board import Board
from qframe.web.prometheus import exposition


class Billed(Queueable):
    tenant: int

    def tags(self) -> list[str]:
        return [f"tenant:{self.tenant}", "billing"]

    def handle(self) -> None:
        if self.tenant == 9:
            raise ValueError("refused")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    def make(**more: Any) -> QueueManager:
        queues = QueueManager({"root": tmp_path, "jobs": [__name__], **more})
        manager.use(queues)
        return queues

    yield make
    manager.use(None)


def drained(queues: QueueManager) -> Board:
    queue = queues.connection()
    for tenant in (7, 7, 8, 9):
        queue.push(Billed(tenant=tenant))
    queue.push_raw(json.dumps({"uuid": "u", "job": "none", "tags": "no"}))
    Worker(queues, WorkerOptions(stop_when_empty=True, memory=0)).run()
    return Board(queues)


def test_tags_that_fit_are_counted(made: Any) -> None:
    board = drained(made(metric_tags=["tenant:*"], unknown_job_delays=[]))
    found = {each.job: (each.started, each.done, each.failed) for each in board.tags()}
    assert found == {"tenant:7": (2, 2, 0), "tenant:8": (1, 1, 0), "tenant:9": (1, 0, 1)}
    page = exposition(board).decode()
    labels = 'connection="database",outcome="done",queue="default",tag="tenant:7"'
    assert f"qframe_tag_jobs_finished_total{{{labels}}} 2.0" in page
    assert "billing" not in page


def test_without_being_asked_for_none_are(made: Any) -> None:
    board = drained(made(unknown_job_delays=[]))
    assert board.tags() == []
    assert "qframe_tag" not in exposition(board).decode()
