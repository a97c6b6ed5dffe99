"""A connection in memory for the tasks of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qframe import QueueManager, manager
from tests.celery import tasks


@pytest.fixture
def queues() -> Iterator[QueueManager]:
    """Give queues in memory, used by the tasks; what tasks and tests set is forgotten."""
    tasks.seen.clear()
    before = dict(tasks.app.conf.__dict__["_values"])
    made = QueueManager(
        {
            "default": "memory",
            "jobs": ["tests.celery"],
            "connections": {"memory": {"driver": "memory"}},
        }
    )
    manager.use(made)
    yield made
    tasks.app.conf.__dict__["_values"] = before
