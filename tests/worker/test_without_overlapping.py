"""Jobs with one key never run at the same time, whatever kills their workers."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest

from qframe.worker import roster
from tests.support import alone
from tests.support.marks import slow
from tests.support.pool import IDLE, pool, wait_for_row
from tests.support.process import Process, Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

JOBS = '''
import os, time
from jobs import note
from qframe import Queueable
from qframe.middleware import WithoutOverlapping


class Alone(Queueable):
    """Marks its start and its end."""
    number: int = 0
    key: str = "one"
    seconds: float = 0.005
    fails: bool = False
    releases: bool = False
    until: str = ""

    def middleware(self):
        return [WithoutOverlapping(self.key, lease=3)]

    def handle(self):
        note("S", self.number, self.attempts, os.getpid(), f"{time.monotonic():.6f}")
        if self.releases and self.attempts == 1:
            self.release()
        end = time.monotonic() + self.seconds
        while time.monotonic() < end or (self.until and not os.path.exists(self.until)):
            time.sleep(0.002)
        note("D", self.number, self.attempts, os.getpid(), f"{time.monotonic():.6f}")
        if self.fails:
            raise ValueError("not today")


class Impatient(Alone):
    """Waits for the lock again and again."""
    def middleware(self):
        return [WithoutOverlapping("one", release=0, shared=True, lease=3)]


class Other(Impatient):
    """Has the same lock as a class of another name."""
    def handle(self):
        super().handle()


class Leaves(Alone):
    """Does not wait."""
    def middleware(self):
        return [WithoutOverlapping("one", dont_release=True, lease=3)]
'''

MANY = 200


@pytest.fixture(autouse=True)
def the_jobs(project: Project) -> None:
    project.write("alone.py", JOBS)


def _push(project: Project, count: int, **fields: object) -> None:
    for number in range(count):
        project.push("alone.Alone", {"number": number, **fields}, maxTries=1)


def _done(project: Project) -> set[str]:
    return {words[1] for words in project.notes("D")}


def _has_done(project: Project, count: int) -> bool:
    return len(_done(project)) >= count


def _alone(project: Project, killed: dict[int, float] | None = None) -> list[alone.Run]:
    """Give the runs; fails where two were at once."""
    found = alone.runs(project.notes(), killed or {})
    assert alone.overlaps(found) == []
    return found


@pytest.mark.on_redis_in_ci
def test_two_workers_never_overlap_and_all_jobs_run(project: Project) -> None:
    _push(project, 100, until="go")
    workers = [project.work("--tries", 1) for _ in range(2)]
    wait_for(lambda: len(roster.listed(project.queue.store)) == 2, "both workers")
    (project.root / "go").touch()
    wait_for(lambda: len(_done(project)) == 100, "all jobs", 60)
    assert project.stop(workers) == [0, 0]
    found = _alone(project)
    assert len(found) == 100
    assert len({run.pid for run in found}) == 2, "one worker had all the jobs"
    assert not project.failed()
    wait_for(project.empty, "an empty queue")


@pytest.mark.slow
@pytest.mark.on_redis_in_ci
def test_the_lock_is_renewed_beyond_its_lease(project: Project) -> None:
    _push(project, 2, seconds=5)
    workers = [project.work("--tries", 1) for _ in range(2)]
    wait_for(lambda: len(_done(project)) == 2, "both jobs", 60)
    assert project.stop(workers) == [0, 0]
    _alone(project)


def _rows(worker: Process, status: str) -> int:
    return sum(row["status"] == status for row in worker.rows)


@pytest.mark.slow
def test_with_one_try_a_job_waits_many_times_and_still_runs(project: Project) -> None:
    """Laravel counts each of these releases as a try, and fails the job at the first."""
    project.push("alone.Impatient", {"number": 1, "until": "go"})
    first = project.work("--tries", 1)
    project.wait_for_note("S", 1)
    project.push("alone.Other", {"number": 2}, maxTries=1)
    second = project.work("--tries", 1, "--json")
    wait_for(lambda: _rows(second, "released") > 20, "many releases")
    (project.root / "go").touch()
    project.wait_for_note("D", 2)
    assert [first.stop(), second.stop()] == [0, 0]
    _, waited = _alone(project)
    assert waited.attempt > 20
    assert not project.failed()


@pytest.mark.slow
def test_one_that_does_not_wait_is_skipped(project: Project) -> None:
    project.push("alone.Leaves", {"number": 1, "until": "go"})
    first = project.work()
    project.wait_for_note("S", 1)
    project.push("alone.Leaves", {"number": 2})
    second = project.work("--json")
    wait_for(lambda: _rows(second, "skipped"), "it to be skipped")
    (project.root / "go").touch()
    project.wait_for_note("D", 1)
    assert [first.stop(), second.stop()] == [0, 0]
    assert _done(project) == {"1"}
    assert not project.failed()
    assert project.empty()


@pytest.mark.parametrize("fields", [{"fails": True}, {"releases": True}])
@pytest.mark.slow
def test_the_lock_is_free_after_any_end(project: Project, fields: dict[str, object]) -> None:
    _push(project, 1, **fields)
    project.push("alone.Alone", {"number": 2})
    worker = project.work("--tries", 1)
    wait_for(lambda: _done(project) == {"0", "2"}, "both")
    project.wait_for_note("D", 0, 2 if "releases" in fields else 1)
    assert worker.stop() == 0
    assert not project.manager.connection().store.keys("overlap:"), "a lock was left to run out"
    _alone(project)
    assert len(project.failed()) == ("fails" in fields)


def test_the_lock_is_free_after_a_timeout(project: Project) -> None:
    project.push("alone.Alone", {"number": 1, "seconds": 60}, timeout=1)
    worker = project.work("--tries", 1, "--timeout", 1)
    assert worker.wait() == 1
    assert [record.exception.split(":")[0] for record in project.failed()]
    (begun,) = project.notes("S")
    project.push("alone.Alone", {"number": 2})
    assert not project.manager.connection().store.keys("overlap:"), "the lock was left to run out"
    project.drain()
    assert _done(project) == {"2"}
    assert begun[1] == "1"


@pytest.mark.parametrize("apart", [(), *slow(("--isolate",))])
def test_a_killed_holder_frees_it_in_seconds(project: Project, apart: tuple[str, ...]) -> None:
    """With Laravel's default the key is blocked for ever."""
    project.configure(retry_after=60)
    project.push("alone.Alone", {"number": 1, "seconds": 60})
    holder = project.work(*apart)
    pid = int(project.wait_for_note("S", 1)[3])
    project.push("alone.Alone", {"number": 2})
    other = project.work()
    time.sleep(4)
    assert not project.notes("D"), "the lock was not renewed"
    killed = time.monotonic()
    holder.end()
    project.wait_for_note("D", 2)
    assert time.monotonic() - killed < 30
    assert other.stop() == 0
    assert [run.number for run in _alone(project, {pid: killed})][:2] == ["1", "2"]


@pytest.mark.not_on_beanstalkd("it gives the job back before the pool has noted why")
@pytest.mark.slow
def test_in_a_pool_the_killed_job_takes_its_lock_over_at_once(project: Project) -> None:
    project.write("alone.py", JOBS.replace("lease=3", "lease=60"))
    project.push("alone.Alone", {"number": 1, "seconds": 1}, maxTries=2)
    running = pool(project, "--tries", 2, toml=IDLE)
    pid = int(project.wait_for_note("S", 1)[3])
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    project.wait_for_note("D", 1, 2)
    wait_for_row(running, "recovered")
    assert running.stop() == 0
    assert [run.attempt for run in _alone(project, {pid: killed})] == [1, 2]


def test_under_kills_it_is_never_two(project: Project) -> None:
    """Two hundred jobs, three workers, three kills of whoever holds the lock."""
    for number in range(MANY):
        project.push("alone.Alone", {"number": number}, maxTries=5)
    running = pool(project, "--tries", 5, workers=3)
    chance = random.Random(7)
    killed: dict[int, float] = {}
    for _ in range(3):
        goal = len(_done(project)) + 30
        wait_for(partial(_has_done, project, goal), "progress", 60)
        time.sleep(chance.uniform(0, 0.02))
        pid = int(project.notes("S")[-1][3])
        killed[pid] = time.monotonic()
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(_done(project)) == MANY, "all jobs", 90)
    assert running.stop() == 0
    found = _alone(project, killed)
    assert len(found) >= MANY
    assert not project.failed()


@pytest.mark.slow
def test_elsewhere_it_cannot_be_put_off(project: Project) -> None:
    if project.queue.name == "redis":  # else a job in its caller has its locks in the database
        project.configure('[store]\ndriver = "redis"\n')
    project.push("alone.Alone", {"number": 1, "until": "go"})
    worker = project.work()
    project.wait_for_note("S", 1)
    said = project.python(
        "from alone import Alone\n"
        "from qframe.exceptions import LimitReached\n"
        "try:\n"
        "    Alone.dispatch_sync(number=2)\n"
        "except LimitReached as error:\n"
        "    print(error)\n"
        "Alone.dispatch_sync(number=3, key='another')\n"
    )
    assert "(another job holds the lock overlap:alone.Alone::one)" in said.out, said
    (project.root / "go").touch()
    assert worker.stop() == 0
    assert _done(project) == {"1", "3"}
