"""A process whose connections are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import QueueManager, manager
from qframe.hooks import of_process
from qframe.jobs import project
from tests.fastapi import dependencies

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueManager]:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.setattr(manager, "_default", None)
    monkeypatch.setattr(of_process, "overrides", None)
    made = QueueManager({"default": "memory", "root": ROOT, "connections": {}})
    manager.use(made)
    dependencies.said.clear()
    yield made
    made.close()
