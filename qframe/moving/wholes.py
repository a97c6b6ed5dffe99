"""Wholes: what is kept of a batch or a flow, with all batches and the chain that belong to it.

A whole can move once each of its jobs has ended, is not pushed yet, or is parked. All that was read
of it is expected in the step that takes it away, so nothing of it has gone on meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qframe.connection import Connection
from qframe.contracts.facts import FactCopy, LatchCopy
from qframe.contracts.flow import NodeState
from qframe.contracts.step import (
    Arrive,
    Close,
    Expect,
    Extend,
    Operation,
    Push,
    Set,
    Unset,
)
from qframe.exceptions import QframeError
from qframe.features import chain, flow
from qframe.features.base import Plan
from qframe.features.batch import BatchMember, batch_key, batch_of
from qframe.features.batches import BatchStore, StoredBatch
from qframe.features.chain import is_id, named_id
from qframe.features.flow import Edges, NodePlace, flow_key
from qframe.features.flows import FlowStore
from qframe.moving.facts import copied
from qframe.payload.text import one_line

MOST = 100_000
"""The members of the largest batch that moves."""
_MOST_FACTS = 10_000
"""The facts of the largest flow that moves: they leave in one step."""
_AT_ONCE = 500
WAITS = "its batch or flow moves once none of its jobs runs"
_CALLBACKS = "qframe.features.batch_jobs.RunBatchCallbacks"
_OF_FLOWS = "qframe.features.flow_jobs."
_FLOW = "flow."
"""How the names of flows begin, among those of batches."""


class StayingWhole(Exception):
    """A batch or a flow cannot move now; the message says why."""


class ParkedMessage(NamedTuple):
    """A parked job: the batch or flow it was parked for, and its payload."""

    identity: str
    message: Mapping[str, Any]


def identity_of(message: Mapping[str, Any]) -> str | None:
    """Return the batch, or `flow.` and the flow, that a job can only move with."""
    name, data = str(message.get("job")), message.get("data")
    of = data.get("of") if isinstance(data, dict) else None
    named = of if isinstance(of, str) and is_id(of) else None
    if name == _CALLBACKS:
        return named
    if name.startswith(_OF_FLOWS) and named is not None:
        return f"{_FLOW}{named}"
    place = NodePlace.of(message)
    return batch_of(message) if place is None else f"{_FLOW}{place.flow}"


def begun_batch(message: Mapping[str, Any]) -> str | None:
    """Return the batch that this job of a chain begins."""
    said = message.get(chain.KEY)
    return named_id(said, "batch") if isinstance(said, dict) else None


def is_of_whole(message: Mapping[str, Any]) -> bool:
    """Whether a job is of a batch or a flow, or begins a batch."""
    return identity_of(message) is not None or begun_batch(message) is not None


class Wholes:
    """Finds what belongs together at a connection. Raises `BackendUnavailable`."""

    def __init__(self, source: Connection) -> None:
        self._source = source
        self._batches = BatchStore(source.context)

    def unfinished(self) -> tuple[int, int]:
        """Count the flows and the batches that have not ended."""
        flows = filter(None, map(FlowStore(self._source.context).read, self._listed("flows:")))
        batches = filter(None, map(self._batches.read, self._listed("batches:")))
        return sum(not e.is_finished for e in flows), sum(not e.is_finished for e in batches)

    def _listed(self, prefix: str) -> Iterator[str]:
        return (key.rpartition(":")[2] for key in self._source.store.keys(prefix))

    def is_there(self, identity: str) -> bool:
        """Whether a batch or flow is kept here."""
        if identity.startswith(_FLOW):
            key = flow_key(identity.removeprefix(_FLOW))
            return self._source.backend.read(key) != [None]
        return self._batches.find(identity) is not None

    def path(self, identity: str) -> list[str]:
        """Return a batch or flow, and those around it, the outermost last."""
        found = [identity]
        while not found[-1].startswith(_FLOW):
            batch = self._batches.find(found[-1])
            around = None if batch is None else _around(batch)
            if around is None or around in found:
                break
            found.append(around)
        return found

    def gather(self, parts: Sequence[str], parked: Sequence[ParkedMessage]) -> Whole | None:
        """Return all that is kept of them; None if nothing is. Raises `StayingWhole`."""
        whole = Whole(self._source, parked)
        stored = {each: found for each in parts if (found := self._batches.find(each)) is not None}
        for each, batch in stored.items():
            whole.add_batch(each, batch, stored)
        for each in parts:
            if each.startswith(_FLOW):
                whole.add_flow(each.removeprefix(_FLOW), stored)
        return whole if whole.copies else None


class Whole:
    """The facts and latches of a whole, and the jobs to push so that it goes on."""

    def __init__(self, source: Connection, parked: Sequence[ParkedMessage]) -> None:
        self.source = source
        self._parked = parked
        self.copies: dict[str, FactCopy] = {}
        self.absent: list[str] = []
        """The facts that are not there, and would be if it had gone on."""
        self.pushes: list[Push] = []
        """The internal jobs that may be due; they do no harm if they are not."""
        self._latches: list[LatchCopy] = []

    # -- leaving and arriving ---------------------------------------------------------------------

    def leaving(self) -> list[Operation]:
        """Return the operations that remove it, unless something of it has changed."""
        expected = [Expect(each.key, each.value) for each in self.copies.values()]
        absent = [Expect(key, None) for key in self.absent]
        latches = [Unset(each.opened.latch) for each in self._latches]
        return [*expected, *absent, *map(Unset, self.copies), *latches]

    def arriving(self, connection: str) -> list[Operation]:
        """Return the operations that make it again, and look once at what is due."""
        made: list[Operation] = []
        for latch in self._latches:
            made += _restored(latch)
        heads = {each.opened.latch for each in self._latches}
        for each in self.copies.values():
            is_head = each.key in heads and each.value.startswith("{")
            value = _renamed(each.value, connection) if is_head else each.value
            made.append(Set(each.key, value, each.ttl))
        return [*made, *self.pushes]

    # -- reading ----------------------------------------------------------------------------------

    def _keep(self, keys: Sequence[str]) -> dict[str, str]:
        """Copy facts. Returns their values. Raises `StayingWhole`."""
        found: dict[str, str] = {}
        for begin in range(0, len(keys), _AT_ONCE):
            for each in copied(self.source, keys[begin : begin + _AT_ONCE]):
                self.copies[each.key] = each
                found[each.key] = each.value
        if len(self.copies) > _MOST_FACTS:
            raise StayingWhole(f"its flow has more than {_MOST_FACTS:,} facts")
        return found

    def latch(self, key: str) -> LatchCopy | None:
        """Copy a latch; None if there is none."""
        found = self.source.backend.copy_latch(key)
        if found is not None:
            self._latches.append(found)
        return found

    def _index(self, prefix: str, identity: str) -> list[str]:
        """Return the key by which it is listed."""
        keys = self.source.store.keys(prefix)
        return [each for each in keys if each.endswith(f":{identity}")]

    # -- batches ----------------------------------------------------------------------------------

    def add_batch(
        self, identity: str, batch: StoredBatch, others: Mapping[str, StoredBatch]
    ) -> None:
        """Add a batch, and the chain of which it is a link. Raises `StayingWhole`."""
        if batch.refused is not None:
            raise StayingWhole(one_line(str(batch.refused), 200))
        key = batch_key(identity)
        latch = self.latch(key)
        if latch is None:
            return
        if latch.size > MOST:
            raise StayingWhole(f"its batch has more than {MOST:,} members")
        self._keep([key, *self.source.store.keys(f"{key}:"), *self._index("batches:", identity)])
        if link := named_id(batch.record.options, "chain"):
            self._keep([f"chain:{link}", *self.source.store.keys(f"chain:{link}:")])
        members = [BatchMember.of(each.message) for each in self._parked]
        members += [_member_of(each) for each in others.values()]
        there = {each.number for each in members if each is not None and each.batch == identity}
        if not latch.closed or {*range(latch.size)} - _ended(latch) - there:
            raise StayingWhole(WAITS)
        self.pushes.append(latch.opened.then)

    # -- flows ------------------------------------------------------------------------------------

    def add_flow(self, identity: str, batches: Mapping[str, StoredBatch]) -> None:
        """Add a flow. Raises `StayingWhole`."""
        key = flow_key(identity)
        has_moved = self.source.backend.read(key) == [None]  # its latches may be left
        latch = None if has_moved else self.latch(key)
        if latch is None:
            return
        keys = [key, *self.source.store.keys(f"{key}:"), *self._index("flows:", identity)]
        if len(keys) > _MOST_FACTS:
            raise StayingWhole(f"its flow has more than {_MOST_FACTS:,} facts")
        values = self._keep(keys)
        places = [NodePlace.of(each.message) for each in self._parked]
        places += [_place_of(each) for each in batches.values()]
        there = [each for each in places if each is not None and each.flow == identity]
        try:
            FlowPart(self, identity, values, there).add(latch.size)
        except QframeError as error:
            raise StayingWhole(one_line(str(error), 200)) from None
        self.pushes.append(latch.opened.then)


class FlowPart:
    """One flow of a whole: `values` are its facts, `there` the places of its parked jobs."""

    def __init__(
        self, whole: Whole, identity: str, values: Mapping[str, str], there: Sequence[NodePlace]
    ) -> None:
        self._whole = whole
        self._context = whole.source.context
        self._id = identity
        self._values = values
        self._there = there
        self._joins: dict[int, LatchCopy] = {}

    def add(self, total: int) -> None:
        """Add its latches and what is due. Raises `StayingWhole`, or `QframeError`."""
        edges = {number: self._edges(number) for number in range(total)}
        for number, each in edges.items():
            if each is None:
                raise StayingWhole("what is kept of its flow is not complete")
            self._add_node(number, each)
        edges[flow.ROOT] = self._edges(flow.ROOT)
        for number, each in edges.items():
            if each is not None and self._is_followed(number, each):
                self._follow(number)

    def _edges(self, number: int) -> Edges | None:
        text = self._values.get(flow.edges_key(self._id, number))
        return flow.read_edges(self._context, self._id, number, text)

    def _state(self, number: int) -> NodeState | None:
        key = flow.state_key(self._id, number)
        ended = flow.read_state(self._context, key, self._values.get(key))
        return None if ended is None else ended.state

    def _waits(self, number: int) -> bool:
        """Whether the jobs of a node are not pushed yet."""
        return flow.jobs_key(self._id, number) in self._values

    def _add_node(self, number: int, edges: Edges) -> None:
        has_ended = self._state(number) is not None
        if len(edges.after) > 1:
            join = self._whole.latch(flow.join_key(self._id, number))
            if join is not None:
                self._joins[number] = join
                if self._waits(number) and len(_ended(join)) >= join.size:
                    self._whole.pushes.append(join.opened.then)
        items = self._whole.latch(flow.map_key(self._id, number)) if edges.is_map else None
        if items is not None and not has_ended:
            self._whole.pushes.append(items.opened.then)
        if not has_ended:
            self._whole.absent.append(flow.state_key(self._id, number))
            if not (self._waits(number) or self._is_there(number, items)):
                raise StayingWhole(WAITS)

    def _is_there(self, number: int, items: LatchCopy | None) -> bool:
        """Whether the jobs of a node that was pushed are parked, and none runs."""
        here = [each for each in self._there if each.node == number]
        alone = any(each.item < 0 for each in here)
        if items is None:
            return alone
        pushed = items.size if items.closed else self._count(number)
        left = {*range(pushed)} - _ended(items) - {each.item for each in here}
        return not left and (alone or items.closed)

    def _count(self, number: int) -> int:
        """Return how many jobs of a map were pushed so far."""
        key = flow.map_key(self._id, number)
        text = self._values.get(key)
        count = "0" if text is None else self._context.opened(key, text).text
        if not (count.isascii() and count.isdigit() and int(count) <= MOST):
            raise StayingWhole("what is kept of a map in its flow is no count")
        return int(count)

    # -- what may be due --------------------------------------------------------------------------

    def _is_followed(self, number: int, edges: Edges) -> bool:
        """Whether a job may be about to push, or cancel, what follows a node."""
        state = NodeState.DONE if number == flow.ROOT else self._state(number)
        if state is None:
            return False
        if edges.cancels(state):
            waiting = flow.jobs_key(self._id, 0).removesuffix("0")
            return any(key.startswith(waiting) for key in self._values)
        if not edges.goes_on(state):
            return False
        return any(self._waits(to) and not self._has_arrived(to, slot) for to, slot in edges.to)

    def _has_arrived(self, number: int, slot: int) -> bool:
        join = self._joins.get(number)
        return slot >= 0 and join is not None and slot in _ended(join)

    def _follow(self, number: int) -> None:
        key = flow.follow_key(self._id)
        text = self._values.get(key)
        if text is None:
            raise StayingWhole("what is kept of its flow is not complete")
        (job,) = self._context.kept_jobs(key, text)
        plan = Plan()
        chain.plan_prepared(self._context, flow.follow_job(job, number), plan)
        self._whole.pushes += [each for each in plan.operations if isinstance(each, Push)]


def _around(batch: StoredBatch) -> str | None:
    """Return the flow, or the batch, that a batch is a part of."""
    place, member = _place_of(batch), _member_of(batch)
    if place is not None:
        return f"{_FLOW}{place.flow}"
    return None if member is None else member.batch


def _place_of(batch: StoredBatch) -> NodePlace | None:
    link = batch.record.options.get("chain")
    return NodePlace.of(link) if isinstance(link, dict) else None


def _member_of(batch: StoredBatch) -> BatchMember | None:
    link = batch.record.options.get("chain")
    member = link.get("member") if isinstance(link, dict) else None
    return BatchMember.of({"batch": member}) if isinstance(member, dict) else None


def _ended(latch: LatchCopy) -> set[int]:
    return {*latch.done, *latch.failed}


def _restored(latch: LatchCopy) -> Iterator[Operation]:
    """Return the operations that make a latch again."""
    key = latch.opened.latch
    yield latch.opened
    if latch.size:
        yield Extend(key, latch.size)
    for each, label in latch.failed.items():
        yield Arrive(key, each, failed=True, label=label, push=False)
    for each in latch.done:
        yield Arrive(key, each, push=False)
    if latch.closed:
        yield Close(key, push=False)


def _renamed(text: str, connection: str) -> str:
    """Return the fact of a batch or flow with its new connection."""
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    return json.dumps({**fields, "connection": connection}, ensure_ascii=False)
