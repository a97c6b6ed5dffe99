"""A process whose connections are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import QueueManager, manager
from qframe.fastapi import overrides
from qframe.jobs import project
from tests.fastapi import dependencies

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueManager]:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.setattr(manager, "_default", None)
    monkeypatch.setattr(overrides, "_app", None)
    made = QueueManager({"default": "memory", "root": ROOT, "connections": {}})
    manager.use(made)
    dependencies.said.clear()
    yield made
    made.close()
