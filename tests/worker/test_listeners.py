"""Listeners named in the configuration, and a failed store that fails."""

from __future__ import annotations

import sqlite3
import time

import pytest

from qframe import events
from tests.support.marks import slow
from tests.support.process import Project, wait_for

KINDS = sorted(name for name, kind in events.kinds().items() if issubclass(kind, events.JobEvent))
WORKER_KINDS = sorted(
    name
    for name, kind in events.kinds().items()
    if issubclass(kind, events.WorkerEvent) or name == "JobPopping"
)


def _listening(kinds: list[str], function: str) -> str:
    return "[listeners]\n" + "".join(f'{kind} = ["jobs:{function}"]\n' for kind in kinds)


def test_every_configured_listener_is_called(project: Project) -> None:
    project.configure(_listening([*KINDS, *WORKER_KINDS], "hear"))
    uuid = project.push("Flaky", {"failures": 1}, maxTries=2)
    project.drain()
    heard = [line[1] for line in project.notes("event")]
    expected = [
        "WorkerStarting", "Looping", "JobPopping", "JobPopped", "JobProcessing",
        "JobExceptionOccurred", "JobReleasedAfterException", "JobAttempted",
        "Looping", "JobPopping", "JobPopped", "JobProcessing", "JobProcessed", "JobAttempted",
        "Looping", "JobPopping", "WorkerIdle", "WorkerStopping",
    ]  # fmt: skip
    # Listening to a base hears every event that derives from it, too.
    assert [name for name in heard if heard.count(name)] != []
    assert list(dict.fromkeys(heard)) == list(dict.fromkeys(expected))
    assert uuid in {line[2] for line in project.notes("event")}


@pytest.mark.parametrize("function", ["hear_and_raise", *slow("hear_and_exit")])
def test_listeners_that_raise_lose_no_job(project: Project, function: str) -> None:
    project.configure(_listening([*KINDS, *WORKER_KINDS], function))
    project.push("Note")
    project.push("Flaky", {"failures": 1}, maxTries=2)
    failing = project.push("Flaky", {"word": "never"})
    project.push("Release", maxTries=1)
    project.push("FailByHand")
    project.push("Skip")
    project.push("nosuch.Job")
    finished = project.drain()
    assert len(project.notes("note")) == 1
    assert ["end", "flaky", "2"] in project.notes("end")
    assert ["end", "release", "2"] in project.notes("end")
    assert failing in {record.uuid for record in project.failed()}
    assert len(project.failed()) == 3
    assert project.empty()
    for kind in ("JobProcessing", "JobFailed", "JobSkipped", "AttemptGivenBack", "WorkerStopping"):
        assert ["heard", kind] in project.notes("heard")
    assert "a listener of JobProcessing raised" in finished.err
    assert "1 skipped" in finished.out


def test_listeners_that_raise_do_not_stop_a_refused_dispatch(project: Project) -> None:
    project.configure(_listening(["JobQueueing", "JobQueued"], "hear_and_raise"))
    told = project.qframe("dispatch", "jobs.Note")
    assert told.code == 0
    assert project.sizes().ready == 1


def test_a_listener_may_settle_a_job_that_raised(project: Project) -> None:
    project.configure('[listeners]\nJobExceptionOccurred = ["jobs:settle_by_listener"]\n')
    project.push("Flaky", maxTries=5)
    project.drain()
    assert len(project.notes("start")) == 1
    assert project.failed() == []
    assert project.empty()


def test_a_failed_store_that_fails_keeps_the_job(project: Project) -> None:
    """The table of failed jobs refuses every row, until somebody repairs it."""
    project.configure(retry_after=20)
    uuid = project.push("Flaky", maxTries=1)
    assert project.failed() == []
    with sqlite3.connect(project.database) as connection:
        connection.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON failed_jobs "
            "BEGIN SELECT RAISE(ABORT, 'out of order'); END"
        )
    connection.close()
    worker = project.work()
    project.wait_for_note("start")
    wait_for(lambda: "out of order" in worker.err, "the trouble to be reported")
    time.sleep(1)
    assert project.sizes().total == 1
    assert project.failed() == []
    assert project.notes("failed") == []
    with sqlite3.connect(project.database) as connection:
        connection.execute("DROP TRIGGER broken")
    connection.close()
    wait_for(project.failed, "the record")
    wait_for(project.empty, "the removal")
    assert worker.stop() == 0
    record = project.failure()
    assert record.uuid == uuid
    assert "ValueError: not the 1. time" in record.exception
    assert len(project.notes("start")) == 1
    assert len(project.notes("failed")) == 1
    assert "Traceback" not in worker.err


def test_a_failed_store_whose_code_raises_keeps_the_job(project: Project) -> None:
    project.write(
        "breaks.py",
        "from pathlib import Path\n"
        "from qframe.contracts.step import Record\n"
        "from qframe.drivers.database.backend import DatabaseBackend as Backend\n"
        "apply = Backend.apply\n"
        "def broken(self, *steps):\n"
        "    records = any(isinstance(o, Record) for step in steps for o in step.operations)\n"
        "    if records and not Path('repaired').exists():\n"
        "        raise ValueError('a bug in the store')\n"
        "    return apply(self, *steps)\n"
        "def install(event):\n"
        "    Backend.apply = broken\n",
    )
    project.configure('[listeners]\nWorkerStarting = ["breaks:install"]\n', retry_after=1)
    uuid = project.push("Flaky", maxTries=1)
    worker = project.work()
    project.wait_for_note("start")
    wait_for(lambda: "a bug in the store" in worker.err, "the trouble to be reported")
    assert project.sizes().total == 1
    assert project.failed() == []
    project.push("Note")
    project.wait_for_note("note")
    project.write("repaired", "")
    wait_for(project.failed, "the record")
    assert worker.stop() == 0
    assert project.failure().uuid == uuid
    assert project.empty()
    assert len(project.notes("start")) == 1
