"""OnHold: the holds by a filter that keep a job, or jobs of a queue, from running."""

from __future__ import annotations

from functools import partial

from qframe.exceptions import ConfigurationError
from qframe.failed.filters import HELD, Filter
from qframe.operations import holds
from qframe.operations.holds import HoldState
from qframe.operations.jobs import FilteredMessage
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons, command
from qframe.payload.text import one_line
from qframe.payload.timing import lasting


def of_job(look: ConnectionLook, job: FilteredMessage, why: Reasons) -> None:
    """Names the holds that keep a job."""
    if look.keeps_facts:
        held = look.read(("held", job.uuid), partial(holds.held_by, look.connection, job))
        for each in held.value:
            text = f"it is held {_by(each)}: it matches {each.filter}"
            why.add("on hold", text, held.at, _ends(each))


def of_queue(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Names the holds that may keep jobs of a queue."""
    if not look.keeps_facts:
        return
    known = look.read("holds", partial(holds.listed, look.connection))
    for each in known.value:
        if (each.queues and queue not in each.queues) or not _may_match(each.filter, queue):
            continue
        text = f"jobs that match {each.filter} are held {_by(each)}; {each.aside:,} are set aside"
        why.add("on hold", text, known.at, _ends(each))


def _may_match(text: str, queue: str) -> bool:
    try:
        return Filter(text, HELD).allows("queue", queue)
    except ConfigurationError:  # of another version
        return True


def _by(hold: HoldState) -> str:
    who = f"by {one_line(hold.who, 100)} " if hold.who else ""
    because = f" ({one_line(hold.why, 200)})" if hold.why else ""
    return f"{who}until {hold.until} UTC, in {lasting(hold.seconds_left)}{because}"


def _ends(hold: HoldState) -> str:
    return command("unhold", hold.id, "--connection", hold.connection)
