"""Here: a program with one connection, `here`, and strict groups in the queue `mail`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qframe import QueueManager, manager
from qframe.connection import Connection


def connected(root: Path, backend: dict[str, Any], jobs: str, **more: Any) -> Connection:
    """Give its connection, and make it the process's own; `jobs` is the module with its jobs."""
    made = QueueManager(
        {
            "root": root,
            "default": "here",
            "connections": {"here": {**backend, "retry_after": 60}},
            "jobs": [jobs],
            "groups": {"mail": {"order": "strict"}},
            **more,
        }
    )
    manager.use(made)
    return made.connection()
