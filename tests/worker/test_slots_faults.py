"""Many jobs at once, and what breaks: nothing is lost, and each settle is applied once."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.process import Process, Project, wait_for

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]

_JOBS = int(os.environ.get("SLOTS_JOBS", "300"))
"""20,000 take some minutes."""
_SLOTS = {"": 50, "--isolate": 10}
"""How many run at once, in one process and in one each."""

isolated_too = pytest.mark.parametrize("how", _SLOTS)


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    project.configure('jobs = ["at_once"]\n', retry_after=2)
    for number in range(_JOBS):
        kind = "Waits" if number % 3 else "Blocks"
        project.push(f"at_once.{kind}", {"word": str(number), "seconds": 0.05})
    return project


def start(project: Project, how: str) -> Process:
    options = [how, "--preload"] if how else []
    return project.work("--concurrency", _SLOTS[how], "--tries", 0, *options)


def done(project: Project) -> set[str]:
    return {line[1] for line in project.notes("end")}


def finish(project: Project) -> Counter[str]:
    """Wait for the end of all jobs; gives how often each was started."""
    wait_for(lambda: len(done(project)) == _JOBS, "all jobs", 600)
    wait_for(project.empty, "nothing to be left", 60)
    assert not project.failed()
    return Counter(line[1] for line in project.notes("start"))


@pytest.mark.slow
@isolated_too
@pytest.mark.timeout(900)
def test_workers_are_killed(crowd: Project, how: str) -> None:
    workers = [start(crowd, how) for _ in range(2)]
    kills = 0
    while len(done(crowd)) < _JOBS * 0.8:
        oldest = workers.pop(0)
        wait_for(lambda: oldest.out, "a worker that works", 60)  # noqa: B023 (called at once)
        time.sleep(random.uniform(0.2, 1))
        oldest.signal(signal.SIGKILL)
        oldest.wait()
        kills += 1
        workers.append(start(crowd, how))
    starts = finish(crowd)
    assert crowd.stop(workers) == [0, 0]
    assert sum(starts.values()) - _JOBS <= kills * _SLOTS[how], "only what ran may run twice"


@pytest.mark.slow
@isolated_too
@pytest.mark.timeout(900)
def test_a_worker_stands_still_for_longer_than_its_leases(crowd: Project, how: str) -> None:
    frozen, other = start(crowd, how), start(crowd, how)
    wait_for(lambda: len(done(crowd)) >= 100, "some jobs")
    frozen.signal(signal.SIGSTOP)
    time.sleep(4)
    frozen.signal(signal.SIGCONT)
    starts = finish(crowd)
    assert crowd.stop([frozen, other]) == [0, 0]
    # On a busy machine the other one stands still for longer than its leases, too, and says so.
    lost = len(re.findall("lease ha[sd] passed", other.err))
    assert sum(starts.values()) - _JOBS <= _SLOTS[how] + lost, "only what ran may run twice"
