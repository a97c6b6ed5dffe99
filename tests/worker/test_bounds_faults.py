"""A bound over all workers while they are killed: never more, and soon as many again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.support.process import Process, Project, wait_for
from tests.worker.bounding import ended, most_at_once, permits, push

_LEASE = 2.0
_MOST = 3
_MAIL = f"[queues.mail]\nconcurrency = {_MOST}\n"
_KILLS = 4

on_every_backend = pytest.mark.parametrize(
    "project",
    [
        "redis",
        pytest.param("database", marks=pytest.mark.slow),
        pytest.param("beanstalkd", marks=pytest.mark.slow),
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ],
    indirect=True,
)


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    return project


def running_in(project: Project, pids: set[int]) -> int:
    """Give one of these processes that runs a job, by the ledger; 0 where none does."""
    over = {tuple(line[1:3]) for line in project.notes("end")}
    for line in reversed(project.notes("start")):
        if int(line[4]) in pids and tuple(line[1:3]) not in over:
            return int(line[4])
    return 0


@on_every_backend
@pytest.mark.parametrize("of", ["queue", pytest.param("class", marks=pytest.mark.slow)])
def test_killed_workers_give_their_permits_back(crowd: Project, of: str) -> None:
    """A count of rows and a claim are two things, between which others claim: not so here."""
    if of == "queue":
        crowd.configure(_MAIL, retry_after=_LEASE)
        job, most = "Waits", _MOST
    else:
        crowd.configure('jobs = ["jobs", "at_once"]\n', retry_after=_LEASE)
        job, most = "Few", 2
    push(crowd, 40, job=job, seconds=0.2)

    def start() -> Process:
        slots = 1 + 3 * (len(crowd.processes) % 2)
        return crowd.work("--queue", "mail", "--concurrency", slots, "--tries", 0)

    workers = {worker.pid: worker for worker in (start() for _ in range(5))}
    killed: dict[int, float] = {}
    for _ in range(_KILLS):
        pid = wait_for(lambda: running_in(crowd, {*workers}), "a worker that runs one")
        worker = workers.pop(pid)
        worker.end()
        killed[pid] = time.time()
        fresh = start()
        workers[fresh.pid] = fresh
    full_again = time.time() + _LEASE + 1.5
    push(crowd, 30, job=job, seconds=0.2, first=40)
    wait_for(lambda: crowd.empty("mail"), "all jobs", 90)
    wait_for(lambda: not permits(crowd), "all permits to be given back", 5)
    assert ended(crowd) == 70
    assert crowd.stop([*workers.values()]) == [0] * 5
    # Whom a busy machine keeps from its store for a whole lease has lost its permit with it.
    late = sum(each.err.count("its lease had passed") for each in crowd.processes)
    assert most_at_once(crowd, "mail", killed) - most in range(late + 1)
    assert most_at_once(crowd, "mail", killed, since=full_again) - most in range(late + 1)
