"""A job that closes the descriptors of its worker ends that worker, and nothing else."""

from __future__ import annotations

import pytest

from qframe.worker.sentinel import CLOSED
from tests.support.process import Project

CLOSING = """
import os
from jobs import note
from qframe import Queueable


class Closes(Queueable):
    first: int

    def handle(self):
        note("closes", self.attempts)
        os.closerange(self.first, 4096)
"""


@pytest.mark.on_redis_too
@pytest.mark.on_beanstalkd_too
def test_the_worker_ends_at_once_and_takes_no_try_from_the_jobs_behind(project: Project) -> None:
    project.write("closing.py", CLOSING)
    project.push("closing.Closes", {"first": 0})
    for _ in range(3):
        project.push("Note")
    assert project.work("--tries", 1).wait() == CLOSED
    assert not project.notes("note")
    project.drain("--tries", 1)
    project.wait_for_note("note", count=3)
    assert [note[2] for note in project.notes("note")] == ["1"] * 3


def test_output_is_not_needed_for_it(project: Project) -> None:
    project.write("closing.py", CLOSING)
    project.push("closing.Closes", {"first": 3})
    worker = project.work()
    assert worker.wait() == CLOSED
    assert "Traceback" not in worker.err
