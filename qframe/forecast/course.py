"""Course: how long the jobs of queues will wait, minute by minute, as values.

A queue's jobs are a quantity that arrives and is worked off in order; workers give their time to
their queues in the order in which they name them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """What comes to a queue. Lists have a number for each minute."""

    queue: str
    arrivals: Sequence[float]
    work: Sequence[float]
    """Seconds of a worker's time that a job takes, with all its attempts."""
    waiting: float = 0.0
    oldest: float = 0.0
    """Seconds for which the first of the waiting jobs has been ready."""
    at_once: float = math.inf
    """How many of its jobs may run at once, over all workers."""
    is_paused: bool = False


class WorkerGroup(NamedTuple):
    """Workers with the same queues, the first one first: how many jobs they run at once."""

    queues: tuple[str, ...]
    slots: int


@dataclass(slots=True)
class QueueCourse:
    """What becomes of a queue, by minute."""

    arrived: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    """For how many seconds the next job will have waited at the end of each minute."""

    def crosses(self, limit: float) -> int | None:
        """Return the first minute at whose end the next job has waited longer; None: never."""
        return next((at for at, seconds in enumerate(self.behind) if seconds > limit), None)

    def falls_behind(self, upto: int) -> int:
        """Return the minute since which jobs wait that still do in a minute; 0: they wait now."""
        at = upto
        while at and self.behind[at - 1] > 0:
            at -= 1
        return at


class _JobLine:
    """The waiting jobs of a queue: amounts, each with when its first and last jobs came."""

    def __init__(self, demand: QueueDemand) -> None:
        self._parts: deque[list[float]] = deque()
        self.amount = 0.0
        self.add(-demand.oldest, 0.0, demand.waiting)

    def add(self, since: float, until: float, amount: float) -> None:
        if amount > 0:
            self._parts.append([since, until, amount])
            self.amount += amount

    def take(self, amount: float) -> None:
        self.amount = max(0.0, self.amount - amount)
        while self._parts and amount > 0:
            since, until, here = first = self._parts[0]
            if here > amount:
                first[0], first[2] = since + (until - since) * amount / here, here - amount
                return
            amount -= here
            self._parts.popleft()

    def behind(self, now: float) -> float:
        if self.amount < 1 or not self._parts:
            return 0.0
        return now - self._parts[0][0]


def courses(
    demands: Iterable[QueueDemand], groups: Iterable[WorkerGroup], minutes: int
) -> Mapping[str, QueueCourse]:
    """Return what becomes of each queue in so many minutes."""
    known = {each.queue: each for each in demands}
    lines = {name: _JobLine(each) for name, each in known.items()}
    found = {name: QueueCourse() for name in known}
    # Workers of few queues first: those of many take what is left.
    working = sorted(groups, key=lambda each: len(each.queues))
    for minute in range(minutes):
        left = {name: each.at_once * MINUTE for name, each in known.items() if not each.is_paused}
        served = dict.fromkeys(known, 0.0)
        for name, each in known.items():
            lines[name].add(minute * MINUTE, (minute + 1) * MINUTE, each.arrivals[minute])
        for group in working:
            free = group.slots * MINUTE
            for name in group.queues:
                if free <= 0:
                    break
                if name in left and lines[name].amount:
                    work = known[name].work[minute]
                    seconds = min(free, left[name], lines[name].amount * work)
                    free -= seconds
                    left[name] -= seconds
                    served[name] += seconds / work
                    lines[name].take(seconds / work)
        for name, course in found.items():
            course.arrived.append(known[name].arrivals[minute])
            course.served.append(served[name])
            course.waiting.append(lines[name].amount)
            course.behind.append(lines[name].behind((minute + 1) * MINUTE))
    return found
