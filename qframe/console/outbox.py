"""Outbox: how far it is behind: its rows in `qframe size` and `qframe monitor`."""

from __future__ import annotations

from typing import Any

from qframe.console.text import print_error
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager

QUEUE = "(outbox)"
"""The queue name of the outbox in events."""


def rows(queues: QueueManager, only: str | None) -> list[dict[str, Any]]:
    """Returns a row for each connection with jobs in the outbox, waiting or set aside.

    An outbox that does not answer is named on stderr.
    """
    found = queues.outbox()
    if found is None:
        return []
    try:
        lags = found.lags()
    except BackendUnavailable as error:
        print_error(str(error), 0)
        return []
    return [
        {
            "connection": lag.connection,
            "outbox": queues.settings.outbox.connection,
            "waiting": lag.waiting,
            "oldest": round(lag.oldest, 3),
            "set_aside": lag.set_aside,
            "error": lag.error,
        }
        for lag in lags
        if only in {None, lag.connection}
    ]


def status(row: dict[str, Any], most: int, lag: float) -> str:
    """Returns whether a row is within its limits, in words."""
    if row["set_aside"]:
        return "SET ASIDE"
    return "BUSY" if row["waiting"] > most or row["oldest"] > lag else "OK"
