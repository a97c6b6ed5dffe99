"""Celery's publishers and workers, and qframe's, on one RabbitMQ."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qframe import foreign
from qframe.exceptions import BackendUnavailable
from qframe.jobs.foreign import Foreign
from tests.support.process import Process, wait_for
from tests.support.projects import RabbitmqProject
from tests.support.rabbitmq_server import RabbitmqServer

SHOP = """
from celery import Celery, chain

app = Celery("shop", broker={url!r})
app.conf.task_default_queue = {queue!r}
LEDGER = {ledger!r}


@app.task(name="shop.note", acks_late=True, reject_on_worker_lost=True)
def note(word):
    with open(LEDGER, "a") as ledger:
        ledger.write(f"celery {{word}}\\n")


@app.task(name="shop.kill")
def kill(times): ...


@app.task(name="old.name")
def old(word): ...


if __name__ == "__main__":
    queue = {other!r}
    note.apply_async(("plain",), queue=queue, task_id="id-1")
    old.apply_async((), {{"word": "mapped"}}, queue=queue, compression="gzip")
    note.apply_async(("later",), queue=queue, countdown=2)
    note.apply_async(("expired",), queue=queue, countdown=-10, expires=-5)
    kill.apply_async((1,), queue=queue)
    chain(note.s("first"), note.s()).apply_async(queue=queue)
    note.apply_async(("pickled",), queue=queue, serializer="pickle")
    app.send_task("shop.unknown", queue=queue)
"""
JOBS = """
from qframe import current_job
from qframe.celery import Celery

app = Celery("shop")


@app.task(name="shop.note")
def celery_note(word):
    note("note", word, current_job().attempts(), current_job().uuid)


@queueable(job_name="shop.kill", tries=3)
def kill_me(times: int) -> None:
    note("kill", current_job().attempts())
    if current_job().attempts() <= times:
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def project(tmp_path: Path, rabbitmq_running: RabbitmqServer) -> Iterator[RabbitmqProject]:
    with RabbitmqProject(tmp_path / "app", rabbitmq_running, 'jobs = ["jobs"]') as made:
        with (made.root / "qframe.toml").open("a") as settings:
            settings.write('[connections.rabbitmq.celery_tasks]\n"old.name" = "jobs.Note"\n')
        with (made.root / "jobs.py").open("a") as jobs:
            jobs.write(JOBS)
        text = SHOP.format(
            url=rabbitmq_running.url,
            ledger=str(made.ledger),
            queue=f"{made.prefix}celery",
            other=f"{made.prefix}default",
        )
        made.write("shop.py", text)
        yield made


def celery(project: RabbitmqProject, *arguments: str) -> Process:
    return project.run([sys.executable, "-m", "celery", "-A", "shop", *arguments])


@pytest.mark.slow
def test_a_worker_takes_what_celery_published(project: RabbitmqProject) -> None:
    done = project.run([sys.executable, "shop.py"]).finished()
    assert done.code == 0, done.err
    killed = project.work("rabbitmq")
    assert killed.wait() == -signal.SIGKILL
    worker = project.work("rabbitmq")
    wait_for(lambda: len(project.failed()) == 3, "those that fail")
    wait_for(lambda: len(project.notes("note")) == 3 and project.empty(), "the others")
    assert [line[1] for line in project.notes("kill")] == ["1", "2"]
    assert {line[1]: line[2] for line in project.notes("note")} == dict.fromkeys(
        ("plain", "mapped", "later"), "1"
    )
    assert project.notes("note")[0][3] == "id-1"
    reasons = "".join(record.exception for record in project.failed())
    for why in (
        "has a chain",
        "pickled, which is never read",
        "shop.unknown is not in",
    ):
        assert why in reasons
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_worker_of_celery_takes_what_qframe_published(project: RabbitmqProject) -> None:
    def note(word: str, **options: Any) -> Foreign:
        return foreign("shop.note", [word], wire="celery", **options)

    with pytest.raises(BackendUnavailable, match="its worker, Celery's, declares it"):
        project.queue.push(note("nobody"), "celery")
    worker = celery(project, "worker", "-c", "1", "-P", "solo", "-l", "info")

    def is_pushed() -> bool:
        try:
            project.queue.push(note("pushed", timeout=60, display_name="the first"), "celery")
        except BackendUnavailable:
            return False
        return True

    wait_for(is_pushed, "the queue")
    named = foreign("shop.note", {"word": "named"}, wire="celery")
    project.queue.bulk([named, note("expired", expires=datetime(2020, 1, 1, tzinfo=UTC))], "celery")
    project.queue.later(1, note("later"), "celery")
    publisher = project.work("rabbitmq")
    project.wait_for_note("celery", "named")
    project.wait_for_note("celery", "later")
    assert [line[1] for line in project.notes("celery")] == ["pushed", "named", "later"]
    assert publisher.stop() == 0
    assert worker.stop() == 0
