"""What workers tell of themselves in the store, and what `qframe workers` makes of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from qframe.drivers import process
from qframe.metrics.kept import Metrics
from qframe.metrics.series import RUN
from qframe.worker import WorkerOptions, roster
from tests.support.marks import slow
from tests.support.process import Process, Project, wait_for

pytestmark = pytest.mark.on_redis_too


def listed(project: Project) -> list[dict[str, Any]]:
    finished = project.qframe("workers", "--json")
    assert finished.code == 0, finished
    rows = json.loads(finished.out)
    assert isinstance(rows, list)
    return rows


def entries(project: Project) -> list[roster.Entry]:
    return roster.listed(project.manager.connection(project.queue.name).store)


def wait_for_state(project: Project, state: str, count: int = 1) -> list[roster.Entry]:
    def there() -> list[roster.Entry]:
        found = [entry for entry in entries(project) if entry.state == state]
        return found if len(found) == count else []

    return wait_for(there, f"{count} x {state}")


GATE = """
import pathlib, time
from qframe import Queueable
class Gate(Queueable):
    secret: str = "secret"
    def handle(self) -> None:
        while not pathlib.Path("open").exists():
            time.sleep(0.01)
"""


def shut(project: Project) -> None:
    """Give the project a job that lasts until `open`."""
    project.write("gate.py", GATE)


def open_gate(project: Project) -> None:
    project.write("open", "")


def test_a_worker_is_listed_while_it_lives(project: Project) -> None:
    worker = project.work("--queue", "high,low", "--name", "first")
    wait_for_state(project, "idle")
    (row,) = listed(project)
    assert (row["pid"], row["host"], row["name"]) == (worker.pid, process.NAME, "first")
    assert (row["connection"], row["queues"]) == (project.queue.name, ["high", "low"])
    assert (row["state"], row["jobs"], row["processed"]) == ("idle", [], 0)
    assert row["memory"] > 10
    assert row["python"].count(".") == 2
    shown = project.qframe("workers").out.splitlines()
    assert len(shown) == 2
    assert f"{process.NAME}:{worker.pid} first" in shown[1]
    assert f"{project.queue.name}:high,low" in shown[1]
    assert worker.stop() == 0
    assert listed(project) == []
    assert project.qframe("workers").out == "no worker is registered\n"


def test_a_long_job_is_shown_with_its_start(project: Project) -> None:
    shut(project)
    tags = ["tenant:7", "a\x1b[31m tag"]
    uuid = project.push("gate.Gate", displayName="a\x1b[31m job", maxTries=2, tags=tags)
    before = time.time()
    worker = project.work("--json")
    (entry,) = wait_for_state(project, "running")
    (job,) = entry.jobs
    assert (job.uuid, job.attempt, job.queue) == (uuid, 1, "default")
    assert [*job.tags] == tags
    assert before - 0.1 < job.since < time.time()
    shown = project.qframe("workers").out
    assert "\x1b" not in shown
    assert r"a\x1b[31m job" in shown
    assert "running" in shown
    open_gate(project)
    wait_for_state(project, "idle")
    (row,) = listed(project)
    assert (row["jobs"], row["processed"]) == ([], 1)
    assert worker.stop() == 0
    told = {row["status"]: row["tags"] for row in worker.rows if "uuid" in row}
    assert told == {"running": tags, "done": tags}
    assert "\x1b" not in worker.out


@pytest.mark.slow
def test_a_paused_worker_says_so(project: Project) -> None:
    worker = project.idle()
    assert project.qframe("pause").code == 0
    wait_for_state(project, "paused")
    assert project.qframe("resume").code == 0
    wait_for_state(project, "idle")
    assert worker.stop() == 0


def test_a_killed_worker_is_shown_gone_and_its_entry_expires(project: Project) -> None:
    project.push("Sleep", {"seconds": 60, "word": "long"})
    worker = project.work()
    (entry,) = wait_for_state(project, "running")
    worker.signal(signal.SIGKILL)
    worker.wait()
    (row,) = listed(project)
    assert (row["pid"], row["state"]) == (worker.pid, "gone")
    assert [each.id for each in entries(project)] == [entry.id]
    project.queue.backend.timing.skew = roster.TTL
    assert entries(project) == []
    assert roster.TTL > 2 * roster.BEAT


@pytest.mark.slow
def test_an_entry_is_written_again_in_time(project: Project) -> None:
    worker = project.idle()
    (first,) = wait_for_state(project, "idle")
    later = wait_for(
        lambda: [e for e in entries(project) if e.beat_at > first.beat_at], "another beat", 30
    )
    assert later[0].beat_at - first.beat_at < roster.TTL
    assert worker.stop() == 0


def count_of(project: Project) -> dict[tuple[str, str], dict[str, int]]:
    finished = project.qframe("counters", "--json")
    assert finished.code == 0, finished
    return {
        (row.pop("what"), row.pop("name")): {
            counter: count for counter, count in row.items() if count and counter != "connection"
        }
        for row in json.loads(finished.out)
    }


def test_each_outcome_of_two_workers_is_counted_once(project: Project) -> None:
    for number in range(300):
        project.push("Note", {"word": str(number)}, queue="high" if number % 3 else None)
    for _ in range(10):
        project.push("Flaky", {"failures": 1}, maxTries=2)
        project.push("Flaky", {"failures": 5}, maxTries=2)
        project.push("Skip")
        project.push("no.such.Job")
    workers = [project.work("--queue", "high,default", "--stop-when-empty") for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert project.empty()
    assert project.empty("high")
    counts = count_of(project)
    rest = {"processed": 110, "retried": 20, "failed": 20, "skipped": 10, "given_back": 20}
    assert counts == {
        ("total", ""): {**rest, "processed": 310},
        ("queue", "default"): rest,
        ("queue", "high"): {"processed": 200},
        ("job", "no.such.Job"): {"failed": 10, "given_back": 20},
        ("job", "jobs.Flaky"): {"processed": 10, "retried": 20, "failed": 10},
        ("job", "jobs.Note"): {"processed": 300},
        ("job", "jobs.Skip"): {"skipped": 10},
    }
    shown = project.qframe("counters").out
    assert "jobs.Flaky" in shown
    assert project.qframe("counters", "--reset").code == 0
    assert count_of(project) == {("total", ""): {}}
    assert "nothing was counted yet" in project.qframe("counters").out
    store = project.manager.connection(project.queue.name).store
    assert not [key for key in store.keys("") if key.startswith("worker:")]


@pytest.mark.slow
def test_the_very_first_job_is_counted_under_its_class(project: Project) -> None:
    project.push("Note", {"word": "first"}, queue="mail")
    assert project.work("--queue", "mail", "--once").wait() == 0
    assert count_of(project) == {
        ("total", ""): {"processed": 1},
        ("queue", "mail"): {"processed": 1},
        ("job", "jobs.Note"): {"processed": 1},
    }
    totals = Metrics(project.queue.store, project.queue.name).totals()
    ((pair, fields),) = totals.items()
    assert (pair.queue, pair.job) == ("mail", "jobs.Note")
    assert (fields["started"], fields["done"]) == (1, 1)
    assert sum(fields.get(bucket, 0) for bucket in RUN.buckets) == 1


@pytest.mark.slow
def test_a_killed_worker_loses_no_more_than_its_last_counts(project: Project) -> None:
    for number in range(20):
        project.push("Note", {"word": str(number)})
    project.push("Sleep", {"seconds": 60})
    worker = project.work()
    project.wait_for_note("start", "sleep")
    wait_for(lambda: count_of(project).get(("total", "")) == {"processed": 20}, "the counts")
    worker.signal(signal.SIGKILL)
    worker.wait()
    assert count_of(project)["job", "jobs.Note"] == {"processed": 20}


ROBBED = """
import sqlite3, time
from qframe import Queueable
class Robbed(Queueable):
    then: str
    def handle(self) -> None:
        connection = sqlite3.connect("qframe.sqlite3", isolation_level=None)
        connection.execute("UPDATE jobs SET lease = 'another worker'")
        connection.close()
        if self.then == "lasts":
            time.sleep(1)
        if self.then == "raises":
            raise ValueError("too late")
"""


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    "then",
    ["returns", *slow("raises", "lasts")],
)
def test_an_outcome_that_is_refused_is_counted_as_lost_alone(project: Project, then: str) -> None:
    project.configure(retry_after=1)
    project.write("robbed.py", ROBBED)
    project.push("robbed.Robbed", {"then": then})
    assert "1 lost" in project.drain().out
    counts = count_of(project)["job", "robbed.Robbed"]
    assert counts.pop("failed", 1) == 1, "its lease of a second may have ended meanwhile"
    assert counts == {"lost": 1}


@pytest.mark.slow
def test_a_worker_that_isolates_its_jobs_is_listed_and_counts(project: Project) -> None:
    """It has no threads: who waits for the job's process writes."""
    shut(project)
    uuid = project.push("gate.Gate")
    project.push("Note")
    worker = project.work("--isolate")
    (entry,) = wait_for_state(project, "running")
    assert [job.uuid for job in entry.jobs] == [uuid]
    open_gate(project)
    project.wait_for_note("note")
    wait_for_state(project, "idle")
    assert entries(project)[0].counts == {"processed": 2}
    assert worker.stop() == 0
    assert entries(project) == []
    assert count_of(project)["job", "jobs.Note"] == {"processed": 1}


# -- restart ------------------------------------------------------------------------------------


def test_restart_waits_for_the_workers_there_are(project: Project) -> None:
    idle = project.idle()
    project.push("Sleep", {"seconds": 3})
    busy = project.work()
    wait_for(lambda: len(entries(project)) == 2, "two entries")
    finished = project.qframe("restart", "--wait", "30")
    assert finished.code == 0, finished
    assert [worker.wait() for worker in (idle, busy)] == [0, 0]
    first, *lines = finished.out.splitlines()
    assert first == f"workers of {project.queue.name} exit after their current job"
    assert sorted(line.split()[0] for line in lines) == sorted(
        f"{process.NAME}:{worker.pid}" for worker in (idle, busy)
    )
    assert all(" exited after " in line for line in lines)
    assert len(project.notes("end")) == 1


@pytest.mark.slow
def test_restart_names_who_has_not_exited_in_time(project: Project) -> None:
    project.push("Sleep", {"seconds": 60, "word": "long"})
    busy = project.work()
    wait_for_state(project, "running")
    finished = project.qframe("restart", "--wait", "0.5")
    assert finished.code == 1
    said = finished.out.splitlines()[-1]
    assert said.startswith(f"{process.NAME}:{busy.pid} has not exited: running Sleep for ")


@pytest.mark.slow
def test_restart_does_not_take_a_killed_worker_for_one_that_answered(project: Project) -> None:
    project.push("Sleep", {"seconds": 60, "word": "long"})
    busy = project.work()
    wait_for_state(project, "running")
    waiting = project.start("restart", "--wait", "30")
    wait_for(lambda: "exit after" in waiting.out, "the restart to be told")
    busy.signal(signal.SIGKILL)
    finished = waiting.finished()
    assert f"{process.NAME}:{busy.pid} was killed after " in finished.out
    assert finished.code == 0


def test_restart_with_no_worker_there(project: Project) -> None:
    finished = project.qframe("restart", "--wait")
    assert (finished.code, finished.out.splitlines()[1:]) == (0, ["no worker is registered"])
    finished = project.qframe("restart", "5")
    assert finished.code == 2
    assert finished.one_line() == "qframe: SECONDS goes with --wait"


# -- titles -------------------------------------------------------------------------------------


def title(worker: Process) -> str:
    return Path(f"/proc/{worker.pid}/cmdline").read_text().strip("\0 ")


@pytest.mark.embedded_only
def test_the_title_says_what_the_worker_does(project: Project) -> None:
    worker = project.idle("--queue", "high,default")
    name = project.queue.name
    wait_for(lambda: title(worker) == f"qframe: {name}:high,default idle", "the title")
    shut(project)
    project.push("gate.Gate", {"secret": "secret"}, queue="high")
    running = f"qframe: {name}:high running gate.Gate since "
    wait_for(lambda: title(worker).startswith(running), "the job in the title")
    assert "secret" not in title(worker)
    open_gate(project)
    wait_for(lambda: title(worker) == f"qframe: {name}:high,default idle", "the title")
    assert worker.stop() == 0


# -- in one process -----------------------------------------------------------------------------

TWO = """
import threading, time
from qframe import QueueManager
from qframe import Worker, WorkerOptions
from qframe.worker import roster
manager = QueueManager()
workers = [Worker(manager, WorkerOptions(force=True, name=f"w{n}")) for n in range(2)]
threads = [threading.Thread(target=worker.run) for worker in workers]
for thread in threads:
    thread.start()
deadline = time.monotonic() + 60
store = manager.connection().store
names = set()
while len(names) < 2 and time.monotonic() < deadline:
    names = {entry.name for entry in roster.listed(store)}
    time.sleep(0.05)
for worker in workers:
    worker.stop()
for thread in threads:
    thread.join(60)
print(sorted(names), roster.listed(store), [t.name for t in threading.enumerate()])
"""


@pytest.mark.slow
def test_two_workers_in_one_process_are_two_entries(project: Project) -> None:
    finished = project.python(TWO)
    assert finished.out.split("\n")[0] == "['w0', 'w1'] [] ['MainThread']", finished


def test_an_entry_of_another_version_is_left_out(project: Project) -> None:
    store = project.manager.connection(project.queue.name).store
    store.set("worker:a", "no json")
    store.set("worker:b", '{"id": "b"}')
    entry = roster.introduced(WorkerOptions(name="n"), project.queue.name, ("q",))
    store.set(entry.key, entry.model_dump_json().replace('"id"', '"new": 1, "id"'))
    (row,) = listed(project)
    assert (row["pid"], row["state"]) == (os.getpid(), "idle")
