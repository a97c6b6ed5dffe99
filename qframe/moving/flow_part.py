"""FlowPart: the latches of a flow that moves, the nodes that have ended, and what may be due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qframe.contracts.facts import LatchCopy
from qframe.contracts.flow import NodeState
from qframe.contracts.step import Push
from qframe.features import chain, flow
from qframe.features.base import Plan
from qframe.features.flow import Edges, NodePlace
from qframe.moving.whole import MOST, WAITS, StayingWhole, Whole, ended_members


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
                if self._waits(number) and len(ended_members(join)) >= join.size:
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
        left = {*range(pushed)} - ended_members(items) - {each.item for each in here}
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
        return slot >= 0 and join is not None and slot in ended_members(join)

    def _follow(self, number: int) -> None:
        key = flow.follow_key(self._id)
        text = self._values.get(key)
        if text is None:
            raise StayingWhole("what is kept of its flow is not complete")
        (job,) = self._context.kept_jobs(key, text)
        plan = Plan()
        chain.plan_prepared(self._context, flow.follow_job(job, number), plan)
        self._whole.pushes += [each for each in plan.operations if isinstance(each, Push)]
