"""A process that no application was joined to, and one whose jobs are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from qframe import config, manager
from qframe.flask import QFrame, extension
from qframe.hooks import of_process
from qframe.jobs import project
from tests.flask import jobs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing of an application behind."""
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.setattr(manager, "_default", None)
    monkeypatch.setattr(config.framework, "source", None)
    monkeypatch.setattr(config.framework, "setting", "")
    monkeypatch.setattr(config.framework, "command_line", "qframe")
    monkeypatch.setattr(manager, "find", None)
    monkeypatch.setattr(extension, "_last", None)
    monkeypatch.setattr(of_process, "around", None)
    monkeypatch.setattr(of_process, "around_on_loop", None)
    jobs.said.clear()


@pytest.fixture
def app(alone: None) -> Iterator[Flask]:
    """Give an application that is joined."""
    made = Flask("shop")
    made.config["QFRAME"] = {"default": "memory", "root": ROOT}
    QFrame(made)
    yield made
    queues = manager.current()
    if queues is not None:
        queues.close()
