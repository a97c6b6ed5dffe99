"""Balancing, simulated: how `qframe supervise` and Horizon's formula take the same loads."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.balancing import Arrival, Chooser, Horizon, Load, Ours, Outcome, simulated
from benchmarks.plan import Plan
from benchmarks.rows import Row
from qframe.worker import balance

TITLE = "Balancing, simulated, beside Horizon's formula"

_COOLDOWN = 3.0
_MOST = 10
_COMMITS = Path(__file__).parents[1] / "loads" / "commits.csv"


class Scene(NamedTuple):
    """A load, the queues it is for, and how many seconds it is looked at."""

    name: str
    queues: tuple[str, ...]
    load: Load
    until: float


def facts() -> dict[str, str]:
    """Say what is compared with what."""
    return {"Horizon": "the formula of v5.29", "processes": f"{_MOST} at most, 3 a cooldown of 3 s"}


def rows(plan: Plan) -> list[Row]:
    """Simulate each load with both."""
    quick = plan.few < Plan().few
    found: list[Row] = []
    for scene in scenes():
        if quick and scene.until > 600:
            continue
        ours, theirs = (outcome(scene, kind) for kind in (Ours, Horizon))
        found += _rows(scene, ours, theirs)
    return found


def outcome(
    scene: Scene, kind: Callable[[balance.BalancePlan], Chooser], *, shift: int = 3
) -> Outcome:
    """Give what becomes of a scene."""
    plan = balance.BalancePlan(queues=scene.queues, least=1, most=_MOST, shift=shift)
    return simulated(
        scene.load, kind(plan), scene.queues,
        cooldown=_COOLDOWN, until=scene.until, bound=2 * _MOST,
    )  # fmt: skip


def scenes() -> list[Scene]:
    """Give the loads, the same each time."""
    chance = random.Random(16)  # noqa: S311 (a load is no secret)
    quiet_b = _steady(chance, "b", 0.5, 0.5, 300)
    burst = [Arrival(30, "a", 0.5)] * 600
    long = [Arrival(5, "long", 300)] * 40
    late = [Arrival(900, "b", 1.0)] * 50
    herd = [Arrival(60, q, 0.2 * (n + 1)) for n, q in enumerate("abcd") for _ in range(300)]
    both = [*_steady(chance, "a", 6, 0.5, 600), *_steady(chance, "b", 1, 0.5, 600)]
    short = _steady(chance, "short", 8, 0.25, 1800, start=60)
    return [
        Scene("steady", ("a", "b"), both, 600),
        Scene("burst", ("a", "b"), [*quiet_b, *burst], 300),
        Scene("long and short", ("long", "short"), [*long, *short], 1800),
        Scene("day and night", ("a", "b"), _diurnal(chance), 7200),
        Scene("silent", ("a", "b"), [*_steady(chance, "a", 4, 0.5, 1200), *late], 1200),
        Scene("all at once", ("a", "b", "c", "d"), herd, 600),
        Scene("commits", *recorded(0.1), 3600),
        Scene("shorter commits", *recorded(0.05), 3600),
    ]


def recorded(seconds: float) -> tuple[tuple[str, ...], Load]:
    """Give the queues and the jobs of a recorded load: a line that was changed takes `seconds`.

    From 0.2 seconds to two minutes.
    """
    lines = _COMMITS.read_text(encoding="utf-8").splitlines()
    told = csv.DictReader(line for line in lines if not line.startswith("#"))
    load = [
        Arrival(float(row["at"]), row["queue"], min(120.0, max(0.2, int(row["lines"]) * seconds)))
        for row in told
    ]
    return tuple(sorted({job.queue for job in load})), load


def _steady(
    chance: random.Random, queue: str, rate: float, seconds: float, until: float, start: float = 0
) -> Iterator[Arrival]:
    at = start
    while (at := at + chance.expovariate(rate)) < until:
        yield Arrival(at, queue, seconds * chance.uniform(0.5, 1.5))


def _diurnal(chance: random.Random) -> Load:
    """A day in two hours: nothing much at its begin and end, eight processes full at noon."""
    load = []
    for queue, seconds in (("a", 0.5), ("b", 2.0)):
        at = 0.0
        while at < 7200:
            height = (1 - math.cos(2 * math.pi * at / 7200)) / 2
            at += chance.expovariate((0.2 + 4 * height) / seconds)
            load.append(Arrival(at, queue, seconds * chance.uniform(0.5, 1.5)))
    return load


def _rows(scene: Scene, ours: Outcome, theirs: Outcome) -> list[Row]:
    pairs = [
        ("empty after", ours.empty, theirs.empty, "s"),
        *(
            (f"longest wait on {queue}", ours.longest[queue], theirs.longest[queue], "s")
            for queue in scene.queues
        ),
        ("processes used", ours.used, theirs.used, "process s"),
        ("most at once", ours.most, theirs.most, "processes"),
    ]
    return [
        Row(
            f"{scene.name}, {what}",
            f"{us:,.1f} {unit}",
            f"{them:,.1f} {unit}",
            us / them if them else None,
            samples={"ours": [us], "peer": [them]},
        )
        for what, us, them, unit in pairs
    ]
