"""`qframe schedule work`, as a process."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.process import Project, wait_for

EACH_SECOND = """
from qframe import Queueable, schedule

class Tick(Queueable):
    def handle(self) -> None: ...

schedule(Tick()).every_second().name("tick")
"""


def test_it_dispatches_works_on_no_job_and_ends_well_at_sigterm(tmp_path: Path) -> None:
    with Project(tmp_path / "app", 'jobs = ["ticks"]\n') as project:
        project.write("ticks.py", EACH_SECOND)
        work = project.start("schedule", "work", "--json")
        wait_for(lambda: work.rows, "a run")
        work.signal(signal.SIGTERM)
        assert work.wait() == 0, work.err
        assert {each["status"] for each in work.rows} == {"dispatched"}
        summaries = [each["message"] for each in work.rows]
        waiting = [
            json.loads(each.raw_body) for each in project.queue.backend.search("default", b"")
        ]
        assert [each["uuid"] for each in waiting] == summaries
        assert [each["schedule"]["name"] for each in waiting] == ["tick"] * len(summaries)
