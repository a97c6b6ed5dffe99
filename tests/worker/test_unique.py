"""Unique jobs in real workers: killed at each point of their life, retried, isolated, debounced."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from qframe.contracts.backend import Capability
from tests.support.marks import slow
from tests.support.process import Project, wait_for
from tests.worker import singles
from tests.worker.scenes import played
from tests.worker.singles import Begun, Last, Long, Once

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

SINGLES = Path(singles.__file__)


@pytest.fixture(autouse=True)
def _singles(project: Project) -> None:
    shutil.copy(SINGLES, project.root / "singles.py")


def locks(project: Project) -> list[str]:
    return list(project.manager.connection(project.queue.name).store.keys("unique:"))


def listening(event: str, listener: str) -> str:
    return f'[listeners]\n{event} = ["singles:{listener}"]\n'


@pytest.mark.every_backend
@pytest.mark.parametrize("how", ["", *slow("--isolate")])
@pytest.mark.on_redis_in_ci
def test_a_job_is_alone_until_its_final_end(project: Project, how: str) -> None:
    """However it comes: done, out of tries, skipped, deleted, failed by hand, after a release."""
    words = ["done", "raises", "skips", "deletes", "fails", "releases"]
    ids = [project.queue.push(Once(word=word, key=word)) for word in words]
    again = [Once(word="another", key=word) for word in words]
    assert [project.queue.push(job) for job in again] == ids
    project.drain(*how.split())
    assert [line[1] for line in project.notes("end")].count("another") == 0
    assert sum(line[1] in {"raises", "releases"} for line in project.notes("start")) == 4
    assert locks(project) == []
    assert not set(ids) & {project.queue.push(job) for job in again}
    assert project.sizes().total == len(words)


@pytest.mark.parametrize(
    "point",
    ["JobProcessing", "JobProcessed", *slow("JobPopped")],
)
@pytest.mark.on_redis_in_ci
def test_a_worker_killed_with_a_unique_job_leaves_room_for_another(
    project: Project, point: str
) -> None:
    """Held, started, done but not deleted: its lock goes on to the next attempt, and ends there."""
    project.configure(listening(point, "die_once"), retry_after=1)
    first = project.queue.push(Once())
    assert project.work().wait() == -signal.SIGKILL
    assert project.notes() == [
        *([["start", "1"], ["end", "1"]] * (point == "JobProcessed")),
        ["died"],
    ]
    assert project.queue.push(Once()) == first  # it will run again
    worker = project.work("--max-jobs", 1)
    assert worker.wait() == 0
    wait_for(project.empty, "the queue to be empty")
    assert locks(project) == []
    assert project.queue.push(Once()) != first


@pytest.mark.not_on_beanstalkd("its locks are elsewhere, and end by themselves")
@pytest.mark.parametrize("what", ["unique", "unique-failure"])
@pytest.mark.slow
@pytest.mark.on_redis_in_ci
def test_a_worker_that_dies_as_a_unique_job_ends_leaves_no_lock(
    project: Project, what: str
) -> None:
    """At whichever call: the job comes again and ends, and its lock is free."""
    for scene in played(project, what):
        assert 1 <= scene.words.count("a") <= 2, scene


@pytest.mark.slow
def test_a_killed_last_attempt_frees_the_lock_with_its_failure(project: Project) -> None:
    project.configure(listening("JobProcessing", "die_once"), retry_after=1)
    (project.root / "singles.py").write_text(SINGLES.read_text().replace("tries = 2", "tries = 1"))
    first = project.queue.push(Once())
    assert project.work().wait() == -signal.SIGKILL
    assert project.work("--max-jobs", 1).wait() == 0
    if project.failed():  # beanstalkd does not count a first start whose worker died at once
        assert project.failure().uuid == first
    assert locks(project) == []
    assert project.queue.push(Once()) != first


@pytest.mark.slow
def test_in_a_pool(project: Project) -> None:
    first = project.queue.push(Once())
    project.drain("--workers", 2)
    assert locks(project) == []
    assert project.queue.push(Once()) != first


@pytest.mark.slow
def test_a_long_job_keeps_its_lock(project: Project) -> None:
    first = project.queue.push(Long())
    worker = project.work("--max-jobs", 1)
    project.wait_for_note("start", "long")
    until = time.monotonic() + 7.5  # its lock would have ended after 6
    while time.monotonic() < until:
        assert project.queue.push(Long()) == first
        time.sleep(0.2)  # each look is one more chance to find it ended
    assert project.notes("end") == []
    assert worker.wait() == 0
    assert project.queue.push(Long()) != first


def test_until_started(project: Project) -> None:
    first = project.queue.push(Begun())
    assert project.queue.push(Begun(number=1)) == first
    worker = project.work("--max-jobs", 2)
    project.wait_for_note("start", "begun", 0)
    second = wait_for(
        lambda: (given := project.queue.push(Begun(number=2))) != first and given, "a free lock"
    )
    assert project.notes("end") == []
    assert project.queue.push(Begun(number=3)) == second
    assert worker.wait() == 0
    assert [line[2] for line in project.notes("start")] == ["0", "2"]
    assert locks(project) == []


@pytest.mark.slow
def test_of_debounced_jobs_the_last_runs_and_the_others_are_skipped(project: Project) -> None:
    project.configure(listening("JobSkipped", "hear_skipped"))
    for text in ("one", "two", "three"):
        project.queue.push(Last(text=text))
    assert project.work("--max-jobs", 3).wait() == 0
    assert project.notes("last") == [["last", "three"]]
    assert len(project.notes("skipped")) == 2
    assert project.notes("skipped")[0][1] == "debounced:"
    assert project.empty()


@pytest.mark.slow
def test_a_failed_one_is_retried_with_its_lock_or_stays(project: Project) -> None:
    first = project.queue.push(Once(word="fails"))
    project.drain()
    second = project.queue.push(Once())
    refused = project.qframe("retry", first)
    assert refused.code == 1
    assert f"{first} is kept" in refused.err
    assert second in refused.err
    assert project.failure().uuid == first
    project.drain()
    assert project.qframe("retry", first).code == 0
    assert project.failed() == []
    assert project.queue.push(Once()) == first


def test_a_dispatch_says_that_it_is_a_duplicate_also_a_dropped_one(project: Project) -> None:
    finished = project.python(
        "from qframe import bulk, dispatch, events\n"
        "from singles import Once\n"
        "heard = []\n"
        "events.listen(events.JobDuplicate)(lambda event: heard.append(event.id))\n"
        "first = dispatch(Once())\n"
        "assert not first.is_duplicate\n"
        "second = dispatch(Once(word='b'))\n"
        "assert second.send() == first.id and second.is_duplicate\n"
        "dispatch(Once(word='dropped'))\n"
        "assert bulk([Once(), Once()]) == [first.id] * 2\n"
        "print(len(heard), set(heard) == {first.id})\n"
    )
    assert finished.code == 0, finished.err
    assert finished.out.split() == ["4", "True"]
    assert project.sizes().total == 1


@pytest.mark.on_redis_in_ci
def test_a_dispatcher_killed_within_a_push_leaves_no_lock_without_a_bound(project: Project) -> None:
    """Where lock and job are one step there is neither; elsewhere the lock ends by itself."""
    finished = project.python(
        "import os\n"
        "from qframe import dispatch, manager\n"
        "from singles import Long\n"
        "backend = manager.default().connection().backend\n"
        "def dies(*args, **more): os._exit(9)\n"
        "getattr(backend, 'messages', backend).apply = dies\n"
        "dispatch(Long(seconds=0)).send()\n"
    )
    assert finished.code == 9, finished.err
    began = time.monotonic()
    if Capability.JOINT in project.queue.capabilities:
        assert len(locks(project)) == project.sizes().total
    wait_for(lambda: not locks(project), "the lock to end")
    assert time.monotonic() - began < 6 + 24
    assert project.queue.push(Long(seconds=0))
