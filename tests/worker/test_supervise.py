"""`qframe supervise`: real workers, as many as queues need, and no job is lost or ended for it."""

from __future__ import annotations

import os
import shutil
import signal
from html import unescape
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

from qframe.web import app
from qframe.worker import roster
from tests.support.pool import children, gone, rows, wait_for_row
from tests.support.process import Process, Project, wait_for

pytestmark = pytest.mark.on_redis_too

NAPS = """
import time
from jobs import note
from qframe import Queueable


class Nap(Queueable):
    number: int
    seconds: float = 0.2

    def handle(self):
        note("began", self.number, self.attempts)
        time.sleep(self.seconds)
        note("ended", self.number, self.attempts)
"""


def supervised(project: Project, *arguments: object, most: int = 4, more: str = "") -> Process:
    """Start a supervisor of two queues."""
    toml = (
        f'[supervisors.both]\nqueues = ["a", "b"]\nmax_processes = {most}\n'
        f"balance_cooldown = 1\n{more}\n"
    )
    project.configure(toml, retry_after=60)
    shutil.copy(Path(__file__).with_name("held_jobs.py"), project.root)
    project.write("naps.py", NAPS)
    return project.start("supervise", "--json", *arguments)


def nap(project: Project, queue: str, numbers: range, seconds: float = 0.2) -> None:
    for number in numbers:
        project.push("naps.Nap", {"number": number, "seconds": seconds}, queue=queue)


def shares(project: Project) -> dict[str, int]:
    """Give what the supervisor says of itself."""
    found = roster.pools(project.queue.store)
    return found[0].shares if found else {}


def there(process: Process) -> list[psutil.Process]:
    """Give the workers that run."""
    return [each for each in children(process) if not gone([each])]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("", "no supervisor is configured: add [supervisors.NAME] with queues"),
        ("[supervisors.a]\nmax_proceses = 3", "unknown key 'supervisors.a.max_proceses' (did"),
        ("[supervisors.a]\nmin_processes = 3", "max_processes 1 is fewer than min_processes 3"),
        ('[supervisors.a]\nqueues = ["x", "x"]', "queues: each comes once"),
        (
            "[supervisors.a]\ntimeout = -1",
            "supervisors.a.timeout: Input should be greater",
        ),
        ('[supervisors.a]\nconnection = "nowhere"', "supervisors.a: unknown connection 'nowhere'"),
        ('[supervisors.a]\nqueues = ["x:5"]', "name 'x', and say per_worker = 5 in [queues.x]"),
        (
            "[supervisors.a]\nnice = 20",
            "supervisors.a.nice: Input should be less than or equal to 19",
        ),
        ("[supervisors.a.weights]\nb = 2", "weights: 'b' is none of its queues"),
        ("[supervisors.a]\n[supervisors.b]", "no supervisor is called 'c'"),
    ],
)
@pytest.mark.embedded_only
def test_what_is_wrong_is_one_line(project: Project, toml: str, said: str) -> None:
    project.configure(toml)
    names = ["c"] if "called" in said else []
    finished = project.qframe("supervise", *names)
    assert finished.code == 2
    assert said in finished.one_line()


@pytest.mark.slow
def test_it_grows_with_bursts_empties_and_shrinks_to_the_least(project: Project) -> None:
    process = supervised(project, most=5, more="nice = 3")
    wait_for(lambda: shares(project) == {"a": 1, "b": 1}, "the least to run")
    nap(project, "a", range(60))
    nap(project, "b", range(100, 140))
    project.wait_for_note("ended", count=100, seconds=60)
    grown = [row["processes"] for row in rows(process, "scaled")]
    assert max(grown) >= 2, process.out
    assert {each.nice() for each in there(process)} == {min(19, psutil.Process().nice() + 3)}
    assert all(len(row["why"]) > 10 for row in rows(process, "scaled"))
    wait_for(lambda: shares(project) == {"a": 1, "b": 1}, "it to shrink", 60)
    wait_for(lambda: len(there(process)) == 2, "the rest to end")
    assert sorted(int(note[1]) for note in project.notes("began")) == [*range(60), *range(100, 140)]
    assert {note[2] for note in project.notes("began")} == {"1"}
    assert process.stop() == 0
    assert roster.pools(project.queue.store) == []


OPS = """
from jobs import note
from qframe import events


def tell(event: events.SupervisorScaled) -> None:
    told = (event.supervisor, event.connection, event.queue, event.before, event.processes)
    note("scaled", *told, event.why.replace(" ", "_"))
"""


@pytest.mark.slow
def test_each_decision_is_heard_and_seen(project: Project) -> None:
    project.write("ops.py", OPS)
    process = supervised(project, more='[listeners]\nSupervisorScaled = ["ops:tell"]')
    wait_for(lambda: shares(project) == {"a": 1, "b": 1}, "the least to run")
    nap(project, "a", range(60))
    heard = project.wait_for_note("scaled", "both", project.queue.name, "a", 1)
    (row, *_) = rows(process, "scaled", queue="a")
    assert [int(heard[5]), heard[6].replace("_", " ")] == [row["processes"], row["why"]]
    client = TestClient(app(project.manager, lambda _: "read"), base_url="http://localhost")

    def told() -> dict[str, Any]:
        (found,) = client.get("/api/v1/workers").json()["supervisors"]
        return {share["queue"]: share for share in found["queues"]}

    (grown,) = wait_for(lambda: [each for each in [told()["a"]] if each["processes"] > 1], "it")
    assert grown["why"]
    wait_for(lambda: unescape(told()["a"]["why"]) in unescape(client.get("/workers").text), "why")
    page = client.get("/workers").text
    assert f"{project.queue.name}:a" in page
    workers = client.get("/api/v1/workers", params={"filter": "name:both"}).json()["workers"]
    assert {each["pool"] for each in workers} == {process.pid}
    assert process.stop() == 0
    wait_for(lambda: client.get("/api/v1/workers").json()["supervisors"] == [], "it to be gone")


@pytest.mark.slow
def test_long_jobs_are_not_ended_and_do_not_keep_others_from_running(project: Project) -> None:
    process = supervised(project, most=4)
    for number in range(3):
        project.push("held_jobs.Held", {"word": str(number)}, queue="a")
    wait_for(lambda: len(project.notes("start")) == 3, "the long jobs to run", 30)
    nap(project, "b", range(200), seconds=0.1)
    project.wait_for_note("ended", count=200, seconds=60)
    assert not project.notes("end"), "the long ones run on"
    assert max(row["processes"] for row in rows(process, "scaled", queue="b")) >= 2
    for number in range(3):
        project.write(f"let-{number}", "")
    wait_for(lambda: len(project.notes("end")) == 3, "the long ones to end")
    assert {note[2] for note in project.notes("start")} == {"1"}
    assert process.stop() == 0


@pytest.mark.slow
def test_killed_workers_are_replaced_and_lose_no_job(project: Project) -> None:
    process = supervised(project, more="tries = 5")  # a killed one counts
    nap(project, "a", range(80))
    project.wait_for_note("began", count=5)
    for round_ in range(3):
        for worker in there(process)[:1]:
            worker.kill()
        wait_for_row(process, "exited", count=round_ + 1, signal=signal.SIGKILL)
    wait_for(lambda: {int(note[1]) for note in project.notes("ended")} == {*range(80)}, "all", 60)
    wait_for(lambda: project.empty("a"), "nothing to be left")
    assert process.stop() == 0


@pytest.mark.slow
def test_a_killed_supervisor_loses_no_job_and_leaves_no_worker(project: Project) -> None:
    process = supervised(project)
    nap(project, "a", range(60))
    project.wait_for_note("began", count=5)
    workers = there(process)
    assert len(workers) >= 2
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: gone(workers), "the workers to end after their jobs")
    again = project.start("supervise", "--json")
    wait_for(lambda: {int(note[1]) for note in project.notes("ended")} == {*range(60)}, "all", 60)
    assert {note[2] for note in project.notes("began")} == {"1"}, "none was ended in its middle"
    assert again.stop() == 0


@pytest.mark.slow
def test_how_long_jobs_run_is_known_to_the_next(project: Project) -> None:
    process = supervised(project)
    nap(project, "a", range(20))
    project.wait_for_note("ended", count=20, seconds=30)
    wait_for(lambda: shares(project) == {"a": 1, "b": 1}, "it to shrink", 60)
    assert process.stop() == 0
    nap(project, "a", range(20, 170))
    again = project.start("supervise", "--json")
    row = wait_for_row(again, "scaled", queue="a")
    assert ", 0.2" in row["why"], row
    assert again.stop() == 0


@pytest.mark.slow
def test_several_run_together_and_end_together(project: Project) -> None:
    process = supervised(project, more='[supervisors.other]\nqueues = ["c"]')
    names = {"both", "other"}
    wait_for(lambda: {each.name for each in roster.pools(project.queue.store)} == names, "both", 30)
    first = next(each.pid for each in roster.pools(project.queue.store) if each.name == "both")
    nap(project, "c", range(3))
    project.wait_for_note("ended", count=3)
    os.kill(first, signal.SIGKILL)
    wait_for(
        lambda: any(
            each.name == "both" and each.pid != first and not each.is_gone
            for each in roster.pools(project.queue.store)
        ),
        "the killed one to be started again",
        30,
    )
    every = children(process)
    assert process.stop() == 0
    wait_for(lambda: gone(every), "all to end")
