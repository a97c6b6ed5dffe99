"""Actions on schedules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from qframe.connection import Connection
from qframe.manager import QueueManager
from qframe.operations import schedules
from qframe.operations.actions.wanted import Done, Wanted
from qframe.operations.board import Board
from qframe.payload.text import one_line
from qframe.schedules.rows import row_of


def on_schedule(
    act: Callable[[QueueManager, Connection, str], object], text: str
) -> Callable[[Board, Wanted, str], Done]:
    def run(board: Board, wanted: Wanted, _who: str) -> Done:
        connection = board.connection(wanted.connection)
        found = schedules.find(board.manager, connection, wanted.id)
        act(board.manager, connection, found.name)
        return Done(changed=1, text=text.format(found.name))

    return run


_OF_A_ROW = (
    "job", "when", "timezone", "queue", "missed", "grace", "spread", "overlap", "maintenance",
    "foreign",
)  # fmt: skip
"""The fields of a row that an action may set, besides its data; "" and None: not given."""


def _row_fields(wanted: Wanted, who: str) -> dict[str, Any]:
    """Returns the given fields of a row, and who gave them."""
    given = wanted.model_dump(include={*_OF_A_ROW})
    fields = {key: value for key, value in given.items() if value not in ("", None)}
    if wanted.data:
        fields["data"] = schedules.data_of_text(wanted.data)
    return {**fields, "added_at": round(time.time(), 3), "added_by": one_line(who, 100)}


def add_schedule(board: Board, wanted: Wanted, who: str) -> Done:
    row = row_of(**{"data": {}, "job": "", "when": "", **_row_fields(wanted, who)})
    schedules.add(board.manager, board.connection(wanted.connection), wanted.id, row)
    undo = {"action": "remove-schedule", "connection": wanted.connection, "id": wanted.id}
    return Done(changed=1, text=f"added the schedule {wanted.id}", undo=undo)


def change_schedule(board: Board, wanted: Wanted, who: str) -> Done:
    connection = board.connection(wanted.connection)
    schedules.change(board.manager, connection, wanted.id, **_row_fields(wanted, who))
    return Done(changed=1, text=f"changed the schedule {wanted.id}")
