"""What a removed job has cancelled in its flow waits again when the job comes back from the bin.

`flow:ID:b:N` says until when a removed job of node N is in the bin. As long, `flow:ID:c:M` keeps
the jobs of a node M that was cancelled because of it. M waits again once no node before it cancels
it any more, whatever else was removed, or brought back, in whichever order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from qframe.contracts.flow import NodeState
from qframe.contracts.step import Expect, Leave, Set, Unset
from qframe.features import flow
from qframe.features.base import Plan
from qframe.features.context import Context
from qframe.features.flow import AT_ONCE, KEPT, Edges, NodePlace

LATER = 300.0
"""Seconds that jobs are kept longer than what cancelled them, for an undo in the last moment."""


def binned_fact(place: NodePlace, until: float) -> Set:
    """Return the fact that a removed job of a node is in the bin until an epoch time.

    Each is another one, so that a step that expects it is refused after an undo.
    """
    key, text = flow.binned_key(place.flow, place.node), f"{until:.3f} {secrets.token_hex(4)}"
    return Set(key, text, max(1.0, until - time.time()))


def binned_until(text: str | None) -> float:
    """Return the time in such a fact; 0 for none."""
    try:
        until = float((text or "0").partition(" ")[0])
    except ValueError:
        return 0.0
    return until if 0 < until - time.time() < KEPT else 0.0


class _KeptNode(NamedTuple):
    """A node as it is kept, with the texts of its facts."""

    number: int
    edges: Edges | None
    text: str | None
    state: NodeState | None
    waits: bool
    kept: str | None
    """Its jobs, if it was cancelled because of a job that is in the bin."""

    @property
    def cancels(self) -> bool:
        """Whether it cancels what follows it."""
        if self.edges is None:
            return True
        return self.state is not None and self.edges.cancels(self.state)


class FlowReturn:
    """Lets the nodes behind one wait again. Every step may be repeated, by several at once."""

    def __init__(
        self,
        context: Context,
        identity: str,
        repeated: Callable[[str, Callable[[Plan], bool]], bool],
        join: Callable[[str, int], None],
    ) -> None:
        self._context = context
        self._read = context.backend.read
        self._id = identity
        self._repeated = repeated
        self._join = join

    def after(self, node: int, edges: Edges) -> None:
        """Let all nodes behind a node wait that nothing cancels any more; push what is due."""
        came_from = {number: node for number, _ in edges.to}
        ahead, seen = [*came_from], {*came_from}
        while ahead:
            some, ahead = ahead[:AT_ONCE], ahead[AT_ONCE:]
            revived = self._revive(some, came_from)
            for each in self._standing(some):
                if each.edges is None or each.cancels:
                    continue
                if each.waits:
                    self._push_if_due(each.number, each.edges)
                for number, _ in each.edges.to:
                    if number not in seen or each.number in revived:
                        came_from[number] = each.number
                        seen.add(number)
                        ahead.append(number)

    def _standing(self, nodes: Sequence[int]) -> Iterator[_KeptNode]:
        kinds = flow.edges_key, flow.state_key, flow.jobs_key, flow.cancelled_key
        for begin in range(0, len(nodes), AT_ONCE):
            some = nodes[begin : begin + AT_ONCE]
            texts = iter(self._read(*(key(self._id, each) for each in some for key in kinds)))
            for number, edges, state, jobs, kept in zip(some, *[texts] * 4, strict=True):
                key = flow.state_key(self._id, number)
                yield _KeptNode(
                    number,
                    flow.read_edges(self._context, self._id, number, edges),
                    state,
                    flow.state_word(self._context, key, state),
                    jobs is not None,
                    kept,
                )

    def _revive(self, nodes: Sequence[int], came_from: Mapping[int, int]) -> set[int]:
        """Let those wait again that nothing cancels any more. Returns which they are."""
        found: set[int] = set()

        def revived(plan: Plan) -> bool:
            found.clear()
            key = flow.flow_key(self._id)
            (head,) = self._read(key)
            if head is None or flow.is_cancelled(head):
                return False
            expected: dict[str, str | None] = {key: head}
            for each in self._standing(nodes):
                if each.kept is None or each.edges is None:
                    continue
                if each.state is not NodeState.CANCELLED or each.waits:
                    continue
                before = self._before(each.edges, came_from[each.number])
                if before is not None:
                    expected |= before
                    found.add(each.number)
                    self._plan(each, each.kept, plan)
            plan.add(*(Expect(key, text) for key, text in expected.items()))
            return bool(found)

        self._repeated(self._id, revived)
        return found

    def _plan(self, node: _KeptNode, jobs: str, plan: Plan) -> None:
        """Add that a cancelled node waits."""
        state, kept = (key(self._id, node.number) for key in (flow.state_key, flow.cancelled_key))
        plan.add(
            Expect(state, node.text),
            Expect(kept, jobs),
            Unset(state),
            Unset(kept),
            Set(flow.jobs_key(self._id, node.number), jobs, KEPT),
            Leave(flow.flow_key(self._id), node.number),
        )

    def _before(self, edges: Edges, first: int) -> dict[str, str | None] | None:
        """Return the states of the nodes before one, by key; None if one of them cancels it.

        Begins behind the `first`, where those are that come back later in the same undo.
        """
        at = edges.after.index(first) + 1 if first in edges.after else 0
        found: dict[str, str | None] = {}
        for each in self._standing([*edges.after[at:], *edges.after[:at]]):
            if each.cancels:
                return None
            found[flow.state_key(self._id, each.number)] = each.text
        return found

    def _push_if_due(self, node: int, edges: Edges) -> None:
        """Push a node that waits if those before it have ended while it was cancelled."""
        if len(edges.after) > 1:
            self._join(self._id, node)
            return

        def due(plan: Plan) -> bool:
            (text,) = self._read(flow.jobs_key(self._id, node))
            before = [*self._standing(edges.after)]
            if text is None or not all(
                each.edges is not None and each.state is not None and each.edges.goes_on(each.state)
                for each in before
            ):
                return False
            flow.plan_node(self._context, self._id, node, text, plan)
            return True

        self._repeated(self._id, due)
