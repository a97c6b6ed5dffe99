"""Several processes on one SQLite file, some of them killed: nothing lost, nothing doubled."""

from __future__ import annotations

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

from qframe.contracts.step import Delete, Push, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from tests.support.ledger import Account, Ledger

ROOT = Path(__file__).resolve().parents[3]

BEGINNING = """
import os, sys, time
from pathlib import Path
from qframe.drivers.database.settings import DatabaseSettings
from qframe.contracts.step import Delete, Push, Renew, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from tests.support.ledger import Ledger

folder, moment = Path(sys.argv[1]), float(sys.argv[2])
settings = DatabaseSettings(url=f"sqlite:///{folder / 'jobs.sqlite3'}")
backend = DatabaseBackend("here", settings)
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
    (result,) = backend.apply(Step(None, Push("a", job.encode())))
    assert result.applied
    ledger.note("E", job)
"""
)

WORKER = (
    BEGINNING
    + """
limit = int(sys.argv[3])
done = []
while not (folder / "stop").exists():
    jobs, results = backend.reserve(["a"], limit, first=[Step(job, Delete()) for job in done])
    for job, result in zip(done, results, strict=True):
        how = "deleted" if result.applied else "lost"
        ledger.note("A", job.raw_body.decode(), how, job.attempts, os.getpid())
    done = []
    if not jobs:
        backend.wait(["a"], 0.2)
    for job in jobs:
        (result,) = backend.apply(Step(job, Start(1)))
        if result.lost:
            continue
        ledger.note("S", job.raw_body.decode(), job.attempts, os.getpid())
        time.sleep(0.001)
        ledger.note("D", job.raw_body.decode(), job.attempts, os.getpid())
        if limit > 5:
            done.append(job)
            continue
        (result,) = backend.apply(Step(job, Delete()))
        if result.applied:
            ledger.note("A", job.raw_body.decode(), "deleted", job.attempts, os.getpid())
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


def test_processes_that_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    for turn in range(2):
        folder = tmp_path / str(turn)
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


def test_a_new_file_that_another_is_just_setting_up_is_waited_for(
    backend: DatabaseBackend, file: Path
) -> None:
    """Where SQLite gives `locked` at once, whatever its busy timeout."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("CREATE TABLE theirs (id)")
        timer = threading.Timer(0.5, raw.execute, ["COMMIT"])
        timer.start()
        assert backend.apply(Step(None, Push("a", b"1")))[0].applied
        timer.join()
    assert backend.sizes("a").ready == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_lose_and_double_nothing(
    backend: DatabaseBackend, tmp_path: Path, file: Path, seed: int
) -> None:
    """Four workers drain 4,000 jobs, two of three ways of reserving, while they are killed."""
    chance = random.Random(seed)
    total = 4000
    ledger = Ledger(tmp_path / "ledger")
    for number in range(total - 400):
        ledger.note("P", f"early-{number}")
        backend.apply(Step(None, Push("a", b"early-%d" % number)))
        ledger.note("E", f"early-{number}")
    fleet = Fleet(tmp_path)
    try:
        producer = fleet.start(PRODUCER, "late", 0, 400)
        workers = [fleet.start(WORKER, limit) for limit in (1, 5, 10, 10)]
        kills = 0
        deadline = time.monotonic() + 120
        while backend.sizes("a").total or producer.poll() is None:
            assert time.monotonic() < deadline, f"still {backend.sizes('a')}"
            assert not fleet.errors, fleet.errors
            time.sleep(chance.uniform(0.05, 0.3))
            if kills < 25:
                victim = workers.pop(chance.randrange(len(workers)))
                fleet.kill(victim)
                workers.append(fleet.start(WORKER, chance.choice((1, 5, 10))))
                kills += 1
        (tmp_path / "stop").touch()
        fleet.join_all()
    finally:
        fleet.end()

    account = Account.of(tmp_path / "ledger")
    assert fleet.errors == []
    assert kills > 3, "the workers were done before enough of them were killed"
    assert len(account.pushed) == total
    assert account.lost(set()) == set()
    assert account.ghosts() == set()
    assert account.acknowledged_twice() == set()
    assert account.ran_again() <= 10 * kills, "only what was done and not said when its worker died"
    assert all(numbers == sorted(set(numbers)) for numbers in account.attempts.values())
    assert backend.queues() == []
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_producers_killed_at_random_lose_nothing_that_was_accepted(
    backend: DatabaseBackend, tmp_path: Path
) -> None:
    chance = random.Random(3)
    backend.check()
    fleet = Fleet(tmp_path)
    ledger = tmp_path / "ledger"
    try:
        for turn in range(3):
            pair = [fleet.start(PRODUCER, f"{turn}-{n}", 0, 10**6) for n in range(2)]
            before = _lines(ledger)
            deadline = time.monotonic() + 60
            while _lines(ledger) < before + 40:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.05))
            for process in pair:
                fleet.kill(process)
    finally:
        fleet.end()
    assert fleet.errors == []
    account = Account.of(ledger)
    left: set[str] = set()
    while jobs := backend.reserve(["a"], 100)[0]:
        names = {job.raw_body.decode() for job in jobs}
        assert len(names) == len(jobs)
        assert not names & left
        left |= names
        backend.apply(*(job.delete() for job in jobs))
    assert account.lost(left) == set()
    assert left <= account.pushing.keys()
    assert len(left - account.pushed.keys()) <= 6, "at most the one under way in each process"


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_worker_stopped_past_its_lease_can_change_nothing(
    backend: DatabaseBackend, tmp_path: Path
) -> None:
    """A paused machine: the lease ends, another does the job, the first one wakes up."""
    script = (
        BEGINNING
        + """
(job,), _ = backend.reserve(["a"])
backend.apply(Step(job, Start(1)))
print(os.getpid(), flush=True)
sys.stdin.readline()
for operation in (Renew(1), Delete()):
    (result,) = backend.apply(Step(job, operation))
    print(result.outcome.name, flush=True)
"""
    )
    backend.apply(Step(None, Push("a", b"1")))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        os.kill(process.pid, signal.SIGSTOP)
        backend.timing.skew += 2
        (job,), _ = backend.reserve(["a"])
        assert backend.apply(Step(job, Start(60)))[0].applied
        assert job.attempts == 2
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate("\n", timeout=60)
        assert out.split() == ["LOST", "LOST"]
        assert backend.apply(Step(job, Delete()))[0].applied
        assert backend.sizes("a").total == 0
    finally:
        process.kill()
        process.communicate()
