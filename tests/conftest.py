"""Fixtures for tests that use qframe inside this process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from qframe import QueueManager, events, manager, project
from qframe.queueable import index

# How fast an example runs says something of the machine; none are kept between runs.
settings.register_profile(
    "qframe", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("qframe")

# Processes under test, wherever the tests are started: what they print is read while they run, and
# they write no byte code.
os.environ.setdefault("PYTHONUNBUFFERED", "1")
os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty folder, and a process that has used qframe for nothing yet."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for variable in list(os.environ):
        if variable.upper().startswith("QFRAME_"):
            monkeypatch.delenv(variable)
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.setattr(manager, "_default", None)
    monkeypatch.setattr(events, "_listeners", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    events._heard.clear()
    made: list[QueueManager] = []
    make = QueueManager.__init__

    def making(self: QueueManager, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(QueueManager, "__init__", making)
    jobs, modules = dict(index), set(sys.modules)
    yield folder
    for each in made:
        each.close()
    index.clear()
    index.update(jobs)
    for name in [name for name in set(sys.modules) - modules if _is_under(tmp_path, name)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    events._heard.clear()


def _is_under(folder: Path, name: str) -> bool:
    module = sys.modules[name]
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(str(place).startswith(str(folder)) for place in places)
