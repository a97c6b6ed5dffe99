"""OfGroup: which jobs a job waits for that stands in the line of its group, or behind others."""

from __future__ import annotations

import time

from qframe.contracts.browsing import Place
from qframe.features.group import Group
from qframe.operations import one_job
from qframe.operations.jobs import FilteredMessage
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons, ago, command, together
from qframe.operations.why.takers import place
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.payload.timing import lasting

_NAMED = 3
"""So many jobs that have a place are named."""
_SEARCH = 0.2


def explain(look: ConnectionLook, job: FilteredMessage, why: Reasons) -> None:
    """Says which jobs have the places of the group of a waiting job."""
    group = Group.of(look.connection.context, job.queue, job.message)
    if group is None:
        return
    read = look.read(("group", group.key), lambda: look.connection.backend.read(group.key))
    line = group.line(read.value[0])
    others = [each for each in line.placed if each != job.uuid]
    name = one_line(group.name, 100)
    if job.lined is None and (job.uuid in line.placed or not others or not group.settings.at_once):
        left = line.due - time.time()
        is_delayed = job.found is not None and job.found.place is Place.DELAYED
        if left > 0 and group.settings.per_second and is_delayed:
            text = f"the rate of its group {name} lets the next start in {lasting(left)}"
            why.add("group", text, read.at)
        return
    if job.lined is not None:
        ahead = f"it is number {job.lined.position:,} in the line of its group {name}, which"
    else:
        ahead = f"its group {name}"
    how, mend = _holders(look, others)
    why.add("blocked" if mend else "group", f"{ahead} waits for {how}", read.at, mend)


def _holders(look: ConnectionLook, uuids: list[str]) -> tuple[str, str]:
    """Returns in words which jobs have the places of a group, and what mends a failed one."""
    if not uuids:
        return "its next turn", ""
    mend, words = "", []
    for uuid in uuids[:_NAMED]:
        text, failed = standing(look, uuid)
        if failed:
            mend = mend or f"{command('retry', uuid)}, or: {command('forget', uuid)}"
        words.append(f"{uuid}, {text}")
    if len(uuids) > _NAMED:
        words.append(f"{len(uuids) - _NAMED} others")
    return together(words, _NAMED + 1), mend


def standing(look: ConnectionLook, uuid: str) -> tuple[str, bool]:
    """Returns how another job stands, and whether it has failed."""
    found = one_job.locate(look.board, uuid, look.name, seconds=_SEARCH)
    if found.record is not None:
        record = found.record
        error = one_line(tracebacks.brief_of(record.exception, 200), 200)
        return f"which failed {ago(record.failed_at)} with {error}", True
    if found.running is not None:
        run = found.running
        return f"which runs for {lasting(run.seconds)} on {place(run)}", False
    if found.waiting is not None:
        return f"which is {found.waiting.state}", False
    if found.status is not None:
        return f"which is {found.status.state.value.lower()}", False
    return "of which nothing is known", False
