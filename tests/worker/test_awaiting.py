"""Jobs that dispatch from their event loop: the same in every worker."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from qframe import Queueable, batch, manager
from tests.support.process import Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

ways = pytest.mark.parametrize(
    "way", [(), ("--concurrency", "5"), pytest.param(("--isolate",), marks=pytest.mark.slow)]
)
EACH = ("bulk1", "bulk2", "one", "link1", "link2", "member", "dropped")


class Adds(Queueable):
    """A job of the project, as who dispatches it knows it."""

    job_name = "awaiting_jobs.Adds"
    tries = 3

    def handle(self) -> None: ...


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("awaiting_jobs.py"), project.root)
    return project


def words(project: Project) -> list[str]:
    return [line[1] for line in project.notes("note")]


@ways
@pytest.mark.every_backend
def test_all_calls_are_there_and_what_is_dropped_is_done(
    crowd: Project, way: tuple[str, ...]
) -> None:
    for word in ("a", "b", "c"):
        crowd.push("awaiting_jobs.Dispatches", {"word": word})
    worker = crowd.work(*way)
    wait_for(lambda: len(words(crowd)) >= 3 * len(EACH), "all of them", 60)
    wait_for(crowd.empty, "nothing to be left")
    assert worker.stop() == 0
    assert Counter(words(crowd)) == Counter(f"{word}-{each}" for word in "abc" for each in EACH)
    assert crowd.notes("awaited") == [["awaited", "2", "1", "jobs.Note", "36"]] * 3
    assert "Traceback" not in worker.err


def test_one_waits_for_another_beside_it(crowd: Project) -> None:
    for _ in range(3):
        crowd.push("awaiting_jobs.Waits")
    worker = crowd.work("--concurrency", 10)
    wait_for(lambda: len(crowd.notes("waited")) == 3, "the jobs that wait")
    assert worker.stop() == 0
    assert crowd.notes("waited") == [["waited", "COMPLETE"]] * 3


@ways
@pytest.mark.every_backend
def test_a_member_that_adds_and_is_tried_again_has_added_once(
    crowd: Project, way: tuple[str, ...]
) -> None:
    before = manager.current()
    manager.use(crowd.manager)
    try:
        made = batch([Adds()]).dispatch()
    finally:
        manager.use(before)
    worker = crowd.work(*way)
    wait_for(lambda: made.fresh().is_finished, "the batch", 60)
    assert worker.stop() == 0
    found = made.fresh()
    assert (found.total, found.done, found.failed) == (2, 2, 0)
    assert set(words(crowd)) == {"added"}
