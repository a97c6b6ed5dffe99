"""Permits: which jobs have the permits of a full concurrency limit, and where they run."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons, together
from qframe.operations.why.takers import place
from qframe.payload.text import one_line
from qframe.payload.timing import lasting
from qframe.worker import slot_leases
from qframe.worker.concurrency import in_each, over_all
from qframe.worker.roster import Entry, RunningJob

_NAMED = 5
"""So many holders are named."""


def of_queue(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says who has the permits of a queue, if none is free."""
    settings = look.board.manager.settings.queues
    most = over_all(settings, queue)
    if most is not None:
        name = slot_leases.queue_name(look.name, queue)
        _explain(look, (slot_leases.QUEUE, name), f"queue {queue}", most, why)
    per_worker = in_each(settings, queue)
    if per_worker is not None:
        _here(look, queue, per_worker, why)


def of_class(look: ConnectionLook, name: str, most: int, why: Reasons) -> None:
    """Says who has the permits of a class, if none is free."""
    _explain(look, (slot_leases.CLASS, name), f"class {name}", most, why)


def _explain(
    look: ConnectionLook, limit: tuple[str, str], shown: str, most: int, why: Reasons
) -> None:
    keys = slot_leases.keys(*limit, most)
    held = look.facts(*keys)
    if None in held.value:
        return
    entries = look.entries().value
    holders = []
    for number, (key, token) in enumerate(zip(keys, held.value, strict=True), 1):
        if number > _NAMED:
            holders.append("")
            continue
        holders.append(
            f"slot {number} of {most} is {_holder(look, key, token or '', limit, entries)}"
        )
    text = f"the limit of the {shown} is full: {together(holders, _NAMED)}"
    why.add("limit", text, held.at)


def _holder(
    look: ConnectionLook, key: str, token: str, limit: tuple[str, str], entries: Sequence[Entry]
) -> str:
    """Returns who has a permit: its value names the process, and the roster the job."""
    host, _, rest = token.partition(":")
    pid = rest.partition(":")[0]
    where = f"{one_line(host, 80)}:{one_line(pid, 20)}"
    there = [each for each in entries if (each.host, str(each.pid)) == (host, pid)]
    if not there or there[0].is_gone:
        (copy,) = look.read(("copy", key), lambda: look.connection.backend.copy(key)).value
        left = "" if copy is None or copy.ttl is None else f", free in {lasting(copy.ttl)}"
        return f"with {where}, which is no live worker{left}"
    jobs = [job for job in there[0].jobs if _is_of(job, limit)]
    if not jobs:
        return f"with {place(there[0])}"
    named = together((f"{one_line(each.name, 100)} {each.uuid}" for each in jobs), 2)
    one = "job " if len(jobs) == 1 else "one of "
    return f"with {one}{named} on {place(there[0])}"


def _is_of(job: RunningJob, limit: tuple[str, str]) -> bool:
    kind, name = limit
    if kind == slot_leases.CLASS:
        return job.name == name
    return name.endswith(f":{job.queue}")


def _here(look: ConnectionLook, queue: str, most: int, why: Reasons) -> None:
    """Says that each worker runs as many jobs of a queue as it may alone."""
    entries = [each for each in look.entries().value if not each.is_gone]
    counts = [sum(job.queue == queue for job in each.jobs) for each in entries]
    taking = [count for count in counts if count]
    if taking and min(taking) >= most and len(taking) == len(entries):
        text = f"each worker may run {most} of {queue} at once, and does"
        why.add("limit", text, look.entries().at)
