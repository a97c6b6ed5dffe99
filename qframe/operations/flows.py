"""Flows as people see them: their state, their nodes, and where a picture has these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

from qframe.contracts.flow import FlowNode, FlowRecord
from qframe.dispatch.flow import FlowRun
from qframe.payload.timing import iso

MOST_DRAWN = 150
"""Nodes of the largest flow that is drawn."""
MOST_LISTED = 1000
"""Nodes that are listed."""
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 170, 38, 50, 14


class FlowState(BaseModel):
    """The state of a flow. `state`: `running`, `failed`, `cancelled` or `done`."""

    id: str
    name: str
    connection: str
    state: str
    progress: float
    total: int
    ended: int
    failed: int
    created_at: str
    cancelled_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, record: FlowRecord) -> FlowState:
        return cls(
            id=record.id,
            name=record.name,
            connection=record.connection,
            state=record.state,
            progress=round(record.settled / record.total, 4) if record.total else 1.0,
            total=record.total,
            ended=record.settled,
            failed=record.failed,
            created_at=iso(record.created_at),
            cancelled_at=None if record.cancelled_at is None else iso(record.cancelled_at),
            finished_at=None if record.finished_at is None else iso(record.finished_at),
        )


class NodeRow(BaseModel):
    """A node of a flow, as it is listed."""

    number: int
    name: str
    state: str
    after: list[int]
    on_failure: str
    uuid: str
    ended_at: str | None
    error: str
    remark: str
    jobs: int | None
    """How many jobs a map has."""
    ended: int
    """How many of these have ended."""

    @classmethod
    def of(cls, node: FlowNode) -> NodeRow:
        return cls(
            number=node.number,
            name=node.name,
            state=node.state.value,
            after=[*node.after],
            on_failure=node.on_failure,
            uuid=node.uuid,
            ended_at=None if node.at is None else iso(node.at),
            error=node.error,
            remark=node.remark,
            jobs=node.jobs,
            ended=node.ended,
        )


class FlowNodes(BaseModel):
    """A flow with its nodes, at most 1,000 of them."""

    flow: FlowState
    nodes: list[NodeRow]

    @classmethod
    def of(cls, found: FlowRun) -> FlowNodes:
        nodes = [NodeRow.of(each) for each in found.nodes(MOST_LISTED)]
        return cls(flow=FlowState.of(found.record), nodes=nodes)


# -- the picture ----------------------------------------------------------------------------------


class Box(NamedTuple):
    """A node in the picture, with its upper left corner."""

    node: NodeRow
    x: int
    y: int
    width: int = _WIDTH
    height: int = _HEIGHT


class DrawnEdge(NamedTuple):
    """An edge, from the right side of a box to the left side of another."""

    x1: int
    y1: int
    x2: int
    y2: int


class Drawing(NamedTuple):
    """The nodes in columns: each right of all that it follows."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[DrawnEdge]


def drawing(nodes: Sequence[NodeRow]) -> Drawing | None:
    """Return the picture of a flow; None for one that is too large for it."""
    if not nodes or len(nodes) > MOST_DRAWN:
        return None
    columns = _columns(nodes)
    boxes: dict[int, Box] = {}
    rows: dict[int, int] = {}
    for node in sorted(nodes, key=lambda each: (columns[each.number], each.number)):
        column = columns[node.number]
        row = rows.get(column, 0)
        rows[column] = row + 1
        x, y = column * (_WIDTH + _GAP_X), row * (_HEIGHT + _GAP_Y)
        boxes[node.number] = Box(node, x, y)
    lines = [
        DrawnEdge(
            boxes[each].x + _WIDTH, boxes[each].y + _HEIGHT // 2,
            boxes[node.number].x, boxes[node.number].y + _HEIGHT // 2,
        )
        for node in nodes for each in node.after if each in boxes
    ]  # fmt: skip
    width = (max(columns.values()) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    height = max(rows.values()) * (_HEIGHT + _GAP_Y) - _GAP_Y
    return Drawing(width, height, [*boxes.values()], lines)


def _columns(nodes: Sequence[NodeRow]) -> dict[int, int]:
    """Return the column of each node: one behind the last that it follows."""
    after = {node.number: list(node.after) for node in nodes}
    found: dict[int, int] = {}
    while len(found) < len(after):
        begun = len(found)
        for number, before in after.items():
            if number not in found and all(each in found or each not in after for each in before):
                found[number] = 1 + max((found.get(each, -1) for each in before), default=-1)
        if len(found) == begun:  # what is kept was changed, and goes round
            found |= dict.fromkeys(after.keys() - found.keys(), 0)
    return found
