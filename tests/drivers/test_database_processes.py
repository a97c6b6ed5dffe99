"""Several processes on one SQLite file, some of them killed: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from qframe.drivers.base import BaseQueue
from tests.conformance.drivers import SqliteBench
from tests.support.ledger import Account, Ledger

ROOT = Path(__file__).resolve().parents[2]

BEGINNING = """
import os, sys, time
from pathlib import Path
from qframe import QueueManager
from tests.support.ledger import Ledger

folder, moment = Path(sys.argv[1]), float(sys.argv[2])
queue = QueueManager({
    "root": folder,
    "connections": {
        "database": {"url": f"sqlite:///{folder / 'jobs.sqlite3'}", "retry_after": 1},
    },
}).connection("database")
ledger = Ledger(folder / "ledger")
time.sleep(max(0, moment - time.time()))
"""

PRODUCER = (
    BEGINNING
    + """
name, first, last = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
for number in range(first, last):
    job = f"{name}-{number}"
    ledger.note("P", job)
    assert queue.push_raw('{"uuid": "%s"}' % job) == job
    ledger.note("E", job)
"""
)

WORKER = (
    BEGINNING
    + """
from qframe.exceptions import LeaseLost

limit = int(sys.argv[3])
while not (folder / "stop").exists():
    jobs = queue.reserve(["default"], limit)
    if not jobs:
        queue.wait(["default"], 0.2)
    for job in jobs:
        if not queue.start(job):
            continue
        ledger.note("S", job.uuid, job.attempts(), os.getpid())
        time.sleep(0.001)
        ledger.note("D", job.uuid, job.attempts(), os.getpid())
        try:
            job.delete()
        except LeaseLost:
            continue
        ledger.note("A", job.uuid, "deleted", job.attempts(), os.getpid())
"""
)


class Fleet:
    """Processes that run a script in one folder; each is ended by its own pid."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []
        self.errors: list[str] = []

    def start(self, script: str, *arguments: object, moment: float = 0) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(self._folder), str(moment), *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        self.join(process, expected=-signal.SIGKILL)

    def join(self, process: subprocess.Popen[str], expected: int = 0) -> None:
        _, stderr = process.communicate(timeout=90)
        self._running.remove(process)
        if process.returncode not in {0, expected} or stderr:
            self.errors.append(f"{process.returncode}: {stderr}")

    def join_all(self) -> None:
        for process in list(self._running):
            self.join(process)

    def end(self) -> None:
        """Leave none behind, whatever the test did."""
        for process in self._running:
            process.kill()
            process.communicate()


def test_processes_that_open_a_new_file_at_the_same_moment(bench: SqliteBench) -> None:
    for turn in range(5):
        folder = bench.folder / str(turn)
        folder.mkdir()
        fleet = Fleet(folder)
        moment = time.time() + 1.0
        for number in range(4):
            fleet.start(PRODUCER, f"p{number}", 0, 5, moment=moment)
        fleet.join_all()
        assert fleet.errors == []
        with closing(sqlite3.connect(folder / "jobs.sqlite3")) as raw:
            assert raw.execute("select count(*) from jobs").fetchone() == (20,)
            assert raw.execute("pragma journal_mode").fetchone() == ("wal",)


def test_a_new_file_that_another_is_just_setting_up_is_waited_for(bench: SqliteBench) -> None:
    """Where SQLite gives `locked` at once, whatever its busy timeout."""
    with closing(sqlite3.connect(bench.file, isolation_level=None, check_same_thread=False)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("CREATE TABLE theirs (id)")
        timer = threading.Timer(0.5, raw.execute, ["COMMIT"])
        timer.start()
        assert bench.queue.push_raw('{"uuid": "a"}') == "a"
        timer.join()
    assert bench.queue.size() == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_lose_and_double_nothing(bench: SqliteBench, seed: int) -> None:
    """Four workers drain 4,000 jobs, two of three ways of reserving, while they are killed."""
    chance = random.Random(seed)
    folder, total = bench.folder, 4000
    ledger = Ledger(folder / "ledger")
    queue = bench.queue
    _push(queue, ledger, total - 400)
    fleet = Fleet(folder)
    try:
        producer = fleet.start(PRODUCER, "late", 0, 400)
        workers = [fleet.start(WORKER, limit) for limit in (1, 5, 10, 10)]
        kills = 0
        deadline = time.monotonic() + 120
        while queue.size() or producer.poll() is None:
            assert time.monotonic() < deadline, f"still {queue.sizes()}"
            assert not fleet.errors, fleet.errors
            time.sleep(chance.uniform(0.05, 0.3))
            if kills < 25:
                victim = workers.pop(chance.randrange(len(workers)))
                fleet.kill(victim)
                workers.append(fleet.start(WORKER, chance.choice((1, 5, 10))))
                kills += 1
        (folder / "stop").touch()
        fleet.join_all()
    finally:
        fleet.end()

    account = Account.of(folder / "ledger")
    assert fleet.errors == []
    assert kills > 3, "the workers were done before enough of them were killed"
    assert len(account.pushed) == total
    assert account.lost(set()) == set()
    assert account.ghosts() == set()
    assert account.acknowledged_twice() == set()
    assert account.ran_again() <= kills, "only the job that ran when its worker died runs again"
    assert all(numbers == sorted(set(numbers)) for numbers in account.attempts.values())
    assert queue.queues() == []
    assert bench.failed.count() == 0
    with closing(sqlite3.connect(bench.file)) as raw:
        assert raw.execute("pragma integrity_check").fetchall() == [("ok",)]


def _push(queue: BaseQueue, ledger: Ledger, count: int) -> None:
    for number in range(count):
        ledger.note("P", f"early-{number}")
        queue.push_raw(json.dumps({"uuid": f"early-{number}"}))
        ledger.note("E", f"early-{number}")


@pytest.mark.timeout(180)
def test_producers_killed_at_random_lose_nothing_that_was_accepted(bench: SqliteBench) -> None:
    chance = random.Random(3)
    bench.queue.ping()
    fleet = Fleet(bench.folder)
    try:
        for turn in range(6):
            pair = [fleet.start(PRODUCER, f"{turn}-{n}", 0, 10**6) for n in range(2)]
            before = _lines(bench.folder / "ledger")
            deadline = time.monotonic() + 60
            while _lines(bench.folder / "ledger") < before + 40:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.05))
            for process in pair:
                fleet.kill(process)
    finally:
        fleet.end()
    assert fleet.errors == []
    account = Account.of(bench.folder / "ledger")
    left = set()
    while jobs := bench.queue.reserve(["default"], 100):
        for job in jobs:
            assert job.uuid not in left
            left.add(job.uuid)
            job.delete()
    assert account.lost(left) == set()
    assert left <= account.pushing.keys()
    assert len(left - account.pushed.keys()) <= 12, "at most the one under way in each process"


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_worker_stopped_past_its_lease_can_change_nothing(bench: SqliteBench) -> None:
    """A paused machine: the lease ends, another does the job, the first one wakes up."""
    script = (
        BEGINNING
        + """
from qframe.exceptions import LeaseLost

(job,) = queue.reserve(["default"])
assert queue.start(job)
print(os.getpid(), flush=True)
sys.stdin.readline()
for act in (job.renew, job.delete):
    try:
        act()
    except LeaseLost:
        print("lost", flush=True)
"""
    )
    bench.queue.push_raw('{"uuid": "a"}')
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(bench.folder), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        os.kill(process.pid, signal.SIGSTOP)
        bench.forward(2)
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        assert job.attempts() == 2
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate("\n", timeout=60)
        assert out.split() == ["lost", "lost"]
        job.delete()
        assert bench.queue.size() == 0
    finally:
        process.kill()
        process.communicate()
