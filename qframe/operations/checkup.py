"""Checkup: whether a connection answers, and what is unsafe about it, as `qframe check` says it."""

from __future__ import annotations

import time
from typing import Any

from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.operations import forecast, names, unsafe

_ABROAD = "sqs"
"""The built-in connection to servers of others, with whatever credentials are around."""


def in_use(queues: QueueManager) -> list[str]:
    """Returns the connections that are configured, or that others store something in."""
    try:
        return queues.in_use()
    except ConfigurationError:  # the row of the connection says what is wrong
        return [queues.settings.default, *queues.settings.connections]


def checked(queues: QueueManager, name: str, *, is_used: bool) -> dict[str, Any]:
    """Returns what a connection answers, an error, or why it is not asked, and warnings."""
    row: dict[str, Any] = {"connection": name, "answer": "", "ms": None}
    row |= {"error": "", "unused": "", "warnings": []}
    if name == _ABROAD and not is_used:
        return row | {"unused": "not asked, as nobody configured it"}
    try:
        queue = queues.connection(name)
        began = time.monotonic()
        health = queue.backend.check()
        row["answer"] = health.version
        row["ms"] = round((time.monotonic() - began) * 1000, 1)
        row["warnings"] = [each.text for each in unsafe.of_connection(queues, queue, health)]
        if Capability.RESERVE in queue.capabilities:
            row["warnings"] += names.unlikely(queues, queue)
            row["warnings"] += forecast.warnings(queues, queue)
    except QframeError as error:
        row["error" if is_used else "unused"] = str(error)
    return row
