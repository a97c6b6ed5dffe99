"""Dispatches of all kinds, broken off at each of their calls."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from faults import jobs
from faults.dispatcher import KINDS, ROOM, dispatched, scheduler
from faults.scenario import scenario
from faults.scenarios.chains import at_least_once, pushed_apart
from faults.site import ROOT, Site
from qframe import manager
from qframe.contracts.status import State
from qframe.drivers import claims
from qframe.features import group_lines
from tests.support.ledger import Account

_DISPATCHERS = 4
_LATE = 5.0
"""Seconds a lock may be held after the last line of its job: until that is deleted."""
_PER_TURN = sum(kind.jobs for kind in KINDS)
_HAVE_KEYS = {"unique", "unique-until-started", "unique-and-tracked", "group"}


@dataclass
class Said:
    """What the dispatchers noted, by the numbers of the first job of each dispatch."""

    kinds: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    accepted: list[int] = field(default_factory=list)
    duplicates: dict[int, str] = field(default_factory=dict)
    """The uuids of the jobs that were said to be there."""

    @classmethod
    def read(cls, file: Path) -> Said:
        """Read them."""
        said = cls()
        for line in file.read_text().splitlines():
            event, name, *rest = line.split(" ")
            number = int(name)
            said.outcomes[event] += 1
            match event, rest:
                case "begun", (kind, key, moment):
                    said.kinds[number], said.keys[number] = kind, key
                    said.begun[number] = float(moment)
                case "accepted", _:
                    said.accepted.append(number)
                case "duplicate", (uuid, _):
                    said.duplicates[number] = uuid
        return said


@scenario("D1", "dispatches of all kinds, refused and killed at each of their calls", lease=5.0)
def broken_dispatches(site: Site) -> None:
    """A third of them run into a fault; a server is killed besides, again and again."""
    at_least_once(site)
    site.limit = None
    said, uuids = site.root / "dispatches", site.root / "uuids"
    for file in (said, uuids):
        file.touch()
    site.configure(f'[groups.{jobs.STRICT}]\norder = "strict"\n')
    site.queue_names.add(jobs.STRICT)
    site.begin(3, "--queue", f"default,{jobs.STRICT}", UUIDS=str(uuids))
    turns = -(-site.as_many(4_000, 400) // (_PER_TURN * _DISPATCHERS))
    count = turns * len(KINDS)
    firsts = [1 + place * count * ROOM for place in range(_DISPATCHERS)]
    scheduler(site.queue, firsts, lambda: jobs.EPOCH).turn()  # they begin
    processes = []
    for place, first in enumerate(firsts):
        spec = {
            "first": first,
            "count": count,
            "said": str(said),
            "ahead": place,
        }
        processes.append(
            site.run(
                [sys.executable, "-m", "faults.dispatcher", json.dumps(spec)],
                environment={"PYTHONPATH": str(ROOT)},
            )
        )
    outages = 0
    while any(process.alive() for process in processes):
        if "server" not in site.backend.features:
            site.pause(0.5)
            continue
        site.pause(site.chance.uniform(*((2, 4) if site.quick else (10, 20))))
        with site.fault("outage"):
            site.server.kill()
            site.pause(site.chance.uniform(0.1, 0.6))
            site.server.start()
        outages += 1
    for process in processes:
        site.check(process.wait() == 0, f"a dispatcher ended with {process.err[-400:]}")
    _make_what_is_left(site, firsts, turns)
    workers = len(site.workers)
    site.finish(600)
    noted = Said.read(said)
    _let_come_twice(site, noted)
    unproven = _judge(site, noted, uuids, outages)
    _dispatch_once_more(site, noted, uuids, workers, unproven)


def _make_what_is_left(site: Site, firsts: list[int], turns: int) -> None:
    """Let another scheduler make the runs that were broken off."""
    end, begun = jobs.EPOCH + jobs.EVERY * turns, time.monotonic()
    host = scheduler(
        site.queue, firsts, lambda: end + min(time.monotonic() - begun, jobs.EVERY - 1)
    )

    def all_made() -> bool:
        host.turn()
        tracks = host.table.progress.values()
        return all(each.at >= end and each.pending is None for each in tracks)

    site.check(site.wait_for(all_made), "runs of schedules that nobody made")


def _dispatch_once_more(site: Site, said: Said, uuids: Path, workers: int, unproven: int) -> None:
    """Dispatch each key again: nobody's claim refuses it, and then nothing is left."""
    wanted = sorted({(kind, said.keys[n]) for n, kind in said.kinds.items() if kind in _HAVE_KEYS})
    number = max(said.kinds) + ROOM
    began, refused = time.monotonic(), list[str]()
    manager.use(site.manager)
    for kind, key in wanted:
        number += 1
        site.writing.note("P", number)
        outcome, _, there = dispatched(kind.replace("-", " "), number, key)
        site.writing.note("E", number)
        if outcome != "accepted":
            refused.append(f"{kind} {key}: {there}")
    manager.use(None)
    took = time.monotonic() - began
    site.check(not refused, f"dispatches that nobody's claim refused: {refused[:3]}")
    site.begin(workers, "--queue", f"default,{jobs.STRICT}", UUIDS=str(uuids))
    site.finish(600)
    left = [
        key
        for prefix in ("unique:", "turn:")
        for key, value in site.queue.store.items(prefix)
        if prefix == "unique:" or claims.is_unproven(value)
    ]
    site.check(not left, f"locks and claims that are left in the end: {left[:3]}")
    lines = group_lines.lines(site.queue.context, jobs.STRICT)
    site.check(not lines, f"groups that wait: {[each.line for each in lines[:3]]}")
    site.remark(
        f"dispatched once more {len(wanted)} in {took:.1f} s, refused {len(refused)}, "
        f"claims left then {len(left)} of {unproven}, groups that wait {len(lines)}"
    )


def _let_come_twice(site: Site, said: Said) -> None:
    """Let a server's death push links and callbacks twice, where that is apart from the rest."""
    for number, kind in said.kinds.items():
        if kind in {"chain", "batch", "flow"} and pushed_apart(site):
            site.at_least_once.update(range(number, number + ROOM))


def _judge(site: Site, said: Said, uuids: Path, outages: int) -> int:
    """Say what has come of it; gives how many claims are nobody's."""
    account = Account.of(site.ledger)
    numbers = {words[1]: int(words[2]) for words in map(str.split, uuids.read_text().splitlines())}
    false = [n for n, uuid in said.duplicates.items() if _is_false(account, said, n, numbers, uuid)]
    site.check(not false, f"duplicates of jobs that are not: {false[:5]}")
    left_out = _left_out(account, said)
    site.check(not left_out, f"debounced jobs in whose place none ran: {left_out[:5]}")
    at_once = _at_once(account, said)
    site.check(not at_once, f"jobs of one key that ran at the same time: {at_once[:5]}")
    held = dict(site.queue.store.items("unique:"))
    locks = [key for key, value in held.items() if not claims.is_unproven(value)]
    held |= {k: v for k, v in site.queue.store.items("turn:") if claims.is_unproven(v)}
    site.check(not locks, f"locks without a job: {locks[:3]}")
    statuses = [json.loads(text)["state"] for _, text in site.queue.store.items("status:")]
    waiting = statuses.count(State.WAITING)
    site.check(not waiting, f"{waiting} statuses say that a job waits, and none does")
    found = said.outcomes
    killed = found["begun"] - found["accepted"] - found["duplicate"] - found["raised"]
    site.remark(
        f"dispatches {found['begun']}, accepted {found['accepted']}, "
        f"duplicates told {found['duplicate']}, raised {found['raised']}, killed {killed}, "
        f"outages {outages}, false duplicates {len(false)}, left out {len(left_out)}, "
        f"at once {len(at_once)}, locks left {len(locks)}, "
        f"claims of nobody {len(held) - len(locks)}, waiting for ever {waiting}"
    )
    return len(held) - len(locks)


def _is_false(
    account: Account, said: Said, number: int, numbers: dict[str, int], uuid: str
) -> bool:
    """Whether a dispatch was told of a job that never ran, or had ended long before."""
    runs = account.runs.get(str(numbers.get(uuid, 0)), [])
    return not any(not run.done or run.done + _LATE > said.begun[number] for run in runs)


def _left_out(account: Account, said: Said) -> list[int]:
    """Give the debounced jobs that were accepted, and behind which none of their key ran."""
    last: dict[str, float] = defaultdict(float)
    for number, kind in said.kinds.items():
        if kind == "debounced":
            for run in account.runs.get(str(number), []):
                last[said.keys[number]] = max(last[said.keys[number]], run.begun)
    return [
        number
        for number in said.accepted
        if said.kinds[number] == "debounced" and last[said.keys[number]] < said.begun[number]
    ]


def _at_once(account: Account, said: Said) -> list[int]:
    """Give the jobs that began while another one with the same lock was running."""
    runs: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for number, kind in said.kinds.items():
        if kind in {"unique", "unique-and-tracked", "group"}:
            for run in account.runs.get(str(number), []):
                runs[kind, said.keys[number]].append((run.begun, run.done or run.begun, number))
    return [
        second[2]
        for each in runs.values()
        for first, second in pairwise(sorted(each))
        if second[0] < first[1] and first[2] != second[2]
    ]
