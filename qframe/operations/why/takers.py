"""Takers: the workers that take a queue, and why none of them takes its next job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol

from qframe.exceptions import ConfigurationError
from qframe.operations.why.look import ConnectionLook, others
from qframe.operations.why.reason import Reasons, ago, command, together
from qframe.payload.text import count_of, is_queue_pattern, one_line
from qframe.payload.timing import lasting
from qframe.worker.control import QUIET, STOP, order_key
from qframe.worker.queues import parse
from qframe.worker.roster import BEAT, Entry

_NEAR = 0.6
"""How alike two names are, of 1, if one may be a misspelling of the other."""
_SILENT = BEAT + 5
"""Seconds without a sign of life after which that is said of a worker."""
_LATELY = 900.0
"""Seconds for which a dead worker is named: it may have been replaced long ago."""


class HasProcess(Protocol):
    """A worker, a run or an attempt."""

    @property
    def host(self) -> str: ...

    @property
    def pid(self) -> int: ...


def takes(entry: Entry, queue: str) -> bool:
    """Whether a worker works a queue."""
    with suppress(ConfigurationError):  # of another version
        wanted, skipped = parse(entry.queues)
        is_wanted = any(fnmatchcase(queue, each) for each in wanted)
        return is_wanted and not any(fnmatchcase(queue, each) for each in skipped)
    return queue in entry.queues


def named(entry: Entry) -> str:
    """Returns a worker's host and pid, and the version that it runs."""
    version = f" (version {one_line(entry.version, 60)})" if entry.version else ""
    return f"{place(entry)}{version}"


def place(process: HasProcess) -> str:
    return f"{one_line(process.host, 80)}:{process.pid}"


def near(name: str, known: Iterable[str]) -> str:
    """Returns the most similar other name; "" if none is similar."""
    others = sorted({each for each in known if each != name and not is_queue_pattern(each)})
    return next(iter(get_close_matches(name, others, n=1, cutoff=_NEAR)), "")


def alive(look: ConnectionLook, queue: str) -> list[Entry]:
    """Returns the living workers that take a queue."""
    return [each for each in look.entries().value if not each.is_gone and takes(each, queue)]


def explain(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says why no worker takes the next job of a queue."""
    working, at = alive(look, queue), look.entries().at
    if not look.keeps_facts:
        why.cannot_know(f"{look.name} keeps no facts, so its workers are not known")
        return
    _died(look, queue, working, why)
    if not working:
        _nobody(look, queue, why)
        return
    orders = look.facts(*(order_key(each.id) for each in working))
    told = dict(zip((each.id for each in working), orders.value, strict=True))
    leaving = [each for each in working if told[each.id] in {QUIET, STOP}]
    if leaving and len(leaving) == len(working):
        names = together(map(place, leaving))
        why.add(
            "quiet",
            f"{_all_of(len(leaving))} {queue} was told to take no more jobs: {names}",
            orders.at,
            "unquiet them on the page of workers, or start another worker",
        )
        return
    _paused(look, queue, working, at, why)
    _busy(queue, working, at, why)
    _in_order(look, queue, working, why)
    silent = [each for each in working if time.time() - each.beat_at > _SILENT]
    if silent and len(silent) == len(working):
        names = together(f"{place(each)} ({ago(each.beat_at)})" for each in silent)
        why.cannot_know(f"no worker of {queue} has given a sign of life lately: {names}")


def _all_of(count: int) -> str:
    return "the only worker of" if count == 1 else f"each of the {count} workers of"


def _died(look: ConnectionLook, queue: str, working: Sequence[Entry], why: Reasons) -> None:
    dead, recent = look.dead(), time.time() - _LATELY
    lost = [each for each in dead.value if takes(each, queue) and each.beat_at > recent]
    if not lost:
        return
    names = together(f"{place(each)}, last seen {ago(each.beat_at)}" for each in lost)
    died = f"{count_of(len(lost), 'worker', 'workers')} of {queue} died: {names}"
    if not working:
        start = command("work", look.name, "--queue", queue)
        why.add("worker died", died, dead.at, f"start it again, or: {start}")
    else:
        left = count_of(len(working), "worker is", "workers are")
        why.add("fewer workers", f"{died}; {left} left", dead.at)


def _nobody(look: ConnectionLook, queue: str, why: Reasons) -> None:
    entries = look.entries()
    living = [each for each in entries.value if not each.is_gone]
    start = command("work", look.name, "--queue", queue)
    if not living:
        why.add("no worker", f"no worker of {look.name} runs", entries.at, start)
    else:
        worked = [name for each in living for name in each.queues]
        other = near(queue, worked)
        hint = ""
        if other:
            some = _taking(sum(other in each.queues for each in living))
            hint = f" (did you mean {other}, which {some}?)"
        theirs = f"its {_taking(len(living))} {together(sorted({*worked}), 5)}"
        text = f"no worker takes {queue} of {look.name}{hint}: {theirs}"
        mend = f"push to {other}, or: {start}" if other else start
        why.add("no worker", text, entries.at, mend)
    for each in others(look):
        there = alive(each, queue)
        if there:
            why.add(
                "elsewhere",
                f"{_taking(len(there))} a queue {queue} of another connection, {each.name}",
                each.entries().at,
                f"push to {each.name}, or let a worker work {look.name}",
            )
    why.cannot_know("workers of other programs, such as Laravel's, tell nobody that they run")


def _taking(count: int) -> str:
    return count_of(count, "worker takes", "workers take")


def _paused(
    look: ConnectionLook, queue: str, working: Sequence[Entry], at: float, why: Reasons
) -> None:
    """Says that all pause, though no pause of the queue is the reason."""
    held = [each for each in working if each.state == "paused"]
    is_held = bool(look.pauses().value.keys() & {"", queue})
    if held and len(held) == len(working) and not is_held:
        names = together(map(place, held))
        text = f"{_all_of(len(held))} {queue} has paused by itself: {names}"
        why.add("quiet", text, at, "send it SIGCONT, if somebody sent SIGUSR2")


def _busy(queue: str, working: Sequence[Entry], at: float, why: Reasons) -> None:
    free = sum(max(0, each.concurrency - len(each.jobs)) for each in working)
    jobs = [(job, each) for each in working for job in each.jobs]
    if free or not jobs:
        return
    job, entry = min(jobs, key=lambda pair: pair[0].since)
    busy = f"the only worker of {queue} is busy"
    if len(jobs) > 1:
        workers = count_of(len(working), "worker", "workers")
        busy = f"all {len(jobs)} slots of the {workers} of {queue} are taken"
    text = (
        f"{busy}: the longest job, "
        f"{one_line(job.name, 100)} {job.uuid}, has run for "
        f"{lasting(max(0.0, time.time() - job.since))} on {place(entry)}"
    )
    why.add("busy", text, at)


def _in_order(look: ConnectionLook, queue: str, working: Sequence[Entry], why: Reasons) -> None:
    """Says which queues each of the workers takes first, if these have jobs."""
    before: set[str] | None = None
    for each in working:
        if queue not in each.queues:
            return  # by a pattern: in the order of names
        first = {*each.queues[: each.queues.index(queue)]}
        before = first if before is None else before & first
    busy = []
    for name in sorted(before or ()):
        if is_queue_pattern(name) or name.startswith("!"):
            continue
        sizes = look.sizes(name)
        if sizes.value is not None and sizes.value.ready:
            busy.append((f"{name} with {sizes.value.ready:,} ready", sizes.at))
    if busy:
        names = together(text for text, _ in busy)
        why.add("order", f"its workers take other queues first: {names}", busy[0][1])
