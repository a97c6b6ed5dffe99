"""The workers' page: the jobs of a real worker are below it, as they come and go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from qframe.web import app
from tests.conftest import settings_of
from tests.support.process import Project, wait_for
from tests.support.projects import DatabaseProject, RedisProject

GATES = """
import pathlib, time
from qframe import Queueable


class Gate(Queueable):
    name: str

    def tags(self) -> list[str]:
        return [f"gate:{self.name}"]

    def handle(self) -> None:
        while not pathlib.Path(f"open-{self.name}").exists():
            time.sleep(0.01)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(params=["database", "redis"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    kind = RedisProject if request.param == "redis" else DatabaseProject
    with kind(tmp_path, **settings_of(request)) as made:
        made.write("gates.py", GATES)
        yield made


def lines(page: str) -> list[str]:
    """Give the worker's row and one for each of its jobs, as they are read."""
    table = page.rpartition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>.*?</tr>|<li>.*?</li>", table, re.DOTALL)
    return [unescape(" ".join(re.sub(r"<[^>]+>", " ", row).split())) for row in rows]


def test_each_slot_that_runs_a_job_has_a_line(project: Project) -> None:
    name = project.queue.name
    uuids = {
        gate: project.push("gates.Gate", {"name": gate}, queue=queue, tags=[f"gate:{gate}"])
        for gate, queue in (("a", "high"), ("b", "low"))
    }
    worker = project.work("--queue", "high,low", "--concurrency", 3)
    client = TestClient(app(project.manager, lambda _: "act"), base_url="http://localhost")

    def shown(count: int) -> list[str]:
        found = lines(client.get("/workers").text)
        return found if len(found) == count else []

    head, *slots = wait_for(lambda: shown(3), "two lines of slots")
    about = rf":{worker.pid} {name}:high, low qframe \S+ on Python \S+ running 2 of 3 0 0 "
    assert re.search(about, head), head
    for queue, gate in (("high", "a"), ("low", "b")):
        (line,) = [each for each in slots if f" {queue}, attempt 1" in each]
        assert re.search(rf"gates\.Gate {queue}, attempt 1, gate:{gate} \d+ s", line), line
    page = client.get("/workers").text
    assert all(f'href="/jobs/{uuid}"' in page for uuid in uuids.values())
    project.push("gates.Gate", {"name": "c"}, queue="low")
    head, *slots = wait_for(lambda: shown(4), "a third line")
    assert "3 of 3" in head
    project.write("open-a", "")
    head, *slots = wait_for(lambda: shown(3), "one to end")
    assert not [each for each in slots if " high, " in each]
    assert " 2 of 3 1 0 " in head, head
    for gate in ("b", "c"):
        project.write(f"open-{gate}", "")
    (head,) = wait_for(lambda: shown(1), "all to end")
    assert " 0 of 3 " in head
    assert worker.stop() == 0
    wait_for(lambda: "No worker runs" in client.get("/workers").text, "its end")
