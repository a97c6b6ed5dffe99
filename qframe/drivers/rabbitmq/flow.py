"""MessageFlow: consumers that stay, so that the server delivers as soon as something ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

_SPARE = 1.0
"""Seconds for which a flow may have more or fewer messages than are wanted."""


class MessageFlow:
    """The consumers of one queue that stay, and how many messages they may have.

    The server counts what each consumer has by itself. So a flow that begins while jobs run gets
    the free slots only, and later, by further consumers, the slots of these jobs. Thus there are
    never more unacknowledged messages than slots.
    """

    def __init__(self, name: str, slots: int, running: Mapping[int, object]) -> None:
        self.name = name
        """The queue's name in the broker."""
        self.tags: list[str] = []
        self.window = 0
        """How many messages its consumers may have unacknowledged."""
        self.others = frozenset(running)
        """The delivery tags of jobs of other consumers whose slots it has yet to get."""
        self._slots = slots
        self._fitted = time.monotonic()

    def add(self, tags: Sequence[str], window: int) -> None:
        """Note a consumer with its window."""
        self.tags += tags
        self.window += window

    def freed(self, held: Mapping[int, object]) -> int:
        """Return for how many slots a further consumer is to begin; those count as its from now on.

        0 unless as many of the other jobs have ended as still run: each consumer costs the server
        one more command for each acknowledgement of several jobs.
        """
        running = self.others & held.keys()
        freed = len(self.others) - len(running)
        if freed < len(running):
            return 0
        self.others = frozenset(running)
        return freed

    def fits(self, wanted: int) -> bool:
        """Whether so many messages are as many as there are slots, or were a moment ago."""
        now = time.monotonic()
        if wanted == self._slots:
            self._fitted = now
        return now - self._fitted <= _SPARE
