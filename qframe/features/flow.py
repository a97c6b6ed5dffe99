"""Flows: a graph of jobs; each is pushed when those before it are done, and may get their results.

A node is a job, a chain, a batch, or a map: a job for each item of a list. A flow has these facts,
each signed for its key if there is a signing key, and these latches:

- `flow:ID`: what it is called, and later decisions. The latch `flow:ID` counts the ended nodes.
- `flow:ID:e:N`: node N, what it follows, and what follows it; -1 stands before the first ones.
- `flow:ID:j:N`: the jobs of node N until they are pushed. The step that pushes them expects this
  fact and removes it, so a node is pushed once.
- `flow:ID:s:N`: how node N ended, and its result; `flow:ID:s:N:I` for job I of a map.
- the latch `flow:ID:join:N` counts the nodes before N, if they are several, and pushes a job that
  pushes N (`flow_jobs.py`). The latch `flow:ID:map:N` counts the jobs of a map, and the fact of
  this name says how many were pushed.
- `flow:ID:b:N`: until when a removed job of node N is in the bin. `flow:ID:c:N`: the jobs of node
  N, cancelled because of such a removal, for as long (`flow_return.py`).
- `flow:ID:follow`: the job that follows a node with many after it. `flow:ID:catch`: the jobs to
  push after a failure. `flows:TIME:ID` lists the flows, the latest first.

The end step of a node writes its state, counts it, and pushes what follows; after a node with many
behind it a job does that in portions.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json, to_json

from qframe.contracts.flow import NodeState
from qframe.contracts.status import State
from qframe.contracts.step import Arrive, Expect, Set, Unset
from qframe.exceptions import (
    InvalidArguments,
    InvalidPayload,
    InvalidSignature,
    QframeError,
    ResultMissing,
)
from qframe.features import chain
from qframe.features.base import DONE_BEFORE, End, Plan, Pushing
from qframe.features.chain import ChainPlan, is_id
from qframe.features.context import Context, Prepared
from qframe.features.refused import RefusedText, refuse
from qframe.features.reserved import Feature, ReservedJob
from qframe.features.status import as_json
from qframe.jobs.references import NODE_KEY, Template, filled, nodes_of
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.payload import encryption, envelope, secret, tracebacks
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

KEY = NODE_KEY
KEPT = chain.KEPT_IN_FLOW
"""Seconds that everything is kept, from when it was written."""
KEPT_AFTER = 7 * 86400.0
"""Seconds that results are kept after the end of a flow in which nothing has failed."""
ROOT = -1
"""The number that stands before the nodes that follow none."""
MANY = 50
"""Following nodes up to which the end step pushes them itself."""
AT_ONCE = 100
"""Facts that are read or written together."""
BLOCK, CONTINUE, CANCEL = "block", "continue", "cancel"
_MOST = 2**31
_MOST_ITEMS = 10_000_000
"""Jobs of a map above which what is kept of it was certainly not written here."""


class NodePlace(NamedTuple):
    """The node that a job belongs to."""

    flow: str
    node: int
    item: int = -1
    """The job's number in a map; -1 for other nodes."""
    expands: bool = False
    """Whether the job pushes the jobs of a map, whose end is then that of the node."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> NodePlace | None:
        """Return the place in a payload; None if it has none that is valid."""
        named = message.get(KEY)
        if not isinstance(named, dict):
            return None
        flow, node, item = named.get("id"), named.get("n"), named.get("i", -1)
        if not (isinstance(flow, str) and is_id(flow) and type(node) is type(item) is int):
            return None
        if not (0 <= node < _MOST and -1 <= item < _MOST):
            return None
        return cls(flow, node, item, bool(named.get("expands")))

    def keys(self) -> dict[str, Any]:
        named: dict[str, Any] = {"id": self.flow, "n": self.node}
        if self.item >= 0:
            named["i"] = self.item
        if self.expands:
            named["expands"] = True
        return {KEY: named}

    @property
    def state_key(self) -> str:
        key = state_key(self.flow, self.node)
        return f"{key}:{self.item}" if self.item >= 0 else key


def flow_key(flow: str) -> str:
    """Return the key of a flow, for its fact and its latch."""
    return f"flow:{flow}"


def edges_key(flow: str, node: int) -> str:
    return f"flow:{flow}:e:{node}"


def jobs_key(flow: str, node: int) -> str:
    return f"flow:{flow}:j:{node}"


def state_key(flow: str, node: int) -> str:
    return f"flow:{flow}:s:{node}"


def binned_key(flow: str, node: int) -> str:
    return f"flow:{flow}:b:{node}"


def cancelled_key(flow: str, node: int | str = "") -> str:
    """Return the key of the jobs of a cancelled node; without one, what all keys begin with."""
    return f"flow:{flow}:c:{node}"


def join_key(flow: str, node: int) -> str:
    return f"flow:{flow}:join:{node}"


def map_key(flow: str, node: int) -> str:
    return f"flow:{flow}:map:{node}"


def follow_key(flow: str) -> str:
    return f"flow:{flow}:follow"


def catch_key(flow: str) -> str:
    return f"flow:{flow}:catch"


# -- what is kept of a node -----------------------------------------------------------------------


class Edges(NamedTuple):
    """A node's place in the graph."""

    name: str
    uuid: str
    on_failure: str
    after: Sequence[int]
    to: Sequence[tuple[int, int]]
    """The following nodes, each with this node's number among those before it; -1: the only one."""
    is_map: bool = False
    batches: Sequence[str] = ()
    """The ids of the batches in it."""

    def goes_on(self, state: NodeState) -> bool:
        """Whether the following nodes begin after this end of the node."""
        if state is NodeState.FAILED:
            return self.on_failure == CONTINUE
        return state in {NodeState.DONE, NodeState.SKIPPED}

    def cancels(self, state: NodeState) -> bool:
        """Whether the following nodes are cancelled after this end of the node."""
        failed = state is NodeState.FAILED
        return self.on_failure == CANCEL if failed else state is NodeState.CANCELLED


class Ended(NamedTuple):
    """How a node, or a job of a map, has ended."""

    state: NodeState
    at: float
    uuid: str = ""
    """The job that ended it."""
    name: str = ""
    error: str = ""
    remark: str = ""
    """Why there is no result."""
    jobs: int | None = None
    """How many jobs a map has; their results are its result."""
    result: Any = None
    was_encrypted: bool = False
    """Whether the result was stored encrypted."""
    vouched: bool = True
    """Whether what is made of the result may be signed."""


def written_edges(context: Context, flow: str, node: int, edges: Edges) -> Set:
    key = edges_key(flow, node)
    return Set(key, context.sealed(key, to_json(edges._asdict()).decode()), KEPT)


def read_edges(context: Context, flow: str, node: int, text: str | None) -> Edges | None:
    """Decode `flow:ID:e:N`; None for None. Raises `InvalidSignature` or `InvalidPayload`."""
    if text is None:
        return None
    found, _ = _opened(context, edges_key(flow, node), text)
    try:
        edges = Edges(**found)
        to = [(int(number), int(slot)) for number, slot in edges.to]
        after, batches = [int(each) for each in edges.after], [str(each) for each in edges.batches]
        return edges._replace(to=to, after=after, batches=batches)
    except (ValueError, TypeError) as error:
        raise InvalidPayload(f"node {node} of the flow {flow} cannot be read: {error}") from None


def written_state(
    context: Context, key: str, ended: Ended, result: str = "", *, encrypt: bool = False
) -> Set:
    """Return the fact with how a node has ended, and with the JSON of its result."""
    fields = {name: value for name, value in ended._asdict().items() if value not in {None, ""}}
    fields.pop("result", None)
    del fields["was_encrypted"], fields["vouched"]
    if result and encrypt:
        message = b'{"job":%s,"data":%s}' % (to_json(key), result.encode())
        fields |= context.keyring.sealed(key, message)
    text = to_json(fields).decode()
    if result and not encrypt:
        text = f'{text[:-1]},"result":{result}}}'
    return Set(key, context.sealed(key, text), KEPT)


def read_state(context: Context, key: str, text: str | None) -> Ended | None:
    """Decode `flow:ID:s:N`; None for None.

    Raises `InvalidSignature`, `CannotDecrypt` or `InvalidPayload`.
    """
    if text is None:
        return None
    found, vouched = _opened(context, key, text)
    try:
        if encryption.KEY in found:
            found["result"] = context.keyring.opened(key, {encryption.KEY: found[encryption.KEY]})
            del found[encryption.KEY]
            found["was_encrypted"] = True
        ended = Ended(**{**found, "state": NodeState(found["state"]), "vouched": vouched})
        if ended.jobs is not None and not 0 <= ended.jobs <= _MOST_ITEMS:
            raise ValueError(f"{ended.jobs} jobs")
        return ended
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidPayload(f"what is kept as {key} cannot be read: {error}") from None


def _opened(context: Context, key: str, text: str) -> tuple[dict[str, Any], bool]:
    kept = context.opened(key, text)
    try:
        found = from_json(kept.text)
    except ValueError as error:
        raise InvalidPayload(f"what is kept as {key} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidPayload(f"what is kept as {key} cannot be read")
    return found, kept.vouched


def written_jobs(context: Context, flow: str, node: int, jobs: ChainPlan) -> Set:
    key = jobs_key(flow, node)
    return Set(key, context.sealed(key, to_json(jobs.fields()).decode()), KEPT)


def read_jobs(context: Context, flow: str, node: int, text: str) -> ChainPlan:
    """Decode `flow:ID:j:N`. Raises `InvalidSignature` or `InvalidPayload`."""
    key = jobs_key(flow, node)
    kept = context.opened(key, text)
    try:
        found = ChainPlan.of(from_json(kept.text), vouched=kept.vouched)
        if not found.links:
            raise ValueError("it has no jobs")
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidPayload(f"what is kept as {key} is no job: {one_line(repr(error))}") from None


# -- results --------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value with results in it."""

    value: Any
    was_encrypted: bool
    """Whether one of the results was stored encrypted."""
    vouched: bool
    """Whether what is made of it may be signed."""


def results(context: Context, flow: str, nodes: Iterable[int]) -> Value:
    """Read the results of nodes, by number: None for one without; a list for a map.

    Raises `ResultMissing` for one that JSON could not carry, or that is not kept (any more).
    """
    wanted = sorted({*nodes})
    found: dict[int, Any] = {}
    was_encrypted, vouched = False, True
    for node, ended in states(context, [state_key(flow, node) for node in wanted]):
        number = wanted[node]
        if ended is None:
            raise ResultMissing(f"the result of node {number} is not kept (any more)")
        was_encrypted |= ended.was_encrypted
        vouched &= ended.vouched
        if ended.jobs is None:
            found[number] = _result_of(ended, f"node {number}")
            continue
        keys = [f"{state_key(flow, number)}:{item}" for item in range(ended.jobs)]
        items = [*states(context, keys)]
        there = [each for _, each in items if each is not None]
        was_encrypted |= any(each.was_encrypted for each in there)
        vouched &= all(each.vouched for each in there)
        found[number] = [
            None if each is None else _result_of(each, f"job {item} of node {number}")
            for item, each in items
        ]
    return Value(found, was_encrypted, vouched)


def _result_of(ended: Ended, what: str) -> Any:  # noqa: ANN401 (any JSON value)
    if ended.remark and ended.state is NodeState.DONE:
        raise ResultMissing(f"{what} ({ended.name}) has no result: {ended.remark}")
    return ended.result


def states(context: Context, keys: Sequence[str]) -> Iterator[tuple[int, Ended | None]]:
    for begin in range(0, len(keys), AT_ONCE):
        some = keys[begin : begin + AT_ONCE]
        texts = context.backend.read(*some)
        for place, (key, text) in enumerate(zip(some, texts, strict=True), begin):
            yield place, read_state(context, key, text)


def value_of(context: Context, flow: str, template: Template, sealed_for: str = "") -> Value:
    """Return the value of a template with the results of nodes in it.

    Raises `ResultMissing`, `InvalidArguments`, `InvalidSignature`, `CannotDecrypt` or
    `InvalidPayload`.
    """
    try:
        found, was_encrypted, vouched = results(context, flow, nodes_of(template))
        value = filled(
            template, found.__getitem__, lambda data: context.keyring.opened(sealed_for, data)
        )
        return Value(value, was_encrypted, vouched)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, QframeError):
            raise
        raise InvalidArguments(f"its references are none: {one_line(repr(error), 100)}") from None


# -- the feature ----------------------------------------------------------------------------------


class FlowFeature(Feature):
    """Ends a node in the step that ends its job, and pushes what follows."""

    key: ClassVar[str] = KEY
    passes_result: ClassVar[bool] = True
    asks: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """A node whose job is retried by hand has not ended any more."""
        place = NodePlace.of(job.message) if job.retried else None
        if place is None:
            return
        (text,) = context.backend.read(edges_key(place.flow, place.node))
        with suppress(InvalidSignature, InvalidPayload):
            edges = read_edges(context, place.flow, place.node, text)
            if edges is not None and edges.on_failure != CONTINUE:
                node = NodePlace(place.flow, place.node)
                plan.add(*{Unset(place.state_key), Unset(node.state_key)})

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip a job whose node has ended, or whose flow was cancelled."""
        place = NodePlace.of(job.payload)
        if place is None:
            return None
        context = job.context
        head, text = context.backend.read(flow_key(place.flow), place.state_key)
        with_state = state_word(context, place.state_key, text)
        if with_state is NodeState.DONE:
            job.read_once(KEY, lambda: NodeState.DONE)
            return f"{DONE_BEFORE}its flow has gone on"
        is_over = with_state is NodeState.CANCELLED or (head is not None and is_cancelled(head))
        # A batch that has begun, and was cancelled, is still to be closed.
        if is_over and not chain.waits_for_batch(job):
            job.read_once(KEY, lambda: NodeState.CANCELLED)
            return "its flow was cancelled"
        return None

    def completed_data(self, job: ReservedJob, data: dict[str, Any]) -> dict[str, Any]:
        place, templates = NodePlace.of(job.payload), job.payload.get(REFERENCES)
        if place is None or not isinstance(templates, dict):
            return data
        name = str(job.payload.get("job"))
        found = {
            str(field): value_of(job.context, place.flow, template, name).value
            for field, template in templates.items()
        }
        return {**data, **found}

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """End its node, unless its chain continues."""
        place = NodePlace.of(job.payload)
        if place is None or plan.continues or not end.state.is_final:
            return
        state = _state_after(job, end, plan)
        if place.expands and state is NodeState.DONE:
            return
        plan.waited_for = True
        context = job.context
        ended = Ended(state, round(time.time(), 3), job.own_uuid, job.name)
        text = ""
        if state is NodeState.DONE and end.result is not None:
            text, remark = as_json(end.result)
            if f'"{secret.SHOWN}"' in text:
                text, remark = "", "it holds a Secret, which is not kept in results"
            ended = ended._replace(remark=remark)
        elif state is NodeState.FAILED:
            ended = ended._replace(uuid=job.broken_chain or job.record_uuid, error=_words(job, end))
        else:
            ended = ended._replace(remark=one_line(end.remark, 200))
        encrypt = encryption.is_encrypted(job.payload)
        if place.item < 0:
            plan_end(context, place, ended, plan, text, encrypt=encrypt)
            return
        if end.state is not State.SKIPPED or state is not NodeState.DONE:  # done before
            plan.add(written_state(context, place.state_key, ended, text, encrypt=encrypt))
        failed = state in {NodeState.FAILED, NodeState.CANCELLED}
        label = f"{place.item}:{ended.uuid}" if state is NodeState.FAILED else ""
        plan.add(Arrive(map_key(place.flow, place.node), place.item, failed, label))


_ENDS = {
    State.COMPLETE: NodeState.DONE,
    State.SKIPPED: NodeState.SKIPPED,
    State.FAILED: NodeState.FAILED,
    State.CANCELLED: NodeState.CANCELLED,
}


def _state_after(job: ReservedJob, end: End, plan: Plan) -> NodeState:
    """Return how a node has ended whose last job ends like this."""
    if job.broken_chain:
        return NodeState.FAILED
    state = _ENDS[end.state]
    if state is NodeState.SKIPPED:
        return job.read_once(KEY, lambda: NodeState.SKIPPED)
    return NodeState.FAILED if state is NodeState.DONE and plan.is_cut_off else state


def _words(job: ReservedJob, end: End) -> str:
    if job.broken_chain:
        return "the next link of its chain was refused"
    if end.state is State.COMPLETE:
        return "what follows in its chain is not kept any more"
    error = end.error
    return tracebacks.brief(error, 500) if isinstance(error, BaseException) else str(error or "")


def state_word(context: Context, key: str, text: str | None) -> NodeState | None:
    """Return the state, also if the result cannot be decrypted; None if it cannot be trusted."""
    if text is None:
        return None
    try:
        found, _ = _opened(context, key, text)
        return NodeState(found["state"])
    except (InvalidSignature, InvalidPayload, ValueError, KeyError, TypeError):
        return None


def is_cancelled(head: str) -> bool:
    """Whether what `flow:ID` holds is of a cancelled flow."""
    try:
        return from_json(head).get("cancelled_at") is not None
    except (ValueError, AttributeError):
        return False


def plan_end(
    context: Context, place: NodePlace, ended: Ended, plan: Plan, result: str = "", *, encrypt: bool
) -> None:
    """Add to a plan that a node has ended: its state, and what follows.

    A node that was done stays so. Its end is only counted again: where steps are not atomic, what
    that makes due may not have been pushed.
    """
    flow, node = place.flow, place.node
    key = state_key(flow, node)
    text, before = context.backend.read(edges_key(flow, node), key)
    try:
        edges = read_edges(context, flow, node, text)
    except (InvalidSignature, InvalidPayload) as error:
        kept = RefusedText(
            edges_key(flow, node), text or "", f"node {node} of the flow {flow}", error
        )
        recorded = refuse(context, plan, kept, "")
        plan.add(Arrive(flow_key(flow), node, failed=True, label=f"{node}:{recorded}"))
        return
    if edges is None:
        log.warning("%s: nothing is kept of its flow (any more)", ended.uuid or flow)
        return
    blocks = ended.state is NodeState.FAILED and edges.on_failure != CONTINUE
    label = f"{node}:{ended.uuid}" if blocks else ""
    plan.add(Arrive(flow_key(flow), node, blocks, label))
    was = state_word(context, key, before)
    if was in {NodeState.DONE, NodeState.SKIPPED}:
        if len(edges.to) <= MANY:
            plan.add(*_arrivals(flow, edges.to))
        return
    plan.add(Expect(key, before), written_state(context, key, ended, result, encrypt=encrypt))
    if edges.goes_on(ended.state) and len(edges.to) <= MANY:
        plan_following(context, flow, edges.to, plan)
    elif edges.to and (edges.goes_on(ended.state) or edges.cancels(ended.state)):
        plan_follow_job(context, flow, node, plan)


def plan_follow_job(context: Context, flow: str, node: int, plan: Plan) -> None:
    """Add the push of the job that goes on after a node."""
    key = follow_key(flow)
    (text,) = context.backend.read(key)
    if text is None:
        log.warning("the flow %s is not kept any more", flow)
        return
    try:
        (job,) = context.kept_jobs(key, text)
    except (InvalidSignature, InvalidPayload) as error:
        refuse(context, plan, RefusedText(key, text, f"what follows in the flow {flow}", error), "")
        return
    chain.plan_prepared(context, follow_job(job, node), plan)


def follow_job(job: Prepared, node: int) -> Prepared:
    """Return the job that goes on after a node, from that for any node."""
    message = envelope.parse(job.raw)
    message["uuid"] = message["id"] = identity = str(uuids.uuid4())
    message["data"] = {**message["data"], "node": node}
    return job._replace(uuid=identity, raw=envelope.encode(message), message=message)


def plan_following(context: Context, flow: str, to: Sequence[tuple[int, int]], plan: Plan) -> None:
    """Add to a plan what begins after a node: the push of some, and the count of others."""
    alone = [number for number, slot in to if slot < 0]
    texts = context.backend.read(*(jobs_key(flow, number) for number in alone)) if alone else []
    for number, text in zip(alone, texts, strict=True):
        if text is not None:  # otherwise it was pushed or cancelled before
            plan_node(context, flow, number, text, plan)
    plan.add(*_arrivals(flow, to))


def _arrivals(flow: str, to: Sequence[tuple[int, int]]) -> Iterator[Arrive]:
    """Return the operations that count a node for those that wait for others, too."""
    return (Arrive(join_key(flow, number), slot) for number, slot in to if slot >= 0)


def plan_node(context: Context, flow: str, node: int, text: str, plan: Plan) -> None:
    """Add the push of a node to a plan; `text` is its stored jobs."""
    key = jobs_key(flow, node)
    plan.add(Expect(key, text), Unset(key))
    try:
        jobs = read_jobs(context, flow, node, text)
    except (InvalidSignature, InvalidPayload) as error:
        what = f"node {node} of the flow {flow}"
        recorded = refuse(context, plan, RefusedText(key, text, what, error), "")
        ended = Ended(NodeState.FAILED, time.time(), recorded, error=str(error))
        plan.add(written_state(context, state_key(flow, node), ended))
        plan.add(Arrive(flow_key(flow), node, failed=True, label=f"{node}:{recorded}"))
        return
    if chain.plan_beginning(context, jobs, plan):
        return
    plan_passed_over(context, NodePlace(flow, node), jobs.links[0].uuid, plan)
    plan_follow_job(context, flow, node, plan)


def plan_passed_over(context: Context, place: NodePlace, uuid: str, plan: Plan) -> None:
    """End a node, or a job of a map, that is not pushed because another job has its lock."""
    ended = Ended(NodeState.SKIPPED, time.time(), uuid, remark="another job has its lock")
    plan.add(written_state(context, place.state_key, ended))
    if place.item < 0:
        plan.add(Arrive(flow_key(place.flow), place.node))
    else:
        plan.add(Arrive(map_key(place.flow, place.node), place.item))
