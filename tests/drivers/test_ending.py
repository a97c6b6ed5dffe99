"""Dispatches in `__del__` while the interpreter ends, when nothing can be imported any more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from qframe import QueueManager
from qframe.manager import TOO_LATE
from tests.support.projects import environment_of
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.sqs_server import SqsServer

_JOBS = """
from qframe import Queueable, dispatch

class Late(Queueable):
    word: str

    def handle(self): ...

class Tracked(Late):
    track = True

class Ends:
    def __init__(self, *kinds):
        self.kinds = kinds

    def __del__(self, dispatch=dispatch):
        for kind in self.kinds:
            dispatch(kind(word="late"))
"""
_MAIN = """
import sys
import uuid
import jobs
from qframe import job_status, manager

connection = manager.default().connection()
if sys.argv[1] == "read":
    job_status(str(uuid.uuid4()))
if sys.argv[1] == "counted":
    connection.size()
ends = jobs.Ends(jobs.Late, *[jobs.Tracked][: sys.argv[1] != "made"])
"""


def _ended(settings: Mapping[str, object], folder: Path, how: str) -> tuple[str, int]:
    """Run a program that dispatches at its very end; gives its errors and the jobs there."""
    (folder / "jobs.py").write_text(_JOBS)
    (folder / "main.py").write_text(_MAIN)
    done = subprocess.run(
        [sys.executable, "main.py", how],
        cwd=folder,
        env=os.environ | environment_of(settings, folder),
        capture_output=True,
        text=True,
        check=True,
    )
    facts = {"driver": "database", "url": f"sqlite:///{folder}/facts.sqlite3"}
    manager = QueueManager({"default": "q", "connections": {"q": settings, "database": facts}})
    try:
        return done.stderr, manager.connection().size()
    finally:
        manager.close()


@pytest.mark.parametrize("how", ["counted", "read", "made"])
def test_over_a_connection_that_has_pushed_nothing(
    each_connection: dict[str, object], tmp_path: Path, how: str
) -> None:
    err, size = _ended(each_connection, tmp_path, how)
    if how == "made" and each_connection["driver"] == "redis":  # whose client imports, to connect
        assert TOO_LATE in err
        assert size == 0
        return
    assert (err, size) == ("", 1 if how == "made" else 2)


@pytest.mark.parametrize("how", ["counted", "made"])
def test_over_one_to_rabbitmq(rabbitmq_running: RabbitmqServer, tmp_path: Path, how: str) -> None:
    settings = {**rabbitmq_running.settings, "driver": "rabbitmq", "prefix": f"{tmp_path.name}."}
    assert _ended(settings, tmp_path, how) == ("", 1 if how == "made" else 2)


def test_sqs_says_that_it_is_too_late(sqs_running: SqsServer, tmp_path: Path) -> None:
    settings = {**sqs_running.settings, "driver": "sqs", "prefix": "ending-"}
    err, size = _ended(settings, tmp_path, "counted")
    assert TOO_LATE in err
    assert size == 0
