"""OfQueue: all that holds a queue up."""

from __future__ import annotations

import time

from qframe.connection import Connection
from qframe.contracts.queue import Sizes
from qframe.drivers.failover.settings import FailoverSettings
from qframe.operations.board import Board
from qframe.operations.queues import RATES_OVER
from qframe.operations.why import ended, on_hold, permits, takers, turn
from qframe.operations.why.look import ConnectionLook, Pause
from qframe.operations.why.reason import Explanation, Reasons, command, until
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import lasting
from qframe.worker import queue_facts


def explain(look: ConnectionLook, queue: str) -> Explanation:
    """Returns what holds a queue up, and how many jobs wait there."""
    why = Reasons()
    sizes = look.sizes(queue)
    counts = sizes.value
    if counts is None:
        why.cannot_know(f"{look.name} does not count its jobs")
    held_up(look, queue, why, is_ready=counts is None or counts.ready > 0)
    on_hold.of_queue(look, queue, why)
    if counts is not None and counts.buried:
        many = count_of(counts.buried, "job is", "jobs are")
        text = f"{many} buried, until somebody kicks them"
        why.add("buried", text, sizes.at, command("kick", look.name, "--queue", queue))
    if counts is not None and not counts.total:
        ended.elsewhere(look, queue, why)
    _flows(look, queue, counts, why)
    return why.explained("queue", _state(counts), connection=look.name, queue=queue)


def of_page(board: Board, connection: Connection, queue: str) -> Explanation:
    """Returns what holds a queue up, for a page, which has the counts itself."""
    why, look = Reasons(), ConnectionLook(board, connection, imports=False, quick=True)
    held_up(look, queue, why, is_ready=True)
    on_hold.of_queue(look, queue, why)
    return why.explained("queue", "", connection=look.name, queue=queue)


def held_up(look: ConnectionLook, queue: str, why: Reasons, *, is_ready: bool) -> None:
    """Says what keeps workers from taking jobs of a queue."""
    paused(look, queue, why)
    _moved(look, queue, why)
    takers.explain(look, queue, why)
    if is_ready:
        permits.of_queue(look, queue, why)


def paused(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says who paused a queue, or its whole connection, when and from where."""
    if not look.keeps_facts:
        return
    for name in ("", queue):
        found = look.pause(name)
        if found.value is None:
            continue
        what = name or f"every queue of {look.name}"
        words = f"{what} {_paused(found.value)}"
        if not name:
            words += "; workers with --force go on"
        mend = command("resume", *filter(None, [name]), "--connection", look.name)
        why.add("paused", words, found.at, mend)


def _paused(pause: Pause) -> str:
    words = "is paused"
    if pause.since:
        words = f"has been paused for {lasting(max(0.0, time.time() - pause.since))}"
    if pause.note is not None:
        words += f" from {one_line(pause.note.where, 100)}" if pause.note.where else ""
        words += f" by {one_line(pause.note.who, 100)}" if pause.note.who else ""
    if pause.ends is not None:
        words += f", {until(pause.ends)}"
    return words


def _moved(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says where pushes to a queue go instead, by the configuration read here."""
    places, settings = look.board.manager.places, look.connection.settings
    if places is not None:
        to = places.forwarded(queue, look.name)
        if to != (queue, look.name):
            text = f"[forward] sends pushes for {queue} to {to.queue}@{to.connection}"
            why.add("moved", text, time.time(), "")
    if isinstance(settings, FailoverSettings):
        first = " or ".join(settings.connections)
        text = f"{look.name} is a failover: its jobs are on {first}, the first that answered"
        why.add("moved", text, time.time(), "")


def _state(counts: Sizes | None) -> str:
    if counts is None:
        return "not counted"
    about = "about " if counts.approximate else ""
    words = [f"{about}{count:,} {state}" for state, count in counts.counted.items() if count]
    return ", ".join(words) or "empty"


def _flows(look: ConnectionLook, queue: str, counts: Sizes | None, why: Reasons) -> None:
    """Says how fast a queue with ready jobs is worked, if nothing holds it up."""
    if why.has("paused", "no worker", "worker died", "quiet"):
        return
    at = time.time()
    workers = count_of(len(takers.alive(look, queue)), "worker takes", "workers take")
    if counts is None or not counts.ready:
        if not why.found:
            why.add("ready", f"nothing holds it up: no job is ready, and {workers} it", at)
        return
    pace, read_at = turn.rate(look, queue)
    oldest = look.read(("oldest", queue), lambda: queue_facts.oldest(look.connection, queue))
    waits = "" if oldest.value is None else f", the next for {lasting(oldest.value)}"
    text = f"{count_of(counts.ready, 'job is', 'jobs are')} ready{waits}; {workers} it"
    if pace:
        text += f", and {pace:,.0f} a minute end: empty in {lasting(counts.ready / pace * 60)}"
    elif pace is not None:
        text += f", and none has ended in the last {RATES_OVER} minutes"
    why.add("turn" if why.found or not pace else "ready", text, min(at, read_at))
