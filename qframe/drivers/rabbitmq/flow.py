"""MessageFlow: a consumer that stays, so that the server delivers as soon as something ends."""

from __future__ import annotations

import time

_SPARE = 1.0
"""Seconds for which a flow may have more messages than are wanted: slots are being left."""


class MessageFlow:
    """A consumer that stays, and when its window was last no larger than wanted."""

    def __init__(self, name: str, tag: str, window: int) -> None:
        self.name = name
        """The queue's name in the broker."""
        self.tag = tag
        self.window = window
        """How many of its messages may be unacknowledged."""
        self._fitted = time.monotonic()

    def fits(self, wanted: int) -> bool:
        """Whether so many messages are as many as it may have, or were a moment ago."""
        now = time.monotonic()
        if wanted >= self.window:
            self._fitted = now
        return now - self._fitted <= _SPARE
