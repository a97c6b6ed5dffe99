"""Queues on each backend that keeps chains and batches, used by `dispatch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, manager
from tests.following.jobs import heard, ran


@pytest.fixture
def queues(backend: dict[str, Any], fresh: Path) -> QueueManager:
    """Give queues on a backend; signed, so that whatever is pushed late must be signed as well."""
    made = QueueManager(
        {
            "default": "used",
            "jobs": ["tests.following.jobs"],
            "connections": {"used": backend},
            "signing_key": "a key of the tests that is long enough",
            "encryption_keys": ["vTwM3vbPc0RjOYyrcIrQfvMIqgD2zZ1Cw8mEobFDgOQ="],
        }
    )
    manager.use(made)
    ran.clear()
    heard.clear()
    return made
