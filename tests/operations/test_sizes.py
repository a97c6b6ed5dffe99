"""Sizes that a backend estimates, or cannot count, are shown as such."""

from __future__ import annotations

from qframe import QueueManager
from qframe.config import ConnectionSettings
from qframe.console import queues as console
from qframe.console.connections import JobConnections
from qframe.contracts.queue import Sizes
from qframe.drivers.memory.backend import MemoryBackend
from qframe.operations import queues as operations
from qframe.operations.board import Board
from qframe.web import prometheus


class EstimatingBackend(MemoryBackend):
    """Counts as a broker does: about so many are ready, and nobody knows how many are delayed."""

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        super().__init__()

    def sizes(self, queue: str) -> Sizes:
        return Sizes(ready=1500, approximate=True, unknown=frozenset({"delayed", "buried"}))


def _manager() -> QueueManager:
    queues = QueueManager(
        {"default": "broker", "connections": {"broker": {"driver": "estimating"}}}
    )
    queues.extend("estimating", EstimatingBackend)
    return queues


def test_an_estimate_is_no_exact_number_and_what_is_unknown_no_0() -> None:
    queues = _manager()
    (state,) = operations.states(queues.connection())
    assert (state.ready, state.delayed, state.reserved, state.buried) == (1500, None, 0, None)
    assert state.approximate
    rows = console.sizes_of(JobConnections(queues, None), "default")
    assert rows[0]["delayed"] is None
    (row,) = console.shown(rows)
    assert [row[each] for each in ("ready", "delayed", "reserved", "buried")] == [
        "~1500", "?", "~0", "?",
    ]  # fmt: skip


def test_prometheus_leaves_out_what_is_unknown() -> None:
    page = prometheus.exposition(Board(_manager())).decode()
    assert 'qframe_queue_jobs{connection="broker",queue="default",state="ready"} 1500.0' in page
    assert 'state="delayed"' not in page
    assert 'qframe_queue_jobs_estimated{connection="broker",queue="default"} 1.0' in page
