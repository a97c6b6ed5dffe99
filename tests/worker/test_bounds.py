"""How many jobs of a queue or class run at once: in a worker, over all workers, and no more."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.marks import slow
from tests.support.process import Project, wait_for
from tests.worker.bounding import ended, ended_before, most_at_once, permits, push

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

OVER_ALL = "[queues.mail]\nconcurrency = 3\n"


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    return project


# -- of a queue in one worker ---------------------------------------------------------------------


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", ["Waits", *slow("Blocks"), "Blocks apart"])
@pytest.mark.on_redis_in_ci
def test_a_worker_runs_so_many_of_a_queue_and_delays_no_other(crowd: Project, kind: str) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n')
    apart = ["--isolate", "--preload"] if "apart" in kind else []
    push(crowd, 8, job=kind.split(maxsplit=1)[0], seconds=0.7)
    push(crowd, 8, queue="default", seconds=0.1)
    worker = crowd.work("--queue", "mail:2,default", "--concurrency", 6, *apart)
    wait_for(lambda: ended(crowd) == 16, "all jobs")
    assert ended_before(crowd, "mail", "default") < 4, "the others did not wait for them"
    assert crowd.stop([worker]) == [0]
    assert most_at_once(crowd, "mail") == 2
    assert set(Counter(line[1] for line in crowd.notes("start")).values()) == {1}


# -- of a queue over all workers ------------------------------------------------------------------


@pytest.mark.every_backend
@pytest.mark.on_redis_in_ci
def test_all_workers_run_so_many_of_a_queue_and_delay_no_other(crowd: Project) -> None:
    crowd.configure(OVER_ALL)
    push(crowd, 18, seconds=0.5)
    push(crowd, 12, queue="default", seconds=0.1)
    queues = ("--queue", "mail,default")
    workers = [crowd.work(*queues, "--concurrency", 4) for _ in range(2)]
    workers += [crowd.work(*queues) for _ in range(3)]
    wait_for(lambda: ended(crowd) == 30, "all jobs")
    assert ended_before(crowd, "mail", "default") < 12, "the others did not wait for them"
    wait_for(lambda: not permits(crowd), "all permits to be given back", 30)
    assert crowd.stop(workers) == [0] * 5
    assert most_at_once(crowd, "mail") == 3
    assert set(Counter(line[1] for line in crowd.notes("start")).values()) == {1}


@pytest.mark.parametrize(
    "how",
    [("--once",), ("--isolate",), pytest.param(("--workers", 2), marks=pytest.mark.slow)],
    ids=str,
)
def test_it_holds_in_workers_of_every_kind(crowd: Project, how: tuple[object, ...]) -> None:
    crowd.configure(OVER_ALL.replace("3", "2"))
    count = 4
    push(crowd, count, seconds=1.5)
    workers = [crowd.work("--queue", "mail", "--sleep", 20, *how) for _ in range(count)]
    wait_for(lambda: ended(crowd) == count, "all jobs")
    if how == ("--once",):
        assert [worker.wait() for worker in workers] == [0] * count
    assert most_at_once(crowd, "mail") == 2


@pytest.mark.parametrize("slots", [*slow(1), 4])
def test_a_queue_that_is_full_is_not_empty(crowd: Project, slots: int) -> None:
    crowd.configure(OVER_ALL.replace("3", "1"))
    push(crowd, 1, seconds=2)
    other = crowd.work("--queue", "mail")
    crowd.wait_for_note("start")
    push(crowd, 2, queue="default", seconds=0.1)
    push(crowd, 3, seconds=0.1, job="Blocks")
    options = ("--stop-when-empty", "--concurrency", slots)
    assert crowd.work("--queue", "mail,default", *options).wait() == 0
    assert ended(crowd) >= 5  # the other may have the last
    wait_for(lambda: ended(crowd) == 6, "all jobs")
    assert most_at_once(crowd, "mail") == 1
    assert crowd.stop([other]) == [0]


def test_a_full_queue_without_jobs_is_empty(crowd: Project) -> None:
    crowd.configure(OVER_ALL.replace("3", "1"))
    push(crowd, 1, seconds=30)
    other = crowd.work("--queue", "mail")
    crowd.wait_for_note("start")
    assert crowd.work("--queue", "mail", "--stop-when-empty").wait() == 0
    other.end()


def test_what_was_sent_by_others_is_bounded_as_well(crowd: Project) -> None:
    crowd.configure(OVER_ALL.replace("3", "1"))
    for _ in range(3):
        crowd.push("jobs.Nobody", queue="mail", tags=["from PHP"])
    push(crowd, 3)
    worker = crowd.work("--queue", "mail", "--concurrency", 4)
    wait_for(lambda: ended(crowd) == 3, "three jobs")
    wait_for(lambda: len(crowd.failed()) == 3, "three that nobody knows")
    assert most_at_once(crowd, "mail") == 1
    assert crowd.stop([worker]) == [0]


# -- of a class over all workers ------------------------------------------------------------------


@pytest.mark.every_backend
def test_all_workers_run_so_many_of_a_class_and_delay_no_other(crowd: Project) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n')
    push(crowd, 6, queue="default", job="Few", seconds=0.4)
    push(crowd, 6, queue="default", job="FewInThread", seconds=0.4)
    push(crowd, 10, queue="default", seconds=0.1)
    workers = [crowd.work("--concurrency", 4), *(crowd.work() for _ in range(3))]
    wait_for(lambda: ended(crowd, "default-Waits") == 10, "the others")
    wait_for(lambda: ended(crowd) == 22, "all jobs")
    wait_for(lambda: not permits(crowd), "all permits to be given back", 30)
    wait_for(crowd.empty, "nothing to be left")
    assert crowd.stop(workers) == [0] * 4
    assert most_at_once(crowd, "default-Few-") == 2
    assert most_at_once(crowd, "default-FewInThread") == 2
    starts = crowd.notes("start")
    assert {line[2] for line in starts} == {"1"}, "nobody who waited was counted"
    assert set(Counter(line[1] for line in starts).values()) == {1}


@pytest.mark.parametrize(
    "how",
    [
        ("--concurrency", 4),
        *slow(()),
        *slow(("--isolate",)),
        ("--isolate", "--concurrency", 4),
    ],
    ids=str,
)
def test_a_class_that_is_imported_late_is_bounded(crowd: Project, how: tuple[object, ...]) -> None:
    push(crowd, 8, queue="default", job="FewInThread", seconds=0.5)
    workers = [crowd.work(*how) for _ in range(3)]
    wait_for(lambda: ended(crowd) == 8, "all jobs")
    assert crowd.stop(workers) == [0] * 3
    assert most_at_once(crowd, "default") == 2
    assert {line[2] for line in crowd.notes("start")} == {"1"}


@pytest.mark.parametrize("slots", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_class_that_is_full_is_not_empty(crowd: Project, slots: int) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n')
    push(crowd, 2, queue="first", job="Few", seconds=2)
    others = [crowd.work("--queue", "first", "--max-jobs", 1) for _ in range(2)]
    crowd.wait_for_note("start", count=2)
    push(crowd, 6, queue="default", job="Few", seconds=0.1)
    assert crowd.work("--stop-when-empty", "--concurrency", slots).wait() == 0
    assert ended(crowd) == 8
    assert most_at_once(crowd, "") == 2
    assert [other.wait() for other in others] == [0, 0]


# -- every permit comes back ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "releases", "deletes", "late", "ends well"])
@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_whatever_becomes_of_a_job_its_permit_is_given_back(
    crowd: Project, how: str, slots: int
) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n' + OVER_ALL, retry_after=60)
    for _ in range(3):
        crowd.push("at_once.Ends", {"how": how}, queue="mail")
    workers = [crowd.work("--queue", "mail", "--concurrency", slots)]
    if how == "late" and slots == 1:  # such a worker ends after each
        workers += [crowd.work("--queue", "mail") for _ in range(5)]
    wait_for(lambda: crowd.empty("mail"), "nothing to be left")
    wait_for(lambda: not permits(crowd), "all permits to be given back", 30)
    assert len(crowd.failed()) == (3 if how in {"fails", "late"} else 0)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_worker_that_is_told_twice_to_stop_gives_permits_back(crowd: Project, slots: int) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n' + OVER_ALL, retry_after=60)
    push(crowd, 1, job="FewInThread", seconds=60)
    worker = crowd.work("--queue", "mail", "--concurrency", slots)
    crowd.wait_for_note("start")
    assert len(permits(crowd)) == 2, "of its queue and its class"
    worker.ask_twice_to_stop()
    assert worker.wait() == 0
    assert not permits(crowd)
    wait_for(lambda: crowd.sizes("mail").ready == 1, "the job to be ready")


@pytest.mark.slow
def test_a_job_that_does_not_end_keeps_its_permit_as_long_as_it_runs(crowd: Project) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n' + OVER_ALL)
    crowd.push("at_once.Ends", {"how": "stays"}, queue="mail")
    push(crowd, 1, seconds=7)
    worker = crowd.work("--queue", "mail", "--concurrency", 4, "--grace", 0.5)
    crowd.wait_for_note("ending", "stays")
    wait_for(lambda: "did not end" in worker.err, "the worker to give it up")
    time.sleep(2.5)  # what is left is given back once a second
    assert len(permits(crowd)) == 3, "of the one that stays two, of its neighbour one"
    assert worker.wait() == 1
    wait_for(lambda: not permits(crowd), "all permits to be given back")


# -- leases of permits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), marks=pytest.mark.slow),
        ("--concurrency", 3),
        *slow(("--isolate",)),
        *slow(("--isolate", "--concurrency", 2)),
    ],
    ids=str,
)
@pytest.mark.on_redis_in_ci
def test_a_permit_lasts_as_long_as_its_job(crowd: Project, how: tuple[object, ...]) -> None:
    crowd.configure(OVER_ALL.replace("3", "1"), retry_after=2)
    push(crowd, 2, job="Blocks", seconds=3.5)
    workers = [crowd.work("--queue", "mail", *how) for _ in range(2)]
    wait_for(lambda: ended(crowd) == 2, "both jobs")
    assert crowd.stop(workers) == [0, 0]
    assert most_at_once(crowd, "mail") == 1
    assert not "".join(worker.err for worker in workers)


def test_a_worker_that_stood_still_for_longer_says_so(crowd: Project) -> None:
    crowd.configure(OVER_ALL.replace("3", "1"), retry_after=1)
    push(crowd, 1, seconds=6)
    frozen = crowd.work("--queue", "mail", "--tries", 0, "--concurrency", 2)
    crowd.wait_for_note("start")
    push(crowd, 1, seconds=8, first=1)
    frozen.signal(signal.SIGSTOP)
    other = crowd.work("--queue", "mail", "--tries", 0)
    crowd.wait_for_note("start", count=2)
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: "one more than 1 may run meanwhile" in frozen.err, "its word")
    other.end()


@pytest.mark.on_redis_in_ci
def test_a_pool_gives_back_the_permits_of_a_killed_worker(crowd: Project) -> None:
    crowd.configure('jobs = ["jobs", "at_once"]\n' + OVER_ALL.replace("3", "1"), retry_after=60)
    push(crowd, 1, job="Few", seconds=0.5)
    pool = crowd.work("--queue", "mail", "--workers", 1, "--tries", 0)
    crowd.wait_for_note("start")
    os.kill(int(crowd.notes("start")[0][4]), signal.SIGKILL)
    crowd.wait_for_note("end")
    assert pool.stop() == 0
    assert not permits(crowd)
