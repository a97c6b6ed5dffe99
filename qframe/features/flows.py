"""Flows: beginning, going on, reading, cancelling and pruning."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json

from qframe.contracts.facts import Latch
from qframe.contracts.flow import FlowNode, FlowRecord, NodeState
from qframe.contracts.step import (
    Arrive,
    Close,
    Expect,
    Extend,
    Open,
    Operation,
    Push,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import (
    BackendUnavailable,
    InvalidPayload,
    InvalidSignature,
    QframeError,
)
from qframe.features import batches, chain, flow
from qframe.features.base import Plan, attempts
from qframe.features.chain import ChainPlan, is_id
from qframe.features.context import Context, Prepared
from qframe.features.flow import AT_ONCE, KEPT, MANY, ROOT, Edges, Ended, NodePlace
from qframe.features.flow_return import LATER, FlowReturn, binned_until
from qframe.features.reserved import ReservedJob
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

T = TypeVar("T")

_LABELS = 1000
"""Failed members of a latch that are looked at."""
_PAGE = 200


class NodePlan(NamedTuple):
    """A node of a flow before its dispatch."""

    edges: Edges
    jobs: ChainPlan
    join: Prepared | None = None
    """The job that pushes it, if it follows several nodes."""
    mapped: Any = None
    """A job of a map without its item, for listeners."""


class FlowPlan(NamedTuple):
    """A flow before its dispatch."""

    id: str
    name: str
    queue: str
    nodes: Sequence[NodePlan]
    """In the order of their numbers."""
    catch: Sequence[Prepared]
    callbacks: Prepared
    """The job that runs when a node has failed, and when all have ended."""
    follow: Prepared
    """The job that goes on after a node with many behind it."""


class StoredFlow(NamedTuple):
    text: str
    latch: Latch
    record: FlowRecord

    def changed(self, **fields: object) -> list[Operation]:
        """Return the operations that change its fact."""
        key = flow.flow_key(self.record.id)
        text = _json({**from_json(self.text), **fields})
        return [Expect(key, self.text), Set(key, text, KEPT)]


class FlowStore:
    """The flows of a connection. Raises `BackendUnavailable`.

    With a running `job`, steps are made in its name.
    """

    def __init__(self, context: Context, job: ReservedJob | None = None) -> None:
        self.context = context
        self._backend = context.backend
        self._job = job

    # -- beginning --------------------------------------------------------------------------------

    def start(self, plan: FlowPlan) -> None:
        for _ in self.starting(plan):
            pass

    def starting(self, plan: FlowPlan) -> Iterator[None]:
        """Store a flow, then push its first nodes in one step, after which it has begun.

        Before, in parts between which other calls may run, nothing of it is pushed or listed.
        """
        first = [number for number, node in enumerate(plan.nodes) if not node.edges.after]
        at_once = len(first) <= MANY
        created = time.time()
        opens = self._opens(plan)
        facts = self._facts(plan, {*first} if at_once else set())
        try:
            for operations in _portions(opens):
                yield
                self.apply(Plan(None, *operations))
            *before, last = [*_portions(facts)] or [[]]
            for operations in before:
                yield
                self.apply(Plan(None, *operations))
            if len(last) + len(first) > AT_ONCE:
                yield
                self.apply(Plan(None, *last))
                last = []
            yield

            def begin(made: Plan) -> bool:
                made.add(*last)
                self._plan_begin(plan, first, created, made, at_once=at_once)
                return True

            self.repeated(plan.id, begin)
        except BaseException as error:
            if not (isinstance(error, BackendUnavailable) and error.in_doubt):
                with contextlib.suppress(QframeError):
                    self._forget(plan.id, len(plan.nodes), created)
            raise

    def _opens(self, plan: FlowPlan) -> list[Operation]:
        """Return the operations that make its latches, which another step extends."""
        callbacks = self.context.pushing(plan.callbacks)
        then = Push(callbacks.queue, callbacks.raw)
        operations: list[Operation] = [Open(flow.flow_key(plan.id), then, ttl=KEPT)]
        for number, node in enumerate(plan.nodes):
            if node.join is not None:
                joins = self.context.pushing(node.join)
                then = Push(joins.queue, joins.raw)
                operations.append(Open(flow.join_key(plan.id, number), then, ttl=KEPT))
        return operations

    def _facts(self, plan: FlowPlan, pushed: set[int]) -> list[Operation]:
        """Return the operations that keep its nodes; the jobs of those in `pushed` are not kept."""
        operations: list[Operation] = []
        for number, node in enumerate(plan.nodes):
            operations.append(flow.written_edges(self.context, plan.id, number, node.edges))
            if number not in pushed:
                operations.append(flow.written_jobs(self.context, plan.id, number, node.jobs))
            if node.join is not None:
                key = flow.join_key(plan.id, number)
                operations += [Extend(key, len(node.edges.after)), Close(key)]
        return operations

    def _plan_begin(
        self, plan: FlowPlan, first: Sequence[int], created: float, made: Plan, *, at_once: bool
    ) -> None:
        """Add that the flow has begun, and the push of its first nodes."""
        context, key = self.context, flow.flow_key(plan.id)
        head = {
            "name": plan.name, "connection": context.connection, "queue": plan.queue,
            "total": len(plan.nodes), "created_at": created,
            "maps": [number for number, node in enumerate(plan.nodes) if node.edges.is_map],
        }  # fmt: skip
        made.add(
            Set(key, _json(head), KEPT),
            Set(index_key(plan.id, created), "", KEPT),
            chain.stored_jobs(context, flow.follow_key(plan.id), [plan.follow], KEPT),
            Extend(key, len(plan.nodes)),
            Close(key),
        )
        if plan.catch:
            made.add(chain.stored_jobs(context, flow.catch_key(plan.id), plan.catch, KEPT))
        if at_once:
            for number in first:
                jobs = plan.nodes[number].jobs
                if not chain.plan_beginning(context, jobs, made):
                    place, uuid = NodePlace(plan.id, number), jobs.links[0].uuid
                    flow.plan_passed_over(context, place, uuid, made)
                    self._plan_follow(plan.follow, number, made)
        else:
            edges = Edges("", "", flow.BLOCK, (), [(number, -1) for number in first])
            made.add(flow.written_edges(context, plan.id, ROOT, edges))
            self._plan_follow(plan.follow, ROOT, made)

    def _plan_follow(self, job: Prepared, node: int, made: Plan) -> None:
        chain.plan_prepared(self.context, flow.follow_job(job, node), made)

    def _forget(self, identity: str, nodes: int, created: float) -> None:
        """Remove the facts of a flow that has not begun."""
        heads = flow.flow_key(identity), index_key(identity, created)
        others = flow.follow_key(identity), flow.catch_key(identity)
        self._backend.apply(Step(None, *map(Unset, (*heads, *others))))
        for numbers in _portions(range(nodes)):
            keys = [key(identity, each) for each in numbers for key in _KEYS]
            self._backend.apply(Step(None, *map(Unset, keys)))

    def apply(self, plan: Plan, *, raises: bool = False) -> Result:
        return batches.apply_for(self.context, self._job, plan, raises=raises)

    # -- going on ---------------------------------------------------------------------------------

    def follow(self, identity: str, node: int) -> None:
        """Push, or cancel, what follows a node, in portions.

        What the removal of its job has cancelled waits again if the job is back.
        """
        key = flow.state_key(identity, node)
        kept, text, binned = self._backend.read(
            flow.edges_key(identity, node), key, flow.binned_key(identity, node)
        )
        edges = flow.read_edges(self.context, identity, node, kept)
        ended = flow.read_state(self.context, key, text)
        if edges is None:
            log.warning("the flow %s is not kept (any more): nothing follows", identity)
            return
        state = NodeState.DONE if node == ROOT else ended.state if ended else None
        if binned is not None and (state is None or not edges.cancels(state)):
            FlowReturn(self.context, identity, self.repeated, self.join).after(node, edges)
        if state is None:
            return
        if edges.goes_on(state):
            for some in _portions(edges.to):
                self.repeated(identity, lambda plan, to=some: self._following(identity, to, plan))  # type: ignore[misc] # as bound
        elif edges.cancels(state):
            cause = Expect(key, text), flow.binned_key(identity, node)
            self._cancel_after(identity, edges, cause)

    def _following(self, identity: str, to: Sequence[tuple[int, int]], plan: Plan) -> bool:
        flow.plan_following(self.context, identity, to, plan)
        return True

    def join(self, identity: str, node: int) -> None:
        """Push a node if all nodes before it have ended, and it was not pushed before."""

        def joined(plan: Plan) -> bool:
            latch = self._backend.latch(flow.join_key(identity, node))
            (text,) = self._backend.read(flow.jobs_key(identity, node))
            if latch is None or latch.completed_at is None or text is None:
                return False
            flow.plan_node(self.context, identity, node, text, plan)
            return True

        self.repeated(identity, joined)

    def end_map(self, identity: str, node: int) -> None:
        """End a map if a job of it has failed, or all have ended."""

        def ended(plan: Plan) -> bool:
            binned = flow.binned_key(identity, node)
            (before,) = self._backend.read(binned)
            latch = self._backend.latch(flow.map_key(identity, node), _LABELS)
            edges, _ = self._node(identity, node)
            if latch is None or edges is None:
                return False
            counts, failed = edges.on_failure != flow.CONTINUE, next(filter(None, latch.labels), "")
            place, at = NodePlace(identity, node), time.time()
            if failed and counts:
                words = f"{latch.failed} of {latch.size} jobs failed"
                uuid = failed.partition(":")[2]
                made = Ended(NodeState.FAILED, at, uuid, edges.name, words, jobs=latch.size)
            elif latch.completed_at is None:
                return False
            elif latch.failed and counts:  # without a label: cancelled
                words = f"{latch.failed} of {latch.size} jobs were cancelled"
                state = NodeState.CANCELLED
                made = Ended(state, at, name=edges.name, remark=words, jobs=latch.size)
            else:
                made = Ended(NodeState.DONE, at, name=edges.name, jobs=latch.size)
            if latch.failed and made.state is not NodeState.FAILED:
                plan.add(Expect(binned, before))  # a removed job of it may just come back
            flow.plan_end(self.context, place, made, plan, encrypt=False)
            return True

        self.repeated(identity, ended)

    def _node(self, identity: str, node: int) -> tuple[Edges | None, Ended | None]:
        key = flow.state_key(identity, node)
        edges, state = self._backend.read(flow.edges_key(identity, node), key)
        return (
            flow.read_edges(self.context, identity, node, edges),
            flow.read_state(self.context, key, state),
        )

    def repeated(self, identity: str, planned: Callable[[Plan], bool]) -> bool:
        """Apply what `planned` adds to a plan; again if something has changed meanwhile.

        Returns whether there was anything to do.
        """
        for _ in attempts(f"the flow {identity}"):
            plan = Plan()
            if not planned(plan) or not plan.operations:
                return False
            if self.apply(plan).applied:
                break
        return True

    # -- cancelling -------------------------------------------------------------------------------

    def cancel(self, identity: str) -> bool:
        """Cancel a flow: what waits is never run. Returns False if it is over or cancelled."""
        for _ in attempts(f"the flow {identity}"):
            found = self.find(identity)
            if found is None or found.record.is_finished or found.record.cancelled_at is not None:
                break
            (result,) = self._backend.apply(Step(None, *found.changed(cancelled_at=time.time())))
            if result.applied:
                for numbers in _portions(range(found.record.total)):
                    self._cancel(identity, numbers)
                    self._cancel_batches(identity, numbers)
                return True
        return False

    def _cancel_batches(self, identity: str, nodes: Sequence[int]) -> None:
        """Cancel the batches of nodes that were pushed."""
        members = batches.BatchStore(self.context)
        texts = self._backend.read(*(flow.edges_key(identity, each) for each in nodes))
        for number, text in zip(nodes, texts, strict=True):
            with contextlib.suppress(InvalidSignature, InvalidPayload):
                edges = flow.read_edges(self.context, identity, number, text)
                for each in edges.batches if edges is not None else ():
                    members.cancel(each)

    def _cancel_after(self, identity: str, edges: Edges, cause: tuple[Expect, str]) -> None:
        """Cancel all nodes behind one that wait; again if it was interrupted."""
        seen: set[int] = set()
        ahead = [number for number, _ in edges.to]
        while ahead:
            some = ahead[:AT_ONCE]
            ahead = ahead[AT_ONCE:]
            self._cancel(identity, some, cause)
            states = flow.states(self.context, [flow.state_key(identity, each) for each in some])
            gone = [
                number
                for number, (_, ended) in zip(some, states, strict=True)
                if ended is not None and ended.state is NodeState.CANCELLED
            ]
            texts = self._backend.read(*(flow.edges_key(identity, each) for each in gone))
            for number, text in zip(gone, texts, strict=True):
                behind = flow.read_edges(self.context, identity, number, text)
                for follower, _ in behind.to if behind is not None else ():
                    if follower not in seen:
                        seen.add(follower)
                        ahead.append(follower)

    def _cancel(
        self, identity: str, nodes: Sequence[int], cause: tuple[Expect, str] | None = None
    ) -> None:
        """Cancel those of the nodes that were not pushed.

        `cause` is the state of the node because of which, and the key that says until when its
        removed job is in the bin: while that may come back, their jobs are kept.
        """

        def cancelled(plan: Plan) -> bool:
            lasts = 0.0
            if cause is not None:
                state, binned = self._backend.read(cause[0].key, cause[1])
                if until := binned_until(binned):
                    if state != cause[0].value:
                        return False  # it is back
                    lasts = until - time.time() + LATER
            texts = self._backend.read(*(flow.jobs_key(identity, each) for each in nodes))
            for number, text in zip(nodes, texts, strict=True):
                if text is not None:
                    self._plan_cancelled(identity, number, text, lasts, plan)
                elif lasts:
                    self._keep_longer(flow.cancelled_key(identity, number), lasts, plan)
            if lasts and cause is not None and plan.operations:
                plan.add(cause[0])
            return True

        self.repeated(identity, cancelled)

    def _plan_cancelled(
        self, identity: str, number: int, jobs: str, lasts: float, plan: Plan
    ) -> None:
        key = flow.jobs_key(identity, number)
        ended = Ended(NodeState.CANCELLED, time.time())
        plan.add(
            Expect(key, jobs),
            Unset(key),
            flow.written_state(self.context, flow.state_key(identity, number), ended),
            Arrive(flow.flow_key(identity), number),
        )
        if lasts:
            plan.add(Set(flow.cancelled_key(identity, number), jobs, lasts))

    def _keep_longer(self, key: str, lasts: float, plan: Plan) -> None:
        """Keep the jobs of a node that another removal has cancelled before."""
        (found,) = self._backend.copy(key)
        if found is not None and found.ttl is not None and found.ttl < lasts:
            plan.add(Expect(key, found.value), Set(key, found.value, lasts))

    # -- one flow ---------------------------------------------------------------------------------

    def find(self, identity: str) -> StoredFlow | None:
        if not is_id(identity):
            return None
        (text,) = self._backend.read(flow.flow_key(identity))
        return None if text is None else self._found(identity, text)

    def _found(self, identity: str, text: str) -> StoredFlow | None:
        latch = self._backend.latch(flow.flow_key(identity))
        if latch is None:
            return None
        try:
            return StoredFlow(text, latch, _record(identity, from_json(text), latch))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidPayload(
                f"what is kept of the flow {identity} is none: {one_line(repr(error), 100)}"
            ) from None

    def read(self, identity: str) -> FlowRecord | None:
        found = self.find(identity)
        return None if found is None else found.record

    def nodes(self, identity: str, limit: int | None = None) -> list[FlowNode]:
        """Return all nodes, or the first `limit`."""
        record = self.read(identity)
        if record is None:
            return []
        last = record.total if limit is None else min(record.total, limit)
        found: list[FlowNode] = []
        for numbers in _portions(range(last)):
            keys = [key(identity, each) for each in numbers for key in _KEYS]
            texts = iter(self._backend.read(*keys))
            for number in numbers:
                edges, jobs, state = next(texts), next(texts), next(texts)
                found.append(self._shown(identity, number, edges, jobs, state))
        return found

    def _shown(
        self, identity: str, number: int, edges: str | None, jobs: str | None, state: str | None
    ) -> FlowNode:
        try:
            made = flow.read_edges(self.context, identity, number, edges)
            ended = flow.read_state(self.context, flow.state_key(identity, number), state)
        except QframeError as error:
            return FlowNode(number, "(refused)", NodeState.FAILED, (), "", error=str(error))
        made = made or Edges("(not kept any more)", "", flow.BLOCK, (), ())
        if ended is None:
            found = NodeState.PUSHED if jobs is None else NodeState.WAITING
            ended = Ended(found, 0.0)
        latch = self._backend.latch(flow.map_key(identity, number)) if made.is_map else None
        return FlowNode(
            number=number,
            name=made.name,
            state=ended.state,
            after=(*made.after,),
            on_failure=made.on_failure,
            uuid=ended.uuid or made.uuid,
            at=ended.at or None,
            error=ended.error,
            remark=ended.remark,
            jobs=latch.size if latch is not None else ended.jobs,
            ended=0 if latch is None else latch.done + latch.failed,
        )

    def result(self, identity: str, node: int) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the result of an ended node. Raises `InvalidArguments` if there is none."""
        return flow.results(self.context, identity, [node]).value[node]

    def failures(self, identity: str, limit: int = 1000) -> list[str]:
        """Return the ids of failed jobs of a flow, by node; those of a map and a batch all."""
        members = batches.BatchStore(self.context)
        found = self._failed(identity, limit)
        return [one for each in found for one in members.failures(each) or [each]][:limit]

    def reopen(self, identity: str) -> list[str]:
        """Let failed batches of a flow go on. Returns the ids of its failed jobs."""
        members, found = batches.BatchStore(self.context), list[str]()
        for each in self._failed(identity, _LABELS):
            found += [each] if members.read(each) is None else members.reopen(each)
        return found

    def _failed(self, identity: str, limit: int) -> list[str]:
        """Return the ids of the jobs and batches that have failed a node, or a job of a map."""
        latch = self._backend.latch(flow.flow_key(identity), limit)
        found: list[str] = []
        for label in () if latch is None else latch.labels:
            node, _, uuid = label.partition(":")
            inner = self._backend.latch(flow.map_key(identity, int(node)), limit)
            each_of = [] if inner is None else [at.partition(":")[2] for at in inner.labels if at]
            found += [each for each in each_of or [uuid] if each]
        return found

    # -- its end ----------------------------------------------------------------------------------

    def callbacks(self, identity: str, queue: str) -> None:
        """Push the jobs of `catch` after the first failure, and note the end."""

        def due(plan: Plan) -> bool:
            found = self.find(identity)
            if found is None:
                log.warning("the flow %s is not kept (any more): nothing follows it", identity)
                return False
            record = found.record
            notified = set(record.notified)
            if record.failed and "catch" not in notified:
                notified.add("catch")
                self._plan_catch(identity, plan, queue)
            if record.is_finished:
                notified.add("end")
            if notified == record.notified:
                return False
            plan.add(*found.changed(notified=sorted(notified)))
            return True

        self.repeated(identity, due)
        found = self.find(identity)
        if found is not None and found.record.is_finished and not found.record.failed:
            self._keep_for(flow.KEPT_AFTER, found)

    def keep_on(self, found: StoredFlow) -> None:
        """Keep everything as long as before its end, since it goes on."""
        self._keep_for(KEPT, found)

    def _plan_catch(self, identity: str, plan: Plan, queue: str) -> None:
        latch = self._backend.latch(flow.flow_key(identity), 1000)
        (text,) = self._backend.read(flow.catch_key(identity))
        if latch is None or text is None:
            return
        first = next(
            (each for each in latch.labels if each.startswith(f"{latch.first_failed}:")), ""
        )
        cause = first.partition(":")[2], "", ""
        with contextlib.suppress(QframeError):
            edges, ended = self._node(identity, int(first.partition(":")[0] or ROOT))
            if ended is not None and edges is not None:
                cause = ended.uuid, ended.name or edges.name, ended.error
        chain.plan_kept_callbacks(
            self.context, flow.catch_key(identity), text, f"the flow {identity}", plan, cause, queue
        )

    def _keep_for(self, seconds: float, found: StoredFlow) -> None:
        """Keep everything so long from now on; the latches expire by themselves."""
        identity = found.record.id
        heads = flow.flow_key(identity), index_key(identity, found.record.created_at)
        maps = [*from_json(found.text).get("maps", ())]
        counts = [flow.map_key(identity, number) for number in maps]
        for some in _portions([flow.follow_key(identity), flow.catch_key(identity), *counts]):
            self._rewrite(some, seconds)
        for numbers in _portions(range(found.record.total)):
            keys = [key(identity, each) for each in numbers for key in _KEYS]
            self._rewrite(keys, seconds)
        for number in maps:
            latch = self._backend.latch(flow.map_key(identity, number))
            key = flow.state_key(identity, number)
            for items in _portions(range(0 if latch is None else latch.size)):
                self._rewrite([f"{key}:{item}" for item in items], seconds)
        self._rewrite(heads, seconds)

    def _rewrite(self, keys: Sequence[str], seconds: float) -> None:
        for _ in attempts("what is kept of a flow"):
            found = zip(keys, self._backend.read(*keys), strict=True)
            texts = [(key, text) for key, text in found if text is not None]
            # As they are: an undo may change them at this moment.
            again = [each for key, text in texts for each in _again(key, text, seconds)]
            if not again or self._backend.apply(Step(None, *again))[0].applied:
                return

    # -- all of them ------------------------------------------------------------------------------

    def all(self) -> Iterator[FlowRecord]:
        """Iterate over all flows, the latest first."""
        after = ""
        while page := self._backend.scan("flows:", _PAGE, after):
            ids = [key.rpartition(":")[2] for key, _ in page]
            texts = self._backend.read(*map(flow.flow_key, ids))
            for identity, text in zip(ids, texts, strict=True):
                with contextlib.suppress(InvalidPayload):
                    found = None if text is None else self._found(identity, text)
                    if found is not None:
                        yield found.record
            after = page[-1][0]


_MOST_NODES = 1_000_000
_MOST_SECONDS = 1e11
_KEYS = (flow.edges_key, flow.jobs_key, flow.state_key)


def _record(identity: str, fields: Mapping[str, Any], latch: Latch) -> FlowRecord:
    total, maps = fields["total"], fields["maps"]
    texts = [fields["name"], fields["connection"], fields["queue"], *fields.get("notified", ())]
    times = [fields["created_at"], fields.get("cancelled_at", 0.0)]
    if not (
        type(total) is int
        and 0 <= total <= _MOST_NODES
        and {*map(type, texts)} == {str}
        and {*map(type, times)} <= {int, float}
        and all(0 <= each < _MOST_SECONDS for each in times)
        and all(type(each) is int for each in maps)
    ):
        raise TypeError("it was changed")
    return FlowRecord(
        id=identity,
        name=fields["name"],
        connection=fields["connection"],
        queue=fields["queue"],
        total=total,
        settled=latch.done + latch.failed,
        failed=latch.failed,
        notified=frozenset(fields.get("notified", ())),
        created_at=fields["created_at"],
        cancelled_at=fields.get("cancelled_at"),
        finished_at=latch.completed_at,
    )


def _again(key: str, text: str, seconds: float) -> tuple[Expect, Set]:
    return Expect(key, text), Set(key, text, seconds)


def _portions(every: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(every), AT_ONCE):
        yield every[begin : begin + AT_ONCE]


def index_key(identity: str, created: float) -> str:
    """Return the key by which a flow is listed, the latest first."""
    return f"flows:{2**48 - int(created * 1000):012x}:{identity}"


_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
