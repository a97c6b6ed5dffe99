"""Outage: a backend that does not answer, and the pauses between a worker's tries."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from qframe import events
from qframe.connection import Connection
from qframe.exceptions import BackendUnavailable
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Outage:
    """Fires one event when the backend is lost and one when it answers again."""

    def __init__(self, connection: Connection, queues: Sequence[str]) -> None:
        self._connection = connection
        self._queues = queues
        self.since = 0.0
        """0 while the backend answers."""
        self._pause = _FIRST_PAUSE

    def begins(self, error: BackendUnavailable) -> None:
        """Notes when, and fires the event."""
        self.since = time.monotonic()
        self._pause = _FIRST_PAUSE
        log.debug("backend lost: %s", tracebacks.brief(error))
        events.fire(events.BackendLost, self._connection.name, self._queues, error)

    def ends(self) -> None:
        """Notes that the backend answers, and fires the event."""
        seconds = time.monotonic() - self.since
        self.since = 0.0
        events.fire(events.BackendRestored, self._connection.name, self._queues, seconds)

    def pause(self) -> float:
        """Returns the seconds until the next try: growing, with jitter."""
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        return pause

    def is_too_long(self) -> bool:
        """Whether the worker gives up: `give_up_after` has passed."""
        limit = self._connection.settings.give_up_after
        return bool(self.since and limit) and time.monotonic() - self.since >= limit
