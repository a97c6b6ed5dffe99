"""Actions in the background, on all jobs that a filter chooses; and the log of all actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from qframe import events
from qframe.exceptions import ConfigurationError
from qframe.operations.actions.wanted import Done, Wanted, what
from qframe.operations.bin import BinAction
from qframe.operations.board import Board
from qframe.operations.bulk import BulkAction
from qframe.payload.text import one_line

log = logging.getLogger("qframe")


def log_action(who: str, action: str, of: str, count: int) -> None:
    """Logs who did what, and fires the event."""
    log.info("%s: %s %s (%d)", one_line(who, 100), action, of, count)
    events.fire(events.OperatorActed, who, action, of, count)


def in_background(
    board: Board,
    wanted: Wanted,
    who: str,
    action: str,
    steps: Iterator[Callable[[], bool]],
    into: BinAction | None = None,
) -> Done:
    of = what(wanted)
    troubles = [f"{name} does not answer: {why}" for name, why in sorted(board.silent.items())]
    bulk = BulkAction(who, action, of, steps, troubles)

    def log_end(count: int) -> None:
        log_action(who, action, of, count)
        if into is not None:
            into.close()
            bulk.told, bulk.undo = into.told(), into.id if into.kept else ""
        board.forget()

    board.bulks.start(bulk, log_end)
    return Done(changed=0, text=f"{action}: {of}", bulk=bulk.id)


def stop_bulk(board: Board, wanted: Wanted, _who: str) -> Done:
    bulk = board.bulks.find(wanted.id)
    if bulk is None:
        raise ConfigurationError("no action with this id is running")
    bulk.cancel()
    return Done(changed=1, text="it stops after the current job", bulk=bulk.id)
