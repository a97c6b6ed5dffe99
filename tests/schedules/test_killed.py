"""One job each planned time while those who dispatch are killed, stopped, and seconds apart."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import settings_of
from tests.support.process import Process, Project, wait_for

pytestmark = pytest.mark.slow

SECONDS = 25.0
OFFSETS = (0.0, 2.5, -2.5)

JOBS = """
import os
from qframe import Queueable, schedule

class Tick(Queueable):
    name: str
    def handle(self) -> None:
        line = f"T {self.name} {self.scheduled_for.timestamp():.0f} {self.job.uuid}"
        with open(os.environ["LEDGER"], "ab", buffering=0) as file:
            file.write(line.encode() + b"\\n")

for name in ("one", "two", "three"):
    schedule(Tick(name=name)).every_second().name(name).missed("all")
"""

HOST = """
import signal, sys, time
from qframe import QueueManager, manager
from qframe.schedules.schedulers import Schedulers, able

offset = float(sys.argv[1])
queues = QueueManager()
manager.use(queues)
Schedulers(queues, able(queues), clock=lambda: time.time() + offset).start()
print("begun", flush=True)
signal.pause()
"""


_LONG = [
    pytest.param(name, marks=pytest.mark.long)
    for name in ("postgresql", "mariadb", "redis cluster")
]


@pytest.fixture(params=["database", "redis", "beanstalkd", *_LONG])
def ticking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Give a project with schedules of every second on each backend."""
    settings: dict[str, Any] = settings_of(request)
    with Project(tmp_path / "project") as project:
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        more = '[connections.database]\ndriver = "database"\n'
        project.write(
            "qframe.toml",
            f'default = "main"\njobs = ["jobs"]\n[connections.main]\n{lines}\n{more}',
        )
        project.write("jobs.py", JOBS)
        project.write("host.py", HOST)
        yield project


def host(project: Project, offset: float) -> Process:
    return project.run([sys.executable, "host.py", str(offset)])


def test_one_job_each_planned_time(ticking: Project) -> None:
    drawn = random.Random(2026)
    hosts = [host(ticking, offset) for offset in OFFSETS]
    workers = [ticking.work("main", "--no-schedule") for _ in range(2)]
    wait_for(lambda: len(ticking.notes("T")) >= 3, "the first jobs")
    until, killed, stopped = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < until:
        time.sleep(drawn.uniform(0.2, 1.0))
        number = drawn.randrange(len(hosts))
        if drawn.random() < 0.6:
            hosts[number].end()
            hosts[number] = host(ticking, OFFSETS[number])
            killed += 1
        else:
            hosts[number].signal(signal.SIGSTOP)
            time.sleep(drawn.uniform(0.5, 2.5))
            hosts[number].signal(signal.SIGCONT)
            stopped += 1
    assert killed > 3
    assert stopped > 1
    time.sleep(10)  # what was kept and not pushed has its turn
    for each in hosts:
        each.end()
    queue = ticking.manager.connection("main")
    wait_for(lambda: queue.size() == 0, "an empty queue", 30)
    for each in workers:
        each.stop()
    runs = [(name, int(at)) for _, name, at, _ in ticking.notes("T")]
    twice = {run: count for run, count in Counter(runs).items() if count > 1}
    assert not twice, f"{len(twice)} planned times had several jobs"
    for name in ("one", "two", "three"):
        times = sorted(at for each, at in runs if each == name)
        # What was pushed last may still have been to be pushed when all were killed.
        gaps = {*range(times[0], times[-1] - 1)} - {*times}
        assert not gaps, f"{name}: {len(gaps)} planned times of {len(times)} had no job"
