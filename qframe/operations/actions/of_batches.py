"""Actions on batches and flows."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.connection import Connection
from qframe.dispatch.flow import FlowRun
from qframe.exceptions import ConfigurationError
from qframe.features.batches import BatchStore
from qframe.operations.actions.of_failed import retry_one
from qframe.operations.actions.wanted import Done, Wanted
from qframe.operations.board import Board
from qframe.payload.text import count_of, one_line


def _batch(board: Board, wanted: Wanted) -> tuple[Connection, BatchStore]:
    found = board.find_batch(wanted.id)
    if found is None or found.record.connection != found.connection.name:
        raise ConfigurationError(f"no batch {one_line(wanted.id, 100)!r}")
    return found.connection, found.kept


def cancel_batch(board: Board, wanted: Wanted, _who: str) -> Done:
    _, kept = _batch(board, wanted)
    done = kept.cancel(wanted.id)
    text = f"cancelled the batch {wanted.id}" if done else f"{wanted.id} is over already"
    return Done(changed=int(done), text=text)


def retry_batch(board: Board, wanted: Wanted, _who: str) -> Done:
    _, kept = _batch(board, wanted)
    return _retried(board, kept.reopen(wanted.id), "the batch")


def _retried(board: Board, uuids: Sequence[str], of: str) -> Done:
    found = [board.failed.find(uuid) for uuid in uuids]
    count = sum(retry_one(board, *each) for each in found if each is not None)
    jobs = count_of(count, "failed job", "failed jobs")
    return Done(changed=count, text=f"queued {jobs} of {of} again")


def _flow(board: Board, wanted: Wanted) -> FlowRun:
    found = board.find_flow(wanted.id)
    if found is None:
        raise ConfigurationError(f"no flow {one_line(wanted.id, 100)!r}")
    return found


def cancel_flow(board: Board, wanted: Wanted, _who: str) -> Done:
    done = _flow(board, wanted).cancel()
    text = f"cancelled the flow {wanted.id}" if done else f"{wanted.id} is over already"
    return Done(changed=int(done), text=text)


def retry_flow(board: Board, wanted: Wanted, _who: str) -> Done:
    return _retried(board, _flow(board, wanted).reopen(), "the flow")
