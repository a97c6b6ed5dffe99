"""Undo: brings back from the bin what one act of somebody has removed, each job once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Expect, Operation, Raise, Record, Result, Set, Step, Unset
from qframe.exceptions import BackendUnavailable, InvalidPayload, InvalidSignature, QframeError
from qframe.features import binned
from qframe.features.base import Plan
from qframe.features.batch import KEY as BATCH
from qframe.features.binned import BinAct, BinEntry
from qframe.features.chain import KEY as CHAIN
from qframe.features.context import push_of
from qframe.features.debounce import DebounceFeature
from qframe.features.flow import KEY as FLOW
from qframe.features.flow import NodePlace, cancelled_key
from qframe.features.flow_undo import ended_since, plan_back
from qframe.features.once import OnceFeature
from qframe.features.status import StatusFeature
from qframe.features.steps import KEY as STEPS
from qframe.features.unique import UniqueFeature
from qframe.payload import envelope
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import iso

_AT_ONCE = 50
_TRIES = 10
_MOST_TROUBLES = 5
_AT_WORK = 5.0
"""Seconds that an undo has for a push, where steps are not atomic."""
_COPIED = {
    BATCH, CHAIN, FLOW, STEPS, UniqueFeature.key, DebounceFeature.key, OnceFeature.key,
    StatusFeature.key,
}  # fmt: skip
"""The features of which the entry has the facts; the others are asked as at a retry by hand."""


class ActState(BaseModel):
    """One act that can be taken back."""

    id: str
    action: str
    of: str
    who: str
    at: str
    until: str
    connections: list[str]
    jobs: int
    """How many jobs are in the bin; 0 also if the act broke off, or is going on."""
    lost: int
    """How many it removed for good."""


@dataclass(slots=True)
class Undone:
    """What came of an undo."""

    back: int = 0
    there: int = 0
    """How many were in their queue already: an undo that was killed had brought them back, another
    act has, or the act was killed before it removed them. Only where steps are not atomic."""
    left: int = 0
    """How many stay in the bin, and can be tried again."""
    troubles: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """What came of it, without what stays."""
        jobs = count_of(self.back, "job", "jobs")
        there = f", {self.there:,} there already" if self.there else ""
        return f"brought back {jobs}{there}"

    def stays(self, why: str) -> None:
        self.left += 1
        if len(self.troubles) < _MOST_TROUBLES:
            self.troubles.append(one_line(why, 300))


def listed(connections: Iterable[Connection]) -> list[ActState]:
    """Returns the acts that can be taken back, the latest first. Raises `BackendUnavailable`."""
    return put_together((each, acts_of(each)) for each in connections)


def acts_of(connection: Connection) -> list[BinAct]:
    """Returns the acts of one connection. Raises `BackendUnavailable`."""
    if Capability.FACTS not in connection.capabilities:
        return []
    return binned.acts(connection.backend, connection.name)


def put_together(acts: Iterable[tuple[Connection, Iterable[BinAct]]]) -> list[ActState]:
    """Returns the acts of several connections, each once, the latest first."""
    found: dict[str, list[tuple[str, BinAct]]] = {}
    for connection, own in acts:
        for act in own:
            found.setdefault(act.id, []).append((connection.name, act))
    last_first = sorted(found.values(), key=lambda parts: -parts[0][1].at)
    return [_state(parts) for parts in last_first]


def _state(parts: Sequence[tuple[str, BinAct]]) -> ActState:
    _, act = parts[0]
    return ActState(
        id=act.id,
        action=act.action,
        of=act.of,
        who=act.who,
        at=iso(min(each.at for _, each in parts)),
        until=iso(min(each.until for _, each in parts)),
        connections=[name for name, _ in parts],
        jobs=sum(each.jobs for _, each in parts),
        lost=sum(each.lost for _, each in parts),
    )


def undo(connection: Connection, act: str, done: Undone) -> None:
    """Brings back what an act has removed from a connection, in its order.

    Repeating it, also after it was killed, brings nothing back twice where steps are atomic.
    """
    backend, before = connection.backend, done.left
    prefix, after = binned.entry_key(connection.name, act), ""
    while page := backend.scan(prefix, _AT_ONCE, after):
        for key, text in page:
            try:
                _bring_back(connection, key, text, done)
            except BackendUnavailable:
                raise
            except QframeError as error:
                done.stays(str(error))
        after = page[-1][0]
    left = done.left - before

    def noted(acts: list[BinAct]) -> list[BinAct]:
        others = [each for each in acts if each.id != act]
        own = [replace(each, jobs=left) for each in acts if each.id == act and left]
        return [*others, *own]

    binned.change_acts(backend, connection.name, noted)


def purge(connection: Connection, act: str = "") -> int:
    """Empties the bin of a connection, or of one act, at once. Returns how many acts it had."""
    backend, name = connection.backend, connection.name
    count = sum(act in {"", each.id} for each in binned.acts(backend, name))
    # By their keys: the list has the latest acts only.
    prefix, after = binned.entry_key(name, act) if act else binned.all_entries(name), ""
    while page := backend.scan(prefix, _AT_ONCE, after):
        own = [(key, text) for key, text in page if binned.is_entry(name, key)]
        if own and not act:
            _purge_flows(connection, own)
        if own:
            backend.apply(Step(None, *(Unset(key) for key, _ in own)))
        after = page[-1][0]
    binned.change_acts(
        backend, name, lambda acts: [each for each in acts if act not in {"", each.id}]
    )
    return count


def _purge_flows(connection: Connection, entries: Iterable[tuple[str, str]]) -> None:
    """Removes what is kept of the jobs that were cancelled because of these."""
    backend = connection.backend
    for key, text in entries:
        with suppress(ValueError, InvalidSignature, InvalidPayload):
            place = _place(connection, BinEntry.read(connection.context.opened(key, text).text))
            kept = [] if place is None else backend.scan(cancelled_key(place.flow))
            if kept:
                backend.apply(Step(None, *(Unset(each) for each, _ in kept)))


# -- one entry ------------------------------------------------------------------------------------


def _bring_back(connection: Connection, key: str, text: str, done: Undone) -> None:
    try:
        entry = BinEntry.read(connection.context.opened(key, text).text)
    except (ValueError, InvalidSignature) as error:
        done.stays(str(error))
        return
    if entry.record is not None:
        _bring_back_failed(connection, entry, key, text, done)
        return
    for _ in range(_TRIES):
        is_there = not connection.context.joint and _is_there(connection, entry)
        plan, why = (_flow_plan if is_there else _plan)(connection, entry)
        if why and not is_there:
            done.stays(f"{_shown(entry)}: {why}")
            return
        result = _applied(connection, key, text, plan)
        if result.applied:
            done.there += is_there
            done.back += not is_there
            plan.applied()
            _revive_batch(connection, entry)
            return
        if result.key == key:
            return  # another undo has it
        if result.key == _mark(key):
            again = f"repeat this one in {_AT_WORK:g} s"
            done.stays(f"{_shown(entry)}: another undo is bringing it back; {again}")
            return
    done.stays(f"what {_shown(entry)} needs is changed again and again")


def _applied(connection: Connection, key: str, text: str, plan: Plan) -> Result:
    """Applies the step that brings a job back, and removes its entry."""
    backend = connection.backend
    if connection.context.joint:
        plan.add(Expect(key, text), Unset(key))
        return backend.apply(plan)[0]
    # The entry goes last: an undo that follows a killed one finds it. The mark keeps out others.
    plan.add(Expect(key, text), Expect(_mark(key), None), Set(_mark(key), "", _AT_WORK))
    (result,) = backend.apply(plan)
    if result.applied:
        backend.apply(Step(None, Unset(key, text), Unset(_mark(key))))
    return result


def _mark(key: str) -> str:
    return f"undoing:{key}"


def _plan(connection: Connection, entry: BinEntry) -> tuple[Plan, str]:
    """Returns the step that pushes a job with its facts; or why it cannot be."""
    context = connection.context
    pushing = replace(context.as_it_is(entry.raw, entry.queue), retried=True)
    facts, why = _facts(connection, entry)
    if why:
        return Plan(), why
    plan, why = _flow_plan(connection, entry)
    if why:
        return Plan(), why
    delay = 0.0 if entry.due is None else max(0.0, entry.due - time.time())
    push = replace(
        push_of(pushing),
        delay=delay,
        attempts=entry.attempts,
        notes=entry.notes,
        buried=entry.buried,
    )
    plan.operations = [*facts, push, *plan.operations]
    for feature in context.features_of(pushing.message):
        if feature.key not in _COPIED:
            feature.push(context, pushing, plan)
    return plan, ""


def _flow_plan(connection: Connection, entry: BinEntry) -> tuple[Plan, str]:
    """Returns the step after which the flow of a job waits for it; or why it cannot be."""
    plan, place = Plan(), _place(connection, entry)
    if place is None:
        return plan, ""
    why = plan_back(connection.context, place, entry.node or "", plan)
    return plan, why


def _place(connection: Connection, entry: BinEntry) -> NodePlace | None:
    """Returns the node of a flow that a removed job belongs to."""
    if entry.node is None:
        return None
    return NodePlace.of(connection.context.as_it_is(entry.raw, entry.queue).message)


def _facts(connection: Connection, entry: BinEntry) -> tuple[list[Operation], str]:
    """Returns the operations that write what was kept of a job; or what is in the way."""
    keys = [each.key for each in entry.facts]
    now = connection.backend.read(*keys) if keys else []
    made: list[Operation] = []
    for fact, holds in zip(entry.facts, now, strict=True):
        if fact.rank is not None:
            ttl = math.inf if fact.ttl is None else fact.ttl
            made += [Unset(fact.key), Raise(fact.key, fact.rank, fact.value, min(ttl, 1e9))]
        elif holds is None:
            made += [Expect(fact.key, None), Set(fact.key, fact.value, fact.ttl)]
        elif holds != fact.value:
            return [], f"{one_line(holds, 60)}, dispatched meanwhile, has {one_line(fact.key, 80)}"
    return made, ""


def _is_there(connection: Connection, entry: BinEntry) -> bool:
    """Whether a job is in its queue, where it may have been pushed without its entry's removal.

    Or has been: the flow of a job says so.
    """
    place = _place(connection, entry)
    if place is not None and ended_since(connection.context, place, entry.node or ""):
        return True
    uuid = envelope.uuid_of(entry.raw)
    if not uuid or Capability.SEARCH not in connection.capabilities:
        return False
    return connection.find(uuid, entry.queue) is not None


def _revive_batch(connection: Connection, entry: BinEntry) -> None:
    """Lets the batch go on that the removal of this job has cancelled."""
    kept = connection.batches() if entry.batch else None
    if kept is not None:
        kept.revive(entry.batch)


def _bring_back_failed(
    connection: Connection, entry: BinEntry, key: str, text: str, done: Undone
) -> None:
    record, store = entry.record, connection.failed
    assert record is not None  # noqa: S101 (the caller's)
    facts, why = _facts(connection, entry)
    there = store.find(record.uuid)
    if there is not None and not there.is_of(record.failed_at):
        why = "it has failed anew meanwhile"
    if why:
        done.stays(f"{_shown(entry)}: {why}")
        return
    steps = [Step(None, Expect(key, text), Unset(key), *facts)]
    if there is None and store.place is connection.backend and connection.context.joint:
        steps = [Step(None, *steps[0].operations, Record(record))]
    elif there is None:  # in two: one that was killed in between finds the record
        store.place.apply(Step(None, Record(record)))
    (result,) = connection.backend.apply(*steps)
    if result.applied:
        done.there += there is not None
        done.back += there is None
    elif result.key != key:
        done.stays(f"what {_shown(entry)} needs was changed meanwhile")


def _shown(entry: BinEntry) -> str:
    uuid = envelope.uuid_of(entry.raw)
    return f"{one_line(uuid, 60) or 'a job'} of {entry.queue}"
