"""A supervisor simulated: jobs that arrive, processes that run them, and who says how many.

Time goes in steps. A process takes a while to start; one that is told to end finishes its job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from qframe.worker import balance
from qframe.worker.balance import BalancePlan, Known, QueueReading

STEP = 0.1
_STARTING = 0.5
_PATIENCE = 4 * 3600.0


class Arrival(NamedTuple):
    """A job that is dispatched at `at`, and runs for `seconds`."""

    at: float
    queue: str
    seconds: float


Load = Sequence[Arrival]


class Outcome(NamedTuple):
    """What became of a load."""

    empty: float
    """When the last job had ended."""
    longest: dict[str, float]
    """How long a job of each queue waited for its start at most."""
    used: float
    """Seconds that processes were there, all together."""
    most: int
    """How many were there at once, those that were ending as well."""


@dataclass(slots=True)
class Process:
    """A process: it works from `ready` on; `until` is when its job ends."""

    ready: float
    began: float = 0.0
    until: float = 0.0
    leaves: bool = False


@dataclass(slots=True)
class Queue:
    """A queue and its processes, with what was counted since the last look."""

    waiting: deque[Arrival] = field(default_factory=deque)
    processes: list[Process] = field(default_factory=list)
    begun: int = 0
    ended: int = 0
    seconds: float = 0.0

    @property
    def kept(self) -> list[Process]:
        """Those that were not told to end."""
        return [each for each in self.processes if not each.leaves]


class Chooser(Protocol):
    """Who says how many."""

    oldest_first: bool
    """Which processes are told to end: the oldest, or those that are idle."""

    def begin(self) -> dict[str, int]:
        """Say how many there are at first."""
        ...

    def choose(self, queues: Mapping[str, Queue], now: float) -> dict[str, int]:
        """Say how many are to be there."""
        ...


class Ours:
    """What `qframe supervise` does."""

    oldest_first = False

    def __init__(self, plan: BalancePlan) -> None:
        self._plan = plan
        self._known = {queue: Known() for queue in plan.queues}
        self._looked = 0.0

    def begin(self) -> dict[str, int]:
        """Begin with the least."""
        return balance.begin(self._plan)

    def choose(self, queues: Mapping[str, Queue], now: float) -> dict[str, int]:
        """Ask the balance; those that end do not count, up to as many again."""
        seen = {}
        for name, queue in queues.items():
            ages = [now - each.began for each in queue.kept if each.until > now]
            seen[name] = QueueReading(
                ready=len(queue.waiting), processes=len(queue.kept), begun=queue.begun,
                ended=queue.ended, seconds=queue.seconds, running=ages,
            )  # fmt: skip
            queue.begun, queue.ended, queue.seconds = 0, 0, 0.0
        decision = balance.decide(self._plan, seen, self._known, now - self._looked)
        self._known, self._looked = decision.known, now
        return decision.targets


class Horizon:
    """Laravel Horizon's AutoScaler (v5.29), as its source has it, with `balance` auto."""

    oldest_first = True

    def __init__(self, plan: BalancePlan, snapshot: float = 300.0) -> None:
        self._plan = plan
        self._snapshot = snapshot
        self._taken = 0.0
        self._ended: dict[str, list[float]] = {queue: [0, 0.0] for queue in plan.queues}

    def begin(self) -> dict[str, int]:
        """Begin with the most, evenly."""
        each = math.ceil(self._plan.most / len(self._plan.queues))
        return dict.fromkeys(self._plan.queues, each)

    def choose(self, queues: Mapping[str, Queue], now: float) -> dict[str, int]:
        """Share the most by what waits; processes that are ending count."""
        plan = self._plan
        if now - self._taken >= self._snapshot:
            self._taken = now
            self._ended = {queue: [0, 0.0] for queue in plan.queues}
        for name, queue in queues.items():
            self._ended[name][0] += queue.ended
            self._ended[name][1] += queue.seconds
            queue.begun, queue.ended, queue.seconds = 0, 0, 0.0
        size = {name: len(queue.waiting) for name, queue in queues.items()}
        runs = {
            name: total / count if count else 0.0 for name, (count, total) in self._ended.items()
        }
        time = {name: size[name] * runs[name] for name in queues}
        shares = self._shares(size, time)
        there = {name: len(queue.processes) for name, queue in queues.items()}
        targets = {name: len(queue.kept) for name, queue in queues.items()}
        for name in sorted(shares, key=lambda name: shares[name]):
            desired, total = math.ceil(shares[name]), there[name]
            of_all = sum(there.values())
            if desired > total:
                up = min(max(0, plan.most - of_all), plan.shift)
                most = max(plan.least, plan.most - (len(shares) - 1) * plan.least)
                new = min(total + up, most, desired)
            elif desired < total:
                down = min(of_all - plan.least, plan.shift)
                new = max(total - down, plan.least, desired)
            else:
                continue
            targets[name] = max(0, targets[name] + new - total)
            there[name] = new
        return targets

    def _shares(self, size: Mapping[str, int], time: Mapping[str, float]) -> dict[str, float]:
        plan = self._plan
        if total := sum(time.values()):
            if plan.strategy == "size":
                return {name: plan.most * size[name] / sum(size.values()) for name in size}
            return {name: plan.most * time[name] / total for name in size}
        return {name: plan.most if size[name] else plan.least for name in size}


def simulated(
    load: Load,
    chooser: Chooser,
    queues: Sequence[str],
    *,
    cooldown: float,
    until: float,
    bound: int,
) -> Outcome:
    """Let the jobs of a load run; counts what processes use until `until`, and the last job."""
    there = {name: Queue() for name in queues}
    coming = deque(sorted(load))
    longest = dict.fromkeys(queues, 0.0)
    _make_so(there, chooser.begin(), 0.0, chooser, bound)
    used, most, last, now, due = 0.0, 0, 0.0, 0.0, cooldown
    while now < until or coming or any(q.waiting or _busy(q, now) for q in there.values()):
        if now > _PATIENCE:
            break
        while coming and coming[0].at <= now:
            job = coming.popleft()
            there[job.queue].waiting.append(job)
        for name, queue in there.items():
            last = max(last, _worked(queue, now, name, longest))
        if now >= due:
            _make_so(there, chooser.choose(there, now), now, chooser, bound)
            due += cooldown
        count = sum(len(queue.processes) for queue in there.values())
        used, most = used + count * STEP, max(most, count)
        now = round(now + STEP, 3)
    return Outcome(last, longest, used, most)


def _busy(queue: Queue, now: float) -> bool:
    return any(each.until > now for each in queue.processes)


def _worked(queue: Queue, now: float, name: str, longest: dict[str, float]) -> float:
    """Let one step go by; gives when the last job of those that were begun ends."""
    last = 0.0
    for each in queue.processes[:]:
        free = max(each.ready, each.until)
        while free <= now:
            if each.until:
                queue.ended, queue.seconds = (
                    queue.ended + 1,
                    queue.seconds + each.until - each.began,
                )
                each.until = 0.0
            if each.leaves:
                queue.processes.remove(each)
                break
            if not queue.waiting:
                break
            job = queue.waiting.popleft()
            each.began = max(free, job.at)
            free = each.until = each.began + job.seconds
            longest[name] = max(longest[name], each.began - job.at)
            queue.begun += 1
            last = max(last, each.until)
    return last


def _make_so(
    there: Mapping[str, Queue],
    targets: Mapping[str, int],
    now: float,
    chooser: Chooser,
    bound: int,
) -> None:
    for name, queue in there.items():
        kept = queue.kept
        if not chooser.oldest_first:
            kept.sort(key=lambda each: each.until > now)
        for each in kept[: max(0, len(kept) - targets[name])]:
            each.leaves = True
    for name, queue in there.items():
        count = sum(len(each.processes) for each in there.values())
        lacks = max(0, targets[name] - len(queue.kept))
        queue.processes += [Process(now + _STARTING) for _ in range(min(lacks, bound - count))]
