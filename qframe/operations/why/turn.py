"""Turn: how many jobs come before a ready one, and how long that takes at the present rate."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.operations.jobs import FilteredMessage
from qframe.operations.queues import RATES_OVER
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons
from qframe.payload import envelope
from qframe.payload.text import count_of
from qframe.payload.timing import lasting

_PAGE = 1000
_SECONDS = 1.5
"""How long jobs before one are counted."""


class Before(NamedTuple):
    """How many jobs come before one."""

    many: int
    is_all: bool
    """Whether these are all; otherwise there are more."""
    at: float


def explain(look: ConnectionLook, job: FilteredMessage, why: Reasons) -> None:
    """Says how many ready jobs are before one, and when its turn is."""
    queue, before = job.queue, counted(look, job)
    if before is None:
        why.cannot_know(f"{look.name} does not tell how many jobs come before one")
        return
    pace, at = rate(look, queue)
    sizes = look.sizes(queue)
    if before.is_all and not before.many:
        why.add("turn", f"it is the next job of {queue}", before.at)
        return
    many = count_of(before.many, "job is", "jobs are")
    text = f"{many} before it in {queue}"
    most = before.many
    if not before.is_all:
        ready = "" if sizes.value is None else f", of {sizes.value.ready:,} ready"
        text = f"more than {many} before it in {queue}{ready}"
        most = before.many if sizes.value is None else max(before.many, sizes.value.ready)
        why.cannot_know(f"the jobs before it were counted for {look.seconds(_SECONDS):g} s only")
    if pace is None:
        why.cannot_know(f"how fast {queue} is worked is not known: {look.name} has no metrics")
    elif not pace:
        text += f"; none has ended in the last {RATES_OVER} minutes"
    else:
        about = "about" if before.is_all else "at most about"
        seconds = (most + 1) / pace * 60
        text += f", {about} {lasting(seconds)} at the present rate ({_shown(pace)} a minute)"
    why.add("turn", text, min(before.at, at))


def rate(look: ConnectionLook, queue: str) -> tuple[float | None, float]:
    """Returns how many jobs of a queue ended a minute lately, and when that was read."""
    active = look.activity()
    if active.value is None:
        return None, active.at
    return active.value.rates(queue, RATES_OVER).ended, active.at


def counted(look: ConnectionLook, job: FilteredMessage) -> Before | None:
    """Counts the ready jobs before one; None if the backend lists none of them.

    Where only reading all of them would tell, it reads them for a while.
    """
    if job.found is None or not {Capability.BROWSE, Capability.SEARCH} <= {*look.able}:
        return None
    at = time.time()
    count_before = partial(look.connection.backend.count_before, job.found)
    known = look.board.ask(look.connection, count_before)
    return _read(look, job, at) if known is None else Before(known, True, at)


def _read(look: ConnectionLook, job: FilteredMessage, at: float) -> Before:
    ends = time.monotonic() + look.seconds(_SECONDS)
    text = job.uuid.encode("utf-8", "surrogatepass")
    count, after = 0, ""
    while True:
        browse = partial(look.connection.backend.browse, job.queue, Place.READY, _PAGE, after)
        page = look.board.ask(look.connection, browse)
        for number, each in enumerate(page.found):
            if text in each.raw_body and envelope.uuid_of(each.raw_body) == job.uuid:
                return Before(count + number, True, at)
        count += len(page.found)
        after = page.after
        if not after:
            return Before(count, True, at)  # it has moved meanwhile
        if time.monotonic() >= ends:
            return Before(count, False, at)


def _shown(pace: float) -> str:
    return f"{pace:,.0f}" if pace >= 1 else f"{pace:.2g}"
