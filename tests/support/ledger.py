"""A record of what happened to jobs that no death of a process can take back.

One file opened for appending, one `write` per line, ended by the moment on the clock that all
processes of a machine share: `U pid` when a worker enters its loop; `P job` before a push, `E job`
after it returned; `T job pid` when a worker is about to start it; `S job attempt pid` at a job's
start; `D job attempt pid` as the last act of its body; `A job how attempt pid` once its
settling has been applied or refused, `how` being `deleted`, `released`, `lost` and so on; `G pid
seconds` after a process has had no processor for so long.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

_OUT_OF_THE_WAY = 500
"""The lowest descriptor a ledger is kept on: jobs under test close the low ones."""


_SETTLING = 0.5
"""Seconds between the last line of a job and its settling, at most."""
_UNNOTICED = 0.1
"""Seconds for which a worker takes jobs that it received over a connection that is cut by then."""


class Ledger:
    """The writing side; each process has its own."""

    def __init__(self, file: Path) -> None:
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
        os.close(opened)

    def note(self, event: str, *words: object) -> None:
        line = f"{' '.join((event, *map(str, words)))} {time.monotonic():.6f}\n"
        os.write(self._file, line.encode())


@dataclass(order=True, frozen=True)
class Run:
    """One start of a job, and when its last line was reached: 0 where it was not.

    `taken` is when its worker had it in hand, just before; 0 where the ledger does not say.
    """

    begun: float
    attempt: int
    pid: int
    done: float = 0.0
    taken: float = 0.0


@dataclass(frozen=True)
class Settled:
    """One end of a reservation as its worker learnt of it."""

    moment: float
    how: str
    attempt: int
    pid: int


@dataclass(frozen=True)
class Fault:
    """What was done to a worker (`pid`), or to all of them (no pid), from `begin` to `end`.

    With a `job`, it explains only runs of this job.
    """

    kind: str
    begin: float
    end: float
    pid: int | None = None
    job: str = ""

    def hit(self, run: Run, until: float) -> bool:
        """Whether it fell on a run's worker between its taking the job and `until`, or its end.

        A worker does not wait for the answer to a start: a connection that is cut between the two
        is found to be gone only after the job's first line.
        """
        if run.done:
            until = min(until, run.done + _SETTLING)
        since = run.taken or run.begun
        end = self.end if self.pid else self.end + _UNNOTICED
        return self.pid in (None, run.pid) and self.begin <= until and end >= since

    def delayed(self, run: Run) -> bool:
        """Whether a run's worker stood still between the start of the job and its first line."""
        return self.pid == run.pid and self.begin < run.begun <= self.end + _SETTLING


def _kinds(faults: Iterable[Fault], name: str, first: Run, second: Run) -> list[str]:
    """Name the faults by which a job ran again."""
    return [
        each.kind
        for each in faults
        if each.job in {"", name} and (each.hit(first, second.begun) or each.delayed(second))
    ]


ENDS = frozenset({"deleted", "failed"})
"""How a job leaves its queue for good."""


@dataclass
class Account:
    """What a ledger adds up to."""

    pushing: Counter[str] = field(default_factory=Counter)
    pushed: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    attempts: dict[str, list[int]] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    settled: dict[str, list[Settled]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[str, float] = field(default_factory=dict)
    """When the push of a job returned."""
    starved: list[Fault] = field(default_factory=list)
    """When a worker had no processor, and so could not renew its leases."""

    @classmethod
    def of(cls, file: Path) -> Account:
        account = cls()
        ends: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        begins: list[tuple[str, int, int, float]] = []
        taken: dict[tuple[str, int], list[float]] = defaultdict(list)
        for line in file.read_text().splitlines():
            event, name, *rest = line.split(" ")
            moment = float(rest.pop())
            match event, rest:
                case "U", _:
                    pass
                case "T", (pid,):
                    taken[name, int(pid)].append(moment)
                case "G", (seconds,):
                    begun = moment - float(seconds)
                    account.starved.append(Fault("starved", begun, moment, int(name)))
                case "P", _:
                    account.pushing[name] += 1
                case "E", _:
                    account.pushed[name] += 1
                    account.accepted[name] = moment
                case "S", (attempt, pid):
                    account.started[name] += 1
                    begins.append((name, int(attempt), int(pid), moment))
                case "D", (attempt, pid):
                    account.done[name] += 1
                    ends[name, int(attempt), int(pid)].append(moment)
                case "A", (how, attempt, pid):
                    settled = Settled(moment, how, int(attempt), int(pid))
                    account.settled[name].append(settled)
                case _:
                    raise ValueError(line)
        account._match(begins, ends, taken)
        account._count_ends()
        return account

    def _count_ends(self) -> None:
        """Count the ends of each job that its workers took for applied."""
        for name, many in self.settled.items():
            # A worker may take for applied what it is told afterwards was refused.
            last = {(each.attempt, each.pid): each.how for each in many}
            self.acknowledged[name] = sum(how in ENDS for how in last.values())

    def _match(
        self,
        begins: Iterable[tuple[str, int, int, float]],
        ends: dict[tuple[str, int, int], list[float]],
        taken: dict[tuple[str, int], list[float]],
    ) -> None:
        """Give each start the first end of the same attempt in the same process, and its taking."""
        for name, attempt, pid, begun in begins:
            left = [moment for moment in ends[name, attempt, pid] if moment >= begun]
            done = min(left, default=0.0)
            if done:
                ends[name, attempt, pid].remove(done)
            before = max((at for at in taken[name, pid] if at <= begun), default=0.0)
            self.runs.setdefault(name, []).append(Run(begun, attempt, pid, done, before))
        for name, runs in self.runs.items():
            runs.sort()
            self.attempts[name] = [run.attempt for run in runs]

    def halts(self, faults: Iterable[Fault], seconds: float) -> list[Fault]:
        """Give the pauses of so many seconds in which nobody settled a job while one was stopped.

        A worker that is stopped within a transaction keeps SQLite's lock: all others wait for it.
        """
        moments = sorted(each.moment for many in self.settled.values() for each in many)
        pauses = list(pairwise([-math.inf, *moments, math.inf]))
        return [
            Fault("stopped with the lock", max(begin, stop.begin), min(end, stop.end))
            for stop in faults
            if stop.kind == "stopped"
            for begin, end in pauses
            if min(end, stop.end) - max(begin, stop.begin) >= seconds
        ]

    def lost(self, left: set[str]) -> set[str]:
        """Give the accepted jobs that were neither done nor are left in the queue."""
        return self.pushed.keys() - self.done.keys() - left

    def ghosts(self) -> set[str]:
        """Give the jobs that ran but were never sent."""
        return self.started.keys() - self.pushing.keys()

    def acknowledged_twice(self) -> set[str]:
        return {name for name, count in self.acknowledged.items() if count > 1}

    def _followed(self, name: str) -> Iterator[tuple[Run, float]]:
        """Give each run of a job that something follows, and when that came.

        It is the next run, or the end by a worker that failed the job without starting it.
        """
        runs = self.runs.get(name, [])
        for first, second in pairwise(runs):
            yield first, second.begun
        ends = [each for each in self.settled[name] if each.how in ENDS]
        started = {(run.attempt, run.pid) for run in runs}
        if runs and ends and (ends[-1].attempt, ends[-1].pid) not in started:
            yield runs[-1], ends[-1].moment

    def settled_twice(self, faults: Iterable[Fault]) -> set[str]:
        """Give the jobs settled twice, but those of which a worker can only have presumed it.

        It does where a fault of the server, or of the way to it, swallowed the answer, so that what
        it says again finds the job gone, or the job comes back and is failed without a start.
        """
        blinding = [fault for fault in faults if fault.pid is None or fault.job]
        return {
            name
            for name in self.acknowledged_twice()
            if not any(
                fault.job in {"", name} and fault.hit(run, until)
                for run, until in self._followed(name)
                for fault in blinding
            )
        } - self.pushed_again()

    def pushed_again(self) -> set[str]:
        """Give the jobs that were pushed twice, for want of an answer, and begun in between.

        No one can know by looking that a job was there and is done.
        """
        return {
            name
            for name, runs in self.runs.items()
            if runs[0].begun < self.accepted.get(name, float("inf"))
            and sum(run.attempt == 1 for run in runs) > 1
        }

    def ran_again(self) -> int:
        """Count the runs that reached their end after another one had."""
        return sum(count - 1 for count in self.done.values())

    def unknown(self) -> set[str]:
        """Give the jobs whose push did not return, although it had been carried out."""
        return (self.started.keys() & self.pushing.keys()) - self.pushed.keys()

    def duplicates(self, faults: Iterable[Fault]) -> tuple[Counter[str], set[str]]:
        """Count second ends of jobs by the fault that caused them; and give those without one.

        The cause has to have hit the first run's worker before the second run began.
        """
        faults = list(faults)
        causes: Counter[str] = Counter()
        unexplained = set()
        again = self.pushed_again()
        for name, runs in self.runs.items():
            for first, second in pairwise(run for run in runs if run.done):
                kinds = _kinds(faults, name, first, second)
                if name in again:
                    kinds.append("pushed again")
                if kinds:
                    causes[kinds[0]] += 1
                else:
                    unexplained.add(name)
        return causes, unexplained

    def overlaps(self, faults: Iterable[Fault]) -> tuple[Counter[str], set[str]]:
        """Count runs that began while an earlier one went on, by cause; and give those without.

        A worker that was killed runs nothing any more; one that was stopped does, unknowing.
        """
        faults = list(faults)
        causes: Counter[str] = Counter()
        unexplained = set()
        for name, runs in self.runs.items():
            for first, second in pairwise(runs):
                if second.begun >= first.done:
                    continue
                kinds = _kinds(faults, name, first, second)
                if kinds:
                    causes[kinds[0]] += 1
                else:
                    unexplained.add(name)
        return causes, unexplained

    def recovery(self, faults: Iterable[Fault]) -> float:
        """Give the longest time from a fault to the next start of a job that it broke off."""
        longest = 0.0
        by_pid: dict[int | None, list[Fault]] = defaultdict(list)
        for fault in faults:
            by_pid[fault.pid].append(fault)
        for runs in self.runs.values():
            for first, second in pairwise(runs):
                if not first.done:
                    moments = [f.end for f in by_pid[first.pid] if f.hit(first, second.begun)]
                    longest = max([longest, *(second.begun - moment for moment in moments)])
        return longest
