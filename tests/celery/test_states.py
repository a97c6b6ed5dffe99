"""Custom states, time limits of a call, and signals of workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, job_status
from qframe.celery import Task, chain, group, jobs, signals
from qframe.celery.exceptions import Ignore
from qframe.celery.result import AsyncResult
from qframe.payload import envelope
from qframe.testing import drain, travel
from tests.celery.tasks import app
from tests.support.process import Project

seen: list[Any] = []


@app.task(bind=True, max_retries=1, default_retry_delay=60)
def works(self: Task, ends: str = "") -> str:
    result = AsyncResult(str(self.request.id))
    self.update_state(state="PROGRESS", meta={"current": 1, "total": 4})
    status = job_status(result.id)
    assert status is not None
    seen.append((result.state, result.info, result.ready(), status.progress, status.message))
    if ends == "ignored":
        self.update_state(state="FAILURE", meta={"exc_type": "ValueError", "exc_message": ["no"]})
        raise Ignore
    if ends == "retried" and not self.request.retries:
        raise self.retry()
    return "done"


@app.task(bind=True)
def tells(self: Task, task_id: str) -> None:
    self.update_state(task_id=task_id, state="READY SOON", meta=ValueError("late"))


@app.task(soft_time_limit=30)
def limited() -> None: ...


@app.task
def unlimited() -> None: ...


@pytest.fixture(autouse=True)
def _queues(queues: QueueManager) -> None:
    seen.clear()


# -- update_state ---------------------------------------------------------------------------------


def test_a_state_of_its_own_stands_until_the_task_ends() -> None:
    result = works.delay()
    drain(raises=True)
    progress = {"current": 1, "total": 4}
    assert seen == [("PROGRESS", progress, False, 0.25, "PROGRESS")]
    assert (result.state, result.info, result.get(timeout=1)) == ("SUCCESS", "done", "done")


def test_a_retry_begins_without_it() -> None:
    result = works.delay("retried")
    drain()
    assert result.state == "RETRY"
    with travel(61):
        drain(raises=True)
    assert [each[0] for each in seen] == ["PROGRESS"] * 2
    assert result.state == "SUCCESS"


def test_a_failure_that_it_gave_itself_stays_behind_an_ignore() -> None:
    result = works.delay("ignored")
    drain()
    assert (result.state, result.ready(), repr(result.info)) == (
        "FAILURE",
        True,
        "ValueError('no')",
    )
    with pytest.raises(ValueError, match="no"):
        result.get(timeout=1)
    result.forget()
    assert result.state == "PENDING"


def test_another_task_may_say_it() -> None:
    result = works.apply_async(countdown=1000)
    tells.delay(result.id)
    drain(raises=True)
    assert result.state == "READY SOON"
    assert result.info == {"exc_type": "ValueError", "exc_message": "late"}
    with pytest.raises(ValueError, match="takes a state"):
        works.update_state(state="X")
    with pytest.raises(ValueError, match=r"70,\d+ characters, more than"):
        works.update_state("x", "X", "." * 70_000)


# -- time limits of a call ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sent"),
    [({}, None), ({"time_limit": 5}, 5), ({"time_limit": 9, "soft_time_limit": 7}, 7)],
)
def test_a_call_has_limits_of_its_own(options: dict[str, Any], sent: float | None) -> None:
    for task, usual in ((limited, 30), (unlimited, 0)):
        payload = envelope.create(jobs.job_of(app, task.name, (), {}, options))
        assert payload["timeout"] == (usual if sent is None else sent)
        assert payload.get("ownTimeout") == (None if sent is None else True)


@pytest.mark.parametrize("canvas", [chain, group])
def test_those_of_a_canvas_are_those_of_its_tasks(queues: QueueManager, canvas: Any) -> None:
    canvas(unlimited.si(), limited.si()).apply_async(time_limit=5)
    waiting = queues.connection().reserve(["default", "celery"], 2)
    sent = [(job.payload["timeout"], job.payload.get("ownTimeout")) for job in waiting]
    assert sent == [(5, True)] * (1 if canvas is chain else 2)


HANGS = """
import time
from qframe.celery import Celery
from qframe.celery.signals import (
    celeryd_init, task_prerun, worker_process_init, worker_process_shutdown, worker_ready,
    worker_shutdown,
)

app = Celery("proj")

def note(*words):
    with open("told", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@app.task(time_limit=600, max_retries=0, bind=True)
def hang(self):
    note("limits", self.request.timelimit)
    time.sleep(600)

@app.task
def quick():
    note("ran")

for signal in (
    celeryd_init, task_prerun, worker_process_init, worker_process_shutdown, worker_ready,
    worker_shutdown,
):
    @signal.connect
    def tell(sender, signal, **given):
        note(signal.name)

@worker_ready.connect
def ready(sender, **given):
    note("host", bool(sender.hostname), sender.app is app)
"""


def told(root: Path) -> list[str]:
    return (root / "told").read_text().splitlines()


def test_a_worker_ends_a_call_at_its_own_limit(tmp_path: Path) -> None:
    with Project(tmp_path / "app", 'jobs = ["proj"]\n') as project:
        project.write("proj.py", HANGS)
        sent = project.python("from proj import hang; hang.apply_async(soft_time_limit=1.5)")
        assert sent.code == 0, sent.err
        worker = project.work("--stop-when-empty")
        assert worker.wait() == 1, worker.err
        assert "limits (None, 1.5)" in told(project.root)
        assert "JobTimedOut" in project.failure().exception


@pytest.mark.parametrize("option", ["--quiet", "--isolate"])
def test_signals_of_workers(tmp_path: Path, option: str) -> None:
    with Project(tmp_path / "app", 'jobs = ["proj"]\n') as project:
        project.write("proj.py", HANGS)
        assert project.python("from proj import quick; quick.delay()").code == 0
        worker = project.work(option, "--stop-when-empty")
        assert worker.wait() == 0, worker.err
        lines = told(project.root)
    if option == "--isolate":  # the worker imports no tasks; the process of each job does
        assert lines == ["worker_process_init", "task_prerun", "ran"]
        return
    assert lines == [
        "celeryd_init", "worker_process_init", "worker_ready", "host True True", "task_prerun",
        "ran", "worker_process_shutdown", "worker_shutdown",
    ]  # fmt: skip


def test_worker_process_init_is_sent_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_begun", set())
    sent: list[int] = []

    @signals.worker_process_init.connect
    def begin(**_: Any) -> None:
        sent.append(os.getpid())

    try:
        for _ in range(2):
            unlimited.delay()
        drain(raises=True)
    finally:
        signals.worker_process_init.disconnect(begin)
    assert sent == [os.getpid()]
