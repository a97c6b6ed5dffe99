"""What the tests of limits share: a clock that is set, and an embedded store."""

from __future__ import annotations

from pathlib import Path

import pytest

from qframe import QueueManager, manager
from qframe.drivers.store import Store
from qframe.middleware import limits
from tests.middleware.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "now", clock)
    return clock


@pytest.fixture
def store(fresh: Path, clock: Clock) -> Store:
    manager.use(QueueManager({"default": "database"}))
    return manager.default().connection().store
