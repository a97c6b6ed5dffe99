"""What is read of a queue besides its size: its oldest job, and its pause."""

from __future__ import annotations

import time

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.drivers.store import pause_key
from qframe.exceptions import InvalidPayload
from qframe.payload import envelope


def oldest(connection: Connection, queue: str) -> float | None:
    """Returns the seconds the next job has been ready; None if unknown."""
    if Capability.BROWSE not in connection.capabilities:
        return None
    found = connection.backend.browse(queue, Place.READY, 1).found
    if not found:
        return None
    at = found[0].at
    if at is None:
        try:
            at = envelope.due(envelope.parse(found[0].raw_body))
        except InvalidPayload:
            return None
    return None if at is None else max(0.0, time.time() - at)


def pauses(connection: Connection) -> dict[str, float]:
    """Returns since when each paused queue is; "" stands for all."""
    if Capability.FACTS not in connection.capabilities:
        return {}
    key = pause_key(connection.name)
    return {
        each.removeprefix(key).removeprefix(":"): _epoch(at)
        for each, at in connection.store.items(key)
        if each == key or each.startswith(f"{key}:")  # not "a" for "ab"
    }


def _epoch(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
