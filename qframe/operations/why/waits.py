"""Waits: what a waiting job itself waits for: a moment, an event, a kick; and what it is."""

from __future__ import annotations

import time

from qframe.contracts.browsing import Place
from qframe.contracts.history import History
from qframe.contracts.step import Reservation
from qframe.exceptions import InvalidPayload
from qframe.features.reserved import ReservedJob
from qframe.features.status import cancelled_key, may_be_noted
from qframe.features.steps import Waiting
from qframe.operations import steps
from qframe.operations.jobs import FilteredMessage
from qframe.operations.why import of_code, of_group, on_hold
from qframe.operations.why.look import ConnectionLook, ReadAt
from qframe.operations.why.reason import Reasons, ago, command, until
from qframe.payload import envelope, tracebacks
from qframe.payload.text import one_line
from qframe.payload.timing import iso


class UnreservedJob(Reservation):
    """A message that was found and not reserved: it is only read."""

    @property
    def fence(self) -> bytes:
        """None: nothing can be settled by it."""
        return b""


def explain(look: ConnectionLook, job: FilteredMessage, why: Reasons, at: float) -> None:
    """Says what one waiting job waits for, besides its queue."""
    message, raw = job.message, job.payload
    notes = b"" if job.found is None else look.connection.backend.notes_of(job.found)
    reserved = ReservedJob(look.connection.context, UnreservedJob(job.queue, "", raw, 0, notes))
    history = History.from_json(notes.decode("utf-8", "replace") or None)
    if reserved.refusal is not None:
        _refused(reserved, why, at)
        return
    try:
        name = envelope.job_name(message)
    except InvalidPayload as error:
        why.add("unreadable", f"every worker fails it: {error}", at, "push it in another form")
        return
    on_hold.of_job(look, job, why)
    _placed(look, job, history, why, at)
    _ends(look, job, why)
    _events(look, job, why)
    of_group.explain(look, job, why)
    of_code.explain(look, reserved, name, why)


def _refused(reserved: ReservedJob, why: Reasons, at: float) -> None:
    refusal = reserved.refusal
    if isinstance(refusal, InvalidPayload):
        why.add("unreadable", f"every worker fails it: {refusal}", at, "push it in another form")
        return
    text = f"every worker with these keys refuses it: {refusal}"
    why.add("unsigned", text, at, "give its pushers a signing key that the workers have")


# -- where it is ----------------------------------------------------------------------------------


def _placed(
    look: ConnectionLook, job: FilteredMessage, history: History, why: Reasons, at: float
) -> None:
    place = None if job.found is None else job.found.place
    before = _last_attempt(history)
    if place is Place.BURIED:
        mend = command("kick", look.name, "--queue", job.queue)
        why.add("buried", f"it is buried, and stays so until somebody kicks it{before}", at, mend)
    elif place is Place.DELAYED:
        due = None if job.found is None else job.found.at
        waited = _waiting(look, job.uuid)
        if waited.value is not None and waited.value.event:
            return  # said with its event
        due = due or job.failed_at or None
        what = "it sleeps" if waited.value is not None else "it is delayed"
        when = until(due) if due else "until a moment that the backend does not tell"
        why.add("delayed", f"{what} {when}{before}", at)


def _waiting(look: ConnectionLook, uuid: str) -> ReadAt[Waiting | None]:
    """Reads the event or the moment for which a job waits between its steps."""
    if not look.keeps_facts:
        return ReadAt(None, time.time())
    return look.read(("waits", uuid), lambda: steps.waiting(look.connection.context, uuid))


def _last_attempt(history: History) -> str:
    """Returns how the last attempt ended, as the end of a sentence."""
    if history.refusals and not history.attempts:
        times = "once" if history.refusals == 1 else f"{history.refusals} times"
        return f", given back {times} by a worker that cannot run it"
    if not history.attempts:
        return ""
    last = history.attempts[-1]
    ended = {
        "error": f"failed with {tracebacks.brief_of(last.error, 200)}",
        "released": "released it",
        "": "has no known end",
    }.get(last.ended, f"ended: {last.ended}")
    when = ago(last.ended_at or last.started_at)
    return f"; attempt {last.number} on {one_line(last.host, 80)} {ended}, {when}"


def _ends(look: ConnectionLook, job: FilteredMessage, why: Reasons) -> None:
    """Says that it will not run when its turn comes."""
    message, now = job.message, time.time()
    expires = envelope.number(message, "expiresAt")
    if expires is not None and expires <= now:
        why.add("expired", f"it expired {ago(expires)}: the worker that takes it skips it", now)
    until_ = envelope.number(message, "retryUntil")
    if until_ is not None and until_ <= now:
        text = f"it may be tried until {iso(until_)} UTC, which is over: the next worker fails it"
        why.add("expired", text, now)
    if not look.keeps_facts or not job.uuid:
        return
    given = message.get("debounce")
    debounced = (envelope.text(given, "key") if isinstance(given, dict) else None) or ""
    if debounced.startswith("debounce:"):
        last = look.facts(debounced)
        if last.value[0] not in {None, job.uuid}:
            later = one_line(str(last.value[0]), 80)
            text = (
                f"a later dispatch, {later}, has taken its place: a worker that takes it skips it"
            )
            why.add("superseded", text, last.at)
    if may_be_noted(job.uuid):
        noted = look.facts(cancelled_key(look.name, job.uuid))
        if noted.value != [None]:
            text = "it was cancelled: the worker that takes it drops it"
            why.add("cancelling", text, noted.at)


def _events(look: ConnectionLook, job: FilteredMessage, why: Reasons) -> None:
    if job.found is None or job.found.place is not Place.DELAYED:
        return
    waited = _waiting(look, job.uuid)
    if waited.value is not None and waited.value.event:
        name = one_line(waited.value.event, 100)
        text = f"it waits for the event {name!r} {until(waited.value.until)}"
        why.add("event", text, waited.at, command("event", job.uuid, name))
