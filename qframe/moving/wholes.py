"""Wholes: what is kept of a batch or a flow, with all batches and the chain that belong to it.

A whole can move once each of its jobs has ended, is not pushed yet, or is parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qframe.connection import Connection
from qframe.exceptions import QframeError
from qframe.features import batches, chain, flows
from qframe.features.batch import BatchMember, batch_key, batch_of
from qframe.features.batches import BatchStore, StoredBatch
from qframe.features.chain import is_id, named_id
from qframe.features.flow import NodePlace, flow_key
from qframe.features.flows import FlowStore
from qframe.moving.flow_part import FlowPart
from qframe.moving.whole import MOST, MOST_FACTS, WAITS, StayingWhole, Whole, ended_members
from qframe.payload.text import one_line

_CALLBACKS = "qframe.features.batch_jobs.RunBatchCallbacks"
_OF_FLOWS = "qframe.features.flow_jobs."
_FLOW = "flow."
"""How the names of flows begin, among those of batches."""


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
        flows, batches = FlowStore(self._source.context).all(), self._batches.all()
        return sum(not e.is_finished for e in flows), sum(not e.is_finished for e in batches)

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

    def gather(self, parts: Sequence[str], parked: Sequence[Mapping[str, Any]]) -> Whole | None:
        """Return all that is kept of them; None if nothing is. Raises `StayingWhole`.

        `parked` are the payloads of the jobs that wait for them.
        """
        whole = Whole(self._source)
        stored = {each: found for each in parts if (found := self._batches.find(each)) is not None}
        members = [*map(BatchMember.of, parked), *map(_member_of, stored.values())]
        for each, batch in stored.items():
            there = {of.number for of in members if of is not None and of.batch == each}
            self._add_batch(whole, each, batch, there)
        places = [*map(NodePlace.of, parked), *map(_place_of, stored.values())]
        for flow in (each.removeprefix(_FLOW) for each in parts if each.startswith(_FLOW)):
            nodes = [of for of in places if of is not None and of.flow == flow]
            self._add_flow(whole, flow, nodes)
        return whole if whole.copies else None

    def _add_batch(self, whole: Whole, identity: str, batch: StoredBatch, there: set[int]) -> None:
        """Add a batch, and the chain of which it is a link; `there`: its members that are parked.

        Raises `StayingWhole`.
        """
        if batch.refused is not None:
            raise StayingWhole(one_line(str(batch.refused), 200))
        key = batch_key(identity)
        latch = whole.latch(key)
        if latch is None:
            return
        if latch.size > MOST:
            raise StayingWhole(f"its batch has more than {MOST:,} members")
        whole.keep([*self._below(key), batches.index_key(identity, batch.record.created_at)])
        if link := named_id(batch.record.options, "chain"):
            whole.keep(self._below(f"chain:{link}"))
        if not latch.closed or {*range(latch.size)} - ended_members(latch) - there:
            raise StayingWhole(WAITS)
        whole.pushes.append(latch.opened.then)

    def _add_flow(self, whole: Whole, identity: str, there: Sequence[NodePlace]) -> None:
        """Add a flow; `there` are the places of its parked jobs. Raises `StayingWhole`."""
        key = flow_key(identity)
        has_moved = self._source.backend.read(key) == [None]  # its latches may be left
        latch = None if has_moved else whole.latch(key)
        if latch is None:
            return
        keys = self._below(key)
        if (record := FlowStore(self._source.context).read(identity)) is not None:
            keys.append(flows.index_key(identity, record.created_at))
        if len(keys) > MOST_FACTS:
            raise StayingWhole(f"its flow has more than {MOST_FACTS:,} facts")
        values = whole.keep(keys)
        try:
            FlowPart(whole, identity, values, there).add(latch.size)
        except QframeError as error:
            raise StayingWhole(one_line(str(error), 200)) from None
        whole.pushes.append(latch.opened.then)

    def _below(self, key: str) -> list[str]:
        """Return the key of a batch, a flow or a chain, and those of what is kept of it."""
        return [key, *self._source.store.keys(f"{key}:")]


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
