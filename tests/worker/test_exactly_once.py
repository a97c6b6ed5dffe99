"""Rows and jobs in one transaction, and processes that are killed: neither without the other."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from qframe import batch, bulk, dispatch
from tests.support.process import Process, Project, wait_for
from tests.support.shop import Shop
from tests.worker.booking import Act, Book, Booked

_MANY = int(os.environ.get("EXACTLY_ONCE", "200"))
"""So many jobs in the long run: 10,000 take some five minutes."""
_WORKERS = 3
_EVERY = 0.2
"""Seconds a worker has before it is killed."""
_FEW = 200
"""With so many jobs, all kills may miss."""


@pytest.fixture
def project(shop: Shop, tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app", 'jobs = ["booking"]', url=shop.url, retry_after=1) as made:
        shutil.copy(Path(__file__).with_name("booking.py"), made.root)
        yield made


def start(project: Project, shop: Shop) -> Process:
    return project.start("work", environment={"SHOP": shop.url})


def _works(worker: Process) -> bool:
    return bool(worker.out)


def _has_more(shop: Shop, than: int) -> bool:
    return len(shop.orders()) > than


def kill_until_done(project: Project, shop: Shop, most_kills: int) -> None:
    """Let workers do all jobs, one of which is killed whenever it has had its time."""
    workers = [start(project, shop) for _ in range(_WORKERS)]
    for _ in range(most_kills):
        oldest = workers.pop(0)
        wait_for(partial(_works, oldest), "a worker that works", 60)
        time.sleep(_EVERY)
        if shop.waiting() == 0:
            workers.append(oldest)
            break
        oldest.signal(signal.SIGKILL)
        oldest.wait()
        workers.append(start(project, shop))
    wait_for(lambda: shop.waiting() == 0, "the end of the jobs", 600)
    assert project.failed() == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("jobs", "most_kills"),
    [(60, 4), pytest.param(_MANY, _MANY // 5, marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_each_job_adds_its_row_once_whoever_is_killed(
    shop: Shop, project: Project, jobs: int, most_kills: int
) -> None:
    bulk(Book(number=number) for number in range(jobs))
    kill_until_done(project, shop, most_kills)
    assert shop.orders() == sorted(map(str, range(jobs)))
    if jobs > _FEW:
        assert len(project.notes("start")) > jobs  # some were broken off, and ran again


@pytest.mark.slow
def test_each_link_and_member_adds_its_row_once_whoever_is_killed(
    shop: Shop, project: Project
) -> None:
    chains = [[Book(number=number + link) for link in range(4)] for number in range(0, 80, 4)]
    made = batch([*chains, *(Book(number=number) for number in range(80, 120))]).then(Booked())
    found = made.dispatch()
    kill_until_done(project, shop, 12)
    assert shop.orders() == sorted([*map(str, range(120)), "booked"])
    assert found.fresh().is_finished
    first = list(dict.fromkeys(int(number) for _, number in project.notes("start")))
    for links in chains:
        numbers = [job.number for job in links]
        assert [number for number in first if number in numbers] == numbers


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.long])])
def test_each_row_has_its_job_whenever_the_program_is_killed(
    shop: Shop, project: Project, kills: int
) -> None:
    for _ in range(kills):
        program = project.run([sys.executable, "booking.py"], environment={"SHOP": shop.url})
        wait_for(partial(_has_more, shop, len(shop.orders())), "a row")
        time.sleep(random.uniform(0, 0.1))
        program.signal(signal.SIGKILL)
        program.wait()
        wait_for(lambda: shop.waiting() == len(shop.orders()), "a job for each row", 30)
    assert shop.waiting() > kills


@pytest.mark.parametrize("isolate", [False, True], ids=["in the worker", "isolated"])
def test_however_a_job_ends_it_is_done_once(shop: Shop, project: Project, isolate: bool) -> None:
    """Its transaction may last longer than a lease, with another worker in wait for the job."""
    ways = {"commits": 1, "forgets": 2, "raises after": 1}
    if isolate:
        ways |= {"dies before": 2, "dies after": 1}
    bulk(Act(how=how) for how in ways)
    words = ["--isolate"] if isolate else []
    environment = {"SHOP": shop.url}
    workers = [project.start("work", *words, environment=environment) for _ in range(2)]
    wait_for(lambda: shop.waiting() == 0, "the end of the jobs", 60)
    ways |= {"takes long": 1}
    # Alone: SQLite has one writer, so no other lease is renewed.
    dispatch(Act(how="takes long"))
    wait_for(lambda: shop.waiting() == 0, "the end of the long one", 60)
    assert shop.orders() == sorted(ways)
    assert all(worker.alive() for worker in workers)
    assert project.failed() == []
    starts = Counter(" ".join(words) for _, *words in project.notes("start"))
    assert starts == ways


def test_a_worker_that_waits_for_the_transaction_keeps_no_job_waiting(
    shop: Shop, project: Project
) -> None:
    """It may want to renew the lease; on SQLite all who write wait for the job, which asks it."""
    project.configure('jobs = ["booking"]', url=shop.url, retry_after=1, busy_timeout=40)
    dispatch(Act(how="writes long"))
    worker = project.start("work", "--isolate", environment={"SHOP": shop.url})
    wait_for(lambda: shop.waiting() == 0 and project.notes("took"), "the end of the job", 60)
    ((_, took),) = project.notes("took")
    assert float(took) < 30  # else until a call gives up waiting for the lock, 40 s and more
    assert shop.orders() == ["writes long"]
    wait_for(lambda: "DONE" in worker.out, "what came of it")
    assert project.failed() == []
