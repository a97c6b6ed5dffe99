"""The fault gate: random kills, stops and restarts of workers, counted by an external ledger."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.support.process import Process, Project

JOBS = 600
WORKERS = 4
SECONDS = 18.0
LEASE = 1.0


@dataclass
class Faults:
    """What was done to which process, and when."""

    killed: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    ended: int = 0

    def explains(self, pid: int, start: float, until: float) -> bool:
        """Whether a fault hit `pid` while it may have owned a job started at `start`."""
        if start <= self.killed.get(pid, 0.0) <= until:
            return True
        return any(end >= start and begin <= until for begin, end in self.stopped[pid])


@pytest.mark.timeout(180)
def test_no_job_is_lost_whatever_happens_to_the_workers(project: Project) -> None:
    """About 30 s: LOSS 0, GHOST 0, every duplicate explained by a fault, nothing left."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    project.configure(retry_after=LEASE)
    for number in range(JOBS):
        seconds = chance.choice([0.0, 0.01, 0.05, 0.1, 0.2]) + 0.05 * chance.random()
        if number % 50 == 0:
            seconds = 1.6 * LEASE  # only renewals keep it
        delay = chance.choice([0, 0, 0, chance.uniform(0, 10)])
        project.push("Fault", {"number": number, "seconds": seconds}, delay=delay)
    workers = [project.work("--quiet") for _ in range(WORKERS)]
    everyone = list(workers)
    faults = Faults()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.1, 0.5))
        place = chance.randrange(WORKERS)
        workers[place] = _hit(project, workers[place], chance, faults)
        everyone.append(workers[place])
    workers.append(project.work("--quiet"))
    deadline = time.monotonic() + 60
    while not project.empty() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2 * LEASE)
    for worker in workers:
        assert worker.stop() == 0, worker.err
    _judge(project, faults, seed)
    for worker in everyone:
        assert "Traceback" not in worker.err, worker.err


def _hit(project: Project, worker: Process, chance: random.Random, faults: Faults) -> Process:
    """Do something to a worker; gives the one that works in its place."""
    kind = chance.choice(["kill", "kill", "stop", "term", "term twice"])
    if kind == "kill":
        worker.popen.kill()
        faults.killed[worker.pid] = time.time()
        worker.popen.wait()
        return project.work("--quiet")
    if kind == "stop":
        begin = time.time()
        worker.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, 1.8) * LEASE)
        worker.signal(signal.SIGCONT)
        faults.stopped[worker.pid].append((begin, time.time()))
        return worker
    worker.signal(signal.SIGTERM)
    if kind == "term twice":
        time.sleep(chance.uniform(0, 0.05))
        worker.signal(signal.SIGTERM)
    # A worker still importing has no handlers yet: the signal ends it, and it holds nothing.
    assert worker.wait() in (0, -signal.SIGTERM), worker.err
    faults.ended += 1
    return project.work("--quiet")


@dataclass(order=True, frozen=True)
class Run:
    """One start of a job, and when its last line was reached, if it was."""

    begun: float
    attempt: int
    pid: int
    done: float


def _runs(project: Project) -> dict[int, list[Run]]:
    """Read the ledger: the runs of each job, in the order of their starts."""
    ends: dict[tuple[str, str, str], float] = {}
    for _, number, attempt, pid, moment in project.notes("D"):
        ends[number, attempt, pid] = float(moment)
    found: dict[int, list[Run]] = defaultdict(list)
    for _, number, attempt, pid, moment in project.notes("S"):
        done = ends.get((number, attempt, pid), 0.0)
        found[int(number)].append(Run(float(moment), int(attempt), int(pid), done))
    return {number: sorted(runs) for number, runs in found.items()}


def _judge(project: Project, faults: Faults, seed: int) -> None:
    runs = _runs(project)
    done = {number: [run for run in each if run.done] for number, each in runs.items()}
    left, dead = project.sizes().total, len(project.failed())
    loss = JOBS - sum(1 for each in done.values() if each) - left - dead
    ghosts = set(runs) - set(range(JOBS))
    duplicates = [each for each in done.values() if len(each) > 1]
    # A second end needs a fault that hit the first owner between its start and its lease's end.
    unexplained = [
        each
        for each in duplicates
        for first, second in pairwise(each)
        if not faults.explains(first.pid, first.begun, max(first.done, second.begun) + LEASE)
    ]
    # A second start while the first owner still runs needs that owner to have been stopped.
    overlaps = [
        each
        for each in runs.values()
        for first, second in pairwise(each)
        if first.done > second.begun and not faults.explains(first.pid, first.begun, first.done)
    ]
    print(
        f"seed {seed}: jobs {JOBS}, kills {len(faults.killed)}, "
        f"stops {sum(map(len, faults.stopped.values()))}, terms {faults.ended}: LOSS {loss}, "
        f"GHOST {len(ghosts)}, DUP {len(duplicates)} (unexplained {len(unexplained)}), "
        f"OVERLAP {len(overlaps)}, LEFT {left}, DEAD {dead}"
    )
    assert loss == 0
    assert not ghosts
    assert not unexplained
    assert not overlaps
    assert (left, dead) == (0, 0)
    assert faults.killed
    assert faults.stopped
    assert faults.ended
