"""Actions on workers."""

from __future__ import annotations

from collections.abc import Callable

from qframe.connection import Connection
from qframe.exceptions import ConfigurationError
from qframe.operations.actions.wanted import Done, Wanted
from qframe.operations.board import Board
from qframe.operations.workers import WorkerState
from qframe.payload.text import count_of, one_line
from qframe.worker.control import order_key, slots_key

_SLOTS_KEPT = 3600.0


_ORDER_KEPT = 7 * 86400.0
"""Seconds for which an order to a worker stays in the store."""


def _worker(board: Board, wanted: Wanted) -> tuple[WorkerState, Connection]:
    for each in board.workers():
        if each.id == wanted.id:
            return each, board.connection(each.connection)
    raise ConfigurationError(f"no worker {one_line(wanted.id, 60)!r}")


def scale(board: Board, wanted: Wanted, _who: str) -> Done:
    worker, connection = _worker(board, wanted)
    if wanted.number is None:
        raise ConfigurationError("scale needs a number of jobs at once")
    if not worker.scales:
        raise ConfigurationError(
            f"{worker.host}:{worker.pid} cannot be scaled: it has no slots, or is one of a pool, "
            "which qframe scale tells"
        )
    connection.store.set(slots_key(worker.id), str(wanted.number), _SLOTS_KEPT)
    text = (
        f"told {worker.host}:{worker.pid} to run {count_of(wanted.number, 'job', 'jobs')} at once"
    )
    before = {"action": "scale", "id": worker.id, "number": str(worker.concurrency)}
    return Done(changed=1, text=text, undo={} if worker.concurrency == wanted.number else before)


def order(order: str, words: str) -> Callable[[Board, Wanted, str], Done]:
    def give(board: Board, wanted: Wanted, _who: str) -> Done:
        worker, connection = _worker(board, wanted)
        key = order_key(worker.id)
        if order:
            connection.store.set(key, order, _ORDER_KEPT)
        else:
            connection.store.delete(key)
        return Done(changed=1, text=f"told {worker.host}:{worker.pid} {words}")

    return give
