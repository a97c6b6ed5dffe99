"""Balance: how many processes each queue of a supervisor gets; pure, without a clock.

A queue needs the processes that its arrivals, or its running jobs, keep busy, and as many more as
clear what waits within `clear_within` seconds. If the sum exceeds the limit, each queue keeps its
least, and the rest is shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

UNKNOWN_RUN = 1.0
"""Seconds a job is assumed to run if nothing is known of its queue."""
_HALF_LIFE = 60.0
"""Seconds after which a measurement counts half as much as a new one."""
_ARRIVALS = 15.0
"""Seconds over which arrivals are averaged."""
_SLOWLY = 4
"""A queue gives up a fourth of its surplus at a time, and at least one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    """The options of a supervisor.

    `least` is per queue, `most` for all queues. A queue grows and shrinks by `shift` processes at a
    time, each of which runs `slots` jobs at once.
    """

    queues: tuple[str, ...]
    balance: Literal["off", "simple", "auto"] = "auto"
    strategy: Literal["time", "size"] = "time"
    order: Literal["weighted", "strict"] = "weighted"
    weights: Mapping[str, float] = field(default_factory=dict)
    least: int = 1
    most: int = 1
    shift: int = 1
    clear_within: float = 10.0
    slots: int = 1


class Mean(NamedTuple):
    """The mean run time of jobs, and the number of jobs it is based on; 0: none."""

    seconds: float = 0.0
    weight: float = 0.0

    def after(self, elapsed: float, ended: int, seconds: float) -> Mean:
        """Adds jobs that have ended. Old weight decays, the mean stays."""
        old = max(self.weight * 0.5 ** (elapsed / _HALF_LIFE), min(1.0, self.weight))
        weight = old + ended
        return Mean((self.seconds * old + seconds) / weight, weight) if weight else self

    def with_running(self, ages: Sequence[float]) -> float:
        """Returns the mean, raised by running jobs that are already older than it."""
        longer = [age for age in ages if age > self.seconds]
        weight = self.weight + len(longer)
        return (self.seconds * self.weight + sum(longer)) / weight if weight else UNKNOWN_RUN


class QueueReading(NamedTuple):
    """A queue at one look. `begun`, `ended` and `seconds` are since the last look.

    `running` are the ages of running jobs in seconds; `processes` excludes those told to end.
    """

    ready: int
    processes: int
    begun: int = 0
    ended: int = 0
    seconds: float = 0.0
    running: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a queue between looks. `arrivals` are per second."""

    run: Mean = field(default_factory=Mean)
    arrivals: float = 0.0
    ready: int | None = None
    need: int = 0
    """The processes it needed at the last look."""

    def after(self, seen: QueueReading, elapsed: float) -> Known:
        """Adds a look. Arrivals are the growth of what is ready, and what was begun."""
        arrivals = self.arrivals
        if self.ready is not None and elapsed > 0:
            now = max(0.0, (seen.ready - self.ready + seen.begun) / elapsed)
            arrivals += (now - arrivals) * (1 - math.exp(-elapsed / _ARRIVALS))
        run = self.run.after(elapsed, seen.ended, seen.seconds)
        return replace(self, run=run, arrivals=arrivals, ready=seen.ready)


class Decision(NamedTuple):
    """The processes of each queue, what it needs and why, and what is known now."""

    targets: dict[str, int]
    needs: dict[str, int]
    why: dict[str, str]
    known: dict[str, Known]


def begin(plan: BalancePlan) -> dict[str, int]:
    """Returns the processes each queue starts with."""
    if plan.balance == "simple":
        each, rest = divmod(plan.most, len(plan.queues))
        return {queue: each + (at < rest) for at, queue in enumerate(plan.queues)}
    return dict.fromkeys(plan.queues, plan.least)


def decide(
    plan: BalancePlan, seen: Mapping[str, QueueReading], known: Mapping[str, Known], elapsed: float
) -> Decision:
    """Decides, `elapsed` seconds after the last decision, the processes of each queue."""
    now = {queue: known[queue].after(seen[queue], elapsed) for queue in plan.queues}
    runs = _runs(plan, seen, now)
    needs, why = {}, {}
    for queue in plan.queues:
        needs[queue] = _need(plan, seen[queue], now[queue], runs[queue])
        now[queue] = replace(now[queue], need=needs[queue])
        why[queue] = (
            f"{seen[queue].ready} ready, {now[queue].arrivals:.3g}/s arrive, "
            f"{runs[queue]:.3g} s each: needs {needs[queue]}"
        )
    if plan.balance == "simple":
        even = begin(plan)
        return Decision(even, needs, dict.fromkeys(even, "an even share"), now)
    wanted = share(plan, needs)
    return Decision(_moved(plan, seen, wanted), needs, why, now)


def _runs(
    plan: BalancePlan, seen: Mapping[str, QueueReading], known: Mapping[str, Known]
) -> dict[str, float]:
    """Returns the run time of a job by queue; with `size`, the same for all queues."""
    if plan.strategy == "time":
        return {q: known[q].run.with_running(seen[q].running) for q in plan.queues}
    weight = sum(known[q].run.weight for q in plan.queues)
    total = sum(known[q].run.seconds * known[q].run.weight for q in plan.queues)
    ages = [age for q in plan.queues for age in seen[q].running]
    mean = Mean(total / weight if weight else 0.0, weight).with_running(ages)
    return dict.fromkeys(plan.queues, mean)


def _need(plan: BalancePlan, seen: QueueReading, known: Known, run: float) -> int:
    """Returns the processes a queue needs; while something waits, no less than before."""
    clear = plan.clear_within
    in_hand = sum(min(clear, _left(run, age)) for age in seen.running) / clear
    waiting = min(seen.ready * run / clear, seen.ready)
    jobs = max(known.arrivals * run, in_hand) + waiting
    need = math.ceil(round(jobs / plan.slots, 6))
    if seen.ready:
        of_use = math.ceil((seen.ready + len(seen.running)) / plan.slots)
        need = max(need, 1, min(known.need, of_use))
    return need


def _left(run: float, age: float) -> float:
    """Estimates the remaining run time: an overdue job runs as long again."""
    return age if age > run else max(run - age, run / 2)


def share(plan: BalancePlan, needs: Mapping[str, int]) -> dict[str, int]:
    """Gives each queue its least, and as much of its further need as the limit allows.

    `strict` serves the queues in order; `weighted` serves the queue with the fewest processes for
    its weight, so a queue that needs many does not starve one that needs few.
    """
    given = dict.fromkeys(plan.queues, plan.least)
    for _ in range(plan.most - sum(given.values())):
        lacks = [queue for queue in plan.queues if given[queue] < needs[queue]]
        if not lacks:
            break
        given[_first(plan, lacks, given)] += 1
    return given


def _first(plan: BalancePlan, queues: Sequence[str], given: Mapping[str, int]) -> str:
    if plan.order == "strict":
        return queues[0]
    return min(queues, key=lambda queue: given[queue] / plan.weights.get(queue, 1.0))


def _moved(
    plan: BalancePlan, seen: Mapping[str, QueueReading], wanted: Mapping[str, int]
) -> dict[str, int]:
    """Moves from the present numbers towards the wanted ones, never above the limit.

    A queue grows by the whole shift. It shrinks slowly, since load may come back, but by the whole
    shift if another queue is to grow.
    """
    have = {queue: seen[queue].processes for queue in plan.queues}
    # Raise to the least at once: processes have died, or the least has grown.
    grown = {q: min(wanted[q], max(have[q] + plan.shift, plan.least)) for q in plan.queues}
    surplus = {q: max(0, have[q] - wanted[q]) for q in plan.queues}
    lack = sum(max(0, grown[q] - have[q]) for q in plan.queues)
    lack -= max(0, plan.most - sum(have.values()))
    targets = dict(have)
    for queue in sorted(plan.queues, key=lambda queue: -surplus[queue]):
        slowly = math.ceil(surplus[queue] / _SLOWLY)
        fewer = min(surplus[queue], plan.shift, max(slowly, lack))
        targets[queue] -= fewer
        lack -= fewer
    over = sum(targets.values()) - plan.most  # a surplus is removed at once
    for queue in sorted(plan.queues, key=lambda queue: targets[queue] - wanted[queue])[::-1]:
        fewer = max(0, min(over, targets[queue] - wanted[queue]))
        targets[queue] -= fewer
        over -= fewer
    while sum(targets.values()) < plan.most:
        lacks = [queue for queue in plan.queues if targets[queue] < grown[queue]]
        if not lacks:
            break
        short = [queue for queue in lacks if targets[queue] < plan.least]
        targets[_first(plan, short or lacks, targets)] += 1
    return targets
