"""Ended: what is said of a job that has failed, is done, runs, or is not there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qframe.contracts.backend import Capability
from qframe.contracts.failed import FailedJob
from qframe.contracts.status import JobStatus, State
from qframe.features.reserved import ReservedJob
from qframe.operations.jobs import FilteredMessage
from qframe.operations.running import RunsOn
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons, ago, command, together
from qframe.operations.why.takers import place
from qframe.operations.why.waits import UnreservedJob
from qframe.payload import envelope, tracebacks
from qframe.payload.text import one_line
from qframe.payload.timing import iso, lasting

_SKEW = 60.0
"""Seconds by which the clock of who made an id may be ahead."""


def failed(record: FailedJob, look: ConnectionLook | None, at: float, why: Reasons) -> None:
    """Says when, where and by what a job has failed."""
    last = record.history.attempts[-1] if record.history.attempts else None
    where = "" if last is None else f" on {one_line(last.host, 80)}"
    error = one_line(tracebacks.brief_of(record.exception, 300), 300)
    tries = f"at attempt {record.attempts}" if record.attempts else "before its first attempt"
    text = f"it failed {ago(record.failed_at)}{where}, {tries}: {error}"
    retry, forget = command("retry", record.uuid), command("forget", record.uuid)
    why.add("failed", text, at, f"{retry}, or: {forget}")
    if look is not None and look.connection.context.signer is not None:
        message = UnreservedJob(record.queue, "", record.payload, 0)
        reserved = ReservedJob(look.connection.context, message)
        if reserved.refusal is not None:
            text = f"a retry is refused as well: {reserved.refusal}"
            why.add("unsigned", text, at, "give its pushers a signing key that the workers have")


def runs(run: RunsOn, at: float, why: Reasons) -> None:
    """Says since when a job runs, and where."""
    text = f"it runs for {lasting(run.seconds)} on {place(run)}, attempt {run.attempt}"
    why.add("running", text, at)


def leased(look: ConnectionLook, job: FilteredMessage, at: float, why: Reasons) -> None:
    """Says who has the lease of a job that no worker names: a dead one, perhaps."""
    ends = None if job.found is None else job.found.lease_ends
    left = "" if ends is None else f", back in {lasting(max(0.0, ends - time.time()))}"
    dead = [each for each in look.dead().value if any(run.uuid == job.uuid for run in each.jobs)]
    history = look.connection.history(job.found) if job.found is not None else None
    last = history.attempts[-1] if history is not None and history.attempts else None
    if last is None:
        why.add("held", f"a worker has reserved it{left or ', and starts it within a second'}", at)
        return
    began = f"attempt {last.number} began {ago(last.started_at)}"
    where = place(last)
    living = [
        each
        for each in look.entries().value
        if (each.host, each.pid) == (last.host, last.pid) and not each.is_gone
    ]
    if living and not dead:
        text = f"it is being run by {where}: {began}"
        why.add("running", text, at)
    else:
        name = place(dead[0]) if dead else where
        text = f"its lease is held by a worker that is gone, {name}{left}: {began}"
        why.add("lease", text, at)


def status(known: JobStatus, look: ConnectionLook, at: float, why: Reasons) -> None:
    """Says what the status of a tracked job tells, if there is no message."""
    host = f" on {one_line(known.host, 80)}" if known.host else ""
    remark = f": {one_line(known.remark, 200)}" if known.remark else ""
    when = ago(known.ended_at) or "some time ago"
    if known.state is State.COMPLETE:
        why.add("ended", f"it is not there: it was done {when}{host}", at)
    elif known.state is State.SKIPPED:
        why.add("ended", f"it is not there: it was skipped {when}{host}{remark}", at)
    elif known.state is State.CANCELLED:
        why.add("ended", f"it is not there: it was cancelled {when}{host}{remark}", at)
    elif known.state is State.FAILED:
        error = ": ".join(known.exception or ())
        text = f"it failed {when}{host}: {one_line(error, 300)}; its record is not kept any more"
        why.add("ended", text, at)
    elif known.state is State.RUNNING:
        began = ago(known.started_at)
        text = f"its status says that it runs{host}, since {began}, and no live worker names it"
        why.add("lease", text, at)
    elif Capability.SEARCH not in look.able:
        queued = ago(known.queued_at)
        text = f"it waits in {known.queue} of {look.name}: it was dispatched {queued}"
        why.add("delayed" if known.attempt else "turn", text, at)
    else:
        queued = ago(known.queued_at)
        text = (
            f"its status says that it waits, since {queued}, and it is in no queue of {look.name}: "
            "the queue was cleared, or it moves just now"
        )
        why.add("absent", text, at, "ask again; if it stays so, dispatch it anew")


class LookedAt(NamedTuple):
    """Where a job was looked for that is nowhere."""

    searched: Sequence[str]
    unsearchable: Sequence[str]
    """The connections that answer and cannot be searched."""
    silent: Mapping[str, str]
    """Why each connection that does not answer does not."""
    is_all: bool
    """Whether all waiting jobs of the searched ones were looked at."""


def absent(uuid: str, looked: LookedAt, at: float, why: Reasons) -> None:
    """Says what it means that nothing is known of a job."""
    text = "it is not there"
    if looked.searched:
        text += f": it does not wait, run or fail on {together(looked.searched, 5)}"
    if looked.unsearchable:
        names, joined = together(looked.unsearchable, 5), ";" if looked.searched else ":"
        text += f"{joined} on {names} it has not failed, and no worker runs it"
    made = envelope.dispatched_at(uuid)
    if made is not None and 0 < made < time.time() + _SKEW:
        text += f"; by its id it was made {ago(made)}, at {iso(made)} UTC"
    unseen = [*looked.unsearchable, *looked.silent]
    waits = f"waits on {together(unseen, 5)}, " if unseen else ""
    text += (
        f"; so it {waits}is done, was removed, or was never pushed here: "
        "of a job without track = True nothing is kept when it is done"
    )
    why.add("absent", text, at, "track = True on its class keeps how its jobs end")
    for name, error in sorted(looked.silent.items()):
        why.add("silent", f"{name} does not answer, and it may be there: {error}", at, "")
    for name in looked.unsearchable:
        why.cannot_know(f"{name} cannot be searched: an untracked job may wait there")
    if not looked.is_all:
        why.cannot_know("whether it waits: there are more jobs than could be looked at in time")


def elsewhere(look: ConnectionLook, queue: str, why: Reasons) -> None:
    """Says that there are queues under another prefix, into which pushers may write."""
    found = look.read("elsewhere", look.connection.backend.queues_elsewhere)
    for prefix, names in found.value.items():
        same = queue in names
        if queue and not same:
            continue
        shown = f"is a queue {queue}" if same else f"are queues ({together(names)})"
        text = f"there {shown} under another prefix, {prefix!r}: do its pushers write there?"
        why.add("elsewhere", text, found.at, f"set prefix = {prefix!r}, or theirs to this one's")
