"""A job of a flow comes back from the bin: its node, or part of a map, has not ended any more."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from qframe.contracts.flow import NodeState
from qframe.contracts.step import Expect, Leave, Set, Unset
from qframe.exceptions import QframeError
from qframe.features import flow
from qframe.features.base import Plan
from qframe.features.context import Context
from qframe.features.flow import KEPT, NodePlace, state_word
from qframe.features.flow_return import LATER, binned_fact, binned_until
from qframe.features.flows import FlowStore, StoredFlow


def is_over(context: Context, place: NodePlace) -> bool:
    """Whether the flow of a job was cancelled, so that the job would be skipped."""
    (head,) = context.backend.read(flow.flow_key(place.flow))
    return head is not None and flow.is_cancelled(head)


def state_before(context: Context, place: NodePlace) -> str:
    """Return the state of a waiting job's node, to be written again; "" if it has none.

    A retried job has one if the flow has gone on after its failure.
    """
    (text,) = context.backend.read(place.state_key)
    return text or ""


def ended_since(context: Context, place: NodePlace, before: str) -> str:
    """Return how a removed job of a flow has ended since, as it was back; "" if it has not."""
    (own,) = context.backend.read(place.state_key)
    return _ended(context, place, before, own)


def _ended(context: Context, place: NodePlace, before: str, own: str | None) -> str:
    state = state_word(context, place.state_key, own)
    return "" if own in {None, before} or state in {None, NodeState.CANCELLED} else str(state)


def plan_back(context: Context, place: NodePlace, before: str, plan: Plan) -> str:
    """Add to a plan that a removed job of a flow is there again; `before` was its state.

    Returns why it cannot be; "" if it can. Raises `BackendUnavailable`, `InvalidSignature` or
    `InvalidPayload`.
    """
    flows, node = FlowStore(context), NodePlace(place.flow, place.node)
    found = flows.find(place.flow)
    kept, own, whole, binned = context.backend.read(
        flow.edges_key(place.flow, place.node),
        place.state_key,
        node.state_key,
        flow.binned_key(place.flow, place.node),
    )
    edges = flow.read_edges(context, place.flow, place.node, kept)
    if found is None or edges is None or not _has_map(context, place):
        return "its flow is not kept any more"
    if found.record.cancelled_at is not None:
        return "its flow was cancelled meanwhile"
    if state := _ended(context, place, before, own):
        return f"its node of the flow is {state} meanwhile"
    _plan_head(flows, found, plan)
    has_ended = state_word(context, node.state_key, whole) is NodeState.CANCELLED
    plan.add(Expect(place.state_key, own))
    if place.item >= 0:
        plan.add(Expect(node.state_key, whole))
    if before:  # its end was counted before, and the flow has gone on
        plan.add(Set(place.state_key, before, KEPT))
    else:
        _plan_not_ended(place, plan, has_ended=has_ended)
    plan.add(binned_fact(node, max(binned_until(binned), time.time() + LATER)))
    if edges.to and (has_ended or place.item < 0 or not context.joint):
        # A worker does it if this process dies in between.
        flow.plan_follow_job(context, place.flow, place.node, plan)
        plan.then(partial(_follow, flows, place))
    return ""


def _has_map(context: Context, place: NodePlace) -> bool:
    """Whether what counts the jobs of a map is there, for one of these."""
    key = flow.map_key(place.flow, place.node)
    return place.item < 0 or context.backend.latch(key) is not None


def _plan_head(flows: FlowStore, found: StoredFlow, plan: Plan) -> None:
    """Add that the flow has not ended, and was not cancelled."""
    record = found.record
    if "end" in record.notified:
        flows.keep_on(found)
        plan.add(*found.changed(notified=sorted(record.notified - {"end"})))
    else:
        plan.add(Expect(flow.flow_key(record.id), found.text))


def _plan_not_ended(place: NodePlace, plan: Plan, *, has_ended: bool) -> None:
    if place.item >= 0:
        key = flow.map_key(place.flow, place.node)
        plan.add(Unset(place.state_key), Leave(key, place.item))
    if has_ended:
        node = NodePlace(place.flow, place.node)
        plan.add(Unset(node.state_key), Leave(flow.flow_key(place.flow), place.node))


def _follow(flows: FlowStore, place: NodePlace) -> None:
    with suppress(QframeError):
        flows.follow(place.flow, place.node)
