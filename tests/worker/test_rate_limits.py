"""Real workers under limits: no job too many, no try used up by waiting."""

from __future__ import annotations

import signal

import pytest

from tests.support.marks import slow
from tests.support.process import Project, wait_for

JOBS = '''
"""Jobs under limits."""

import os
import time

from jobs import note
from qframe import Queueable, RetryLater
from qframe.middleware import RateLimited, ThrottlesExceptions


def before(job, call_next):
    job.came = time.time()
    return call_next(job)


class Limited(Queueable):
    word: str = "word"
    tries = 1
    middleware = (before, RateLimited("10/s", "15/2s", name="api"))

    def handle(self):
        note("ran", self.word, self.came, time.time(), os.getpid(), self.job.history.releases)


class Patient(Queueable):
    word: str = "word"
    tries = 1
    middleware = (RateLimited("1/3s", release=0),)

    def handle(self):
        note("ran", self.word, self.attempts, self.job.history.releases, time.time())


class Dropped(Queueable):
    middleware = (RateLimited("1/hour", dont_release=True),)

    def handle(self):
        note("ran")


GITHUB = RateLimited("1000/s", name="github")


class Polite(Queueable):
    word: str = "word"
    tries = 2
    backoff = 600
    middleware = (GITHUB,)

    def handle(self):
        note("start", self.word, self.attempts, time.time(), self.job.history.releases)
        if self.word == "first" and self.attempts == 1:
            GITHUB.pause(3)
            note("paused")
            raise RetryLater(3) from ConnectionError("429")


class AsyncPolite(Polite):
    async def handle(self):
        note("start", self.word, self.attempts, time.time(), self.job.history.releases)
        if self.word == "first" and self.attempts == 1:
            await GITHUB.apause(3)
            note("paused")
            raise RetryLater(3) from ConnectionError("429")


class Sync(Queueable):
    word: str = "word"
    fails: int = 0
    tries = 1
    middleware = (ThrottlesExceptions(2, per=6),)

    def handle(self):
        note("start", self.word, self.attempts, time.time(), self.job.history.releases)
        if self.attempts <= self.fails:
            raise ConnectionError("the service is down")


class Again(Sync):
    tries = 2
    backoff = 600
    middleware = (ThrottlesExceptions(5, per=60, backoff=0),)
'''


@pytest.fixture
def limited(project: Project) -> Project:
    """Give the project, with jobs under limits in its module `limited`."""
    project.write("limited.py", JOBS)
    return project


def most_for_certain(runs: list[tuple[float, float]], seconds: float) -> int:
    """Count the most jobs that, from before the first was let through, ran within some seconds.

    Each is a moment before it was let through, and one after: so no delay on the way from there to
    here makes it look like more than there were.
    """
    came = sorted(runs)
    return max(sum(b >= begin and a - begin < seconds for b, a in came) for begin, _ in came)


def check_no_more_run_than_may(limited: Project, starts: list[list[object]], workers: int) -> None:
    """Have so many workers, that all wait already, get thirty jobs."""
    limited.configure('[listeners]\nWorkerIdle = ["jobs:hear_idle"]\n')
    processes = [limited.work("--quiet", *each) for each in starts]
    wait_for(lambda: len({line[1] for line in limited.notes("idle")}) == workers, "all workers", 60)
    for number in range(30):
        limited.push("limited.Limited", {"word": str(number)})
    limited.wait_for_note("ran", count=30, seconds=60)
    wait_for(limited.empty, "the end of the last one")
    notes = limited.notes("ran")
    assert sorted(int(line[1]) for line in notes) == list(range(30))
    runs = [(float(line[2]), float(line[3])) for line in notes]
    assert most_for_certain(runs, 0.998) <= 10
    assert most_for_certain(runs, 1.998) <= 15
    assert len({line[4] for line in notes}) > 1, "more than one process ran some"
    assert limited.failed() == []
    for process in processes:
        assert process.stop() == 0
        assert "Traceback" not in process.err


def test_no_more_run_within_the_time_whatever_number_of_workers(limited: Project) -> None:
    check_no_more_run_than_may(limited, [[]] * 4, 4)


@pytest.mark.embedded_only
@pytest.mark.parametrize(("starts", "workers"), [([["--isolate"]] * 2, 2), ([["--workers", 3]], 3)])
@pytest.mark.slow
def test_no_more_run_within_the_time_in_children_and_pools(
    limited: Project, starts: list[list[object]], workers: int
) -> None:
    check_no_more_run_than_may(limited, starts, workers)


def test_fifty_releases_use_up_no_try(limited: Project) -> None:
    """Laravel fails it at the second attempt, as attempted too many times."""
    limited.push("limited.Patient", {"word": "first"}, maxTries=1)
    limited.push("limited.Patient", {"word": "second"}, maxTries=1)
    worker = limited.work("--quiet", "--tries", 1)
    attempts, releases, _ = limited.wait_for_note("ran", "second")[2:]
    assert int(releases) >= 50
    assert int(attempts) == int(releases) + 1
    wait_for(limited.empty, "its end")
    assert limited.failed() == []
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_the_limit_as_it_is(limited: Project) -> None:
    limited.configure(retry_after=1)
    limited.push("limited.Patient", {"word": "first"}, maxTries=1)
    worker = limited.work("--quiet")
    first = limited.wait_for_note("ran", "first")
    worker.signal(signal.SIGKILL)
    worker.wait()
    limited.push("limited.Patient", {"word": "second"}, maxTries=1)
    other = limited.work("--quiet")
    second = limited.wait_for_note("ran", "second")
    assert float(second[4]) - float(first[4]) > 2.9, "the limit of 1/3s went on"
    assert other.stop() == 0


@pytest.mark.slow
def test_a_limited_job_may_be_skipped(limited: Project) -> None:
    for _ in range(3):
        limited.push("limited.Dropped")
    finished = limited.drain()
    assert len(limited.notes("ran")) == 1
    assert limited.empty()
    assert limited.failed() == []
    assert "RateLimited" in finished.out


@pytest.mark.parametrize("options", [[], *slow(["--isolate"])])
def test_after_so_many_exceptions_jobs_wait_and_use_up_no_try(
    limited: Project, options: list[object]
) -> None:
    """Laravel would count the wait as an attempt, and swallow the errors."""
    for number in range(2):
        limited.push("limited.Sync", {"word": f"fails-{number}", "fails": 9})
    for number in range(5):
        limited.push("limited.Sync", {"word": f"waits-{number}"})
    worker = limited.work(*options)
    limited.wait_for_note("start", count=7)
    wait_for(limited.empty, "the end of the last one")
    first, *others = limited.notes("start")
    waited = [line for line in others if line[1].startswith("waits")]
    assert len(waited) == 5
    for line in waited:
        assert float(line[3]) >= float(first[3]) + 5.99
    assert any(int(line[4]) >= 1 for line in waited), "none was released"
    failed = limited.failed()
    assert [record.name for record in failed] == ["limited.Sync"] * 2
    assert all("the service is down" in record.exception for record in failed)
    assert worker.stop() == 0
    told = [line for line in worker.err.splitlines() if "limited.Sync has raised 2 in 6 s" in line]
    assert len(told) == 1, "once, by the last straw"
    assert "ConnectionError: the service is down" in told[0]


@pytest.mark.slow
def test_its_backoff_is_used_instead_of_the_jobs_own(limited: Project) -> None:
    limited.push("limited.Again", {"fails": 1})
    worker = limited.work("--quiet")
    limited.wait_for_note("start", "word", 2)
    wait_for(limited.empty, "its end")
    assert worker.stop() == 0
    assert limited.failed() == []


@pytest.mark.on_redis_too
@pytest.mark.on_beanstalkd_too
@pytest.mark.parametrize(
    "how",
    [
        ["Polite"],
        *slow(["Polite", "--isolate"], ["AsyncPolite"], ["AsyncPolite", "--concurrency", 3]),
    ],
)
def test_a_job_that_pauses_a_limit_holds_the_others_back_on_every_worker(
    limited: Project, how: list[object]
) -> None:
    name, *options = how
    limited.push(f"limited.{name}", {"word": "first"}, maxTries=2)
    workers = [limited.work("--quiet", *options) for _ in range(2)]
    limited.wait_for_note("paused")
    for number in range(5):
        limited.push(f"limited.{name}", {"word": str(number)}, maxTries=1)
    wait_for(limited.empty, "the end of the last one")
    first, *others = limited.notes("start")
    assert sorted(line[1:3] for line in others if line[1] == "first") == [["first", "2"]]
    assert sorted(line[1] for line in others) == ["0", "1", "2", "3", "4", "first"]
    for line in others:
        assert float(line[3]) >= float(first[3]) + 2.99
    assert limited.failed() == []
    assert [worker.stop() for worker in workers] == [0, 0]
