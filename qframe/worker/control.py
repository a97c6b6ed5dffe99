"""What the store tells a worker: restart, and which queues are paused."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from qframe.contracts import Store
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

RESTART = "restart"
EVERY = 1.0
"""Seconds between two looks: a restart or pause is noticed within this, after the current job."""


def pause_key(connection: str, queue: str = "") -> str:
    """Give the key under which a queue, or every queue of a connection, is paused."""
    return f"pause:{connection}:{queue}" if queue else f"pause:{connection}"


class Control:
    """The last known state of the store, looked at once a second.

    A store that does not answer changes nothing: the last known state holds.
    """

    def __init__(
        self, store: Store, connection: str, queues: Sequence[str], *, force: bool
    ) -> None:
        self._store = store
        self._queues = tuple(queues)
        self._force = force
        self._keys = (
            RESTART,
            pause_key(connection),
            *(pause_key(connection, queue) for queue in queues),
        )
        self._looked = 0.0
        self._silent = False
        self._first: str | None = None
        self._begun = False
        self.restart = False
        self.active = self._queues
        """The queues that are not paused, in their order."""

    def look(self) -> None:
        """Ask the store, at most once a second.

        The first look notes the restart token there is, and raises `BackendUnavailable`.
        """
        if not self._begun:
            values = self._store.get(*self._keys)
            self._first = values[0]
            self._begun = True
            self._read(values)
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        try:
            self._read(self._store.get(*self._keys))
        except BackendUnavailable as error:
            if not self._silent:
                log.warning("restart and pause cannot be read: %s", error)
            self._silent = True
        else:
            self._silent = False

    def _read(self, values: Sequence[str | None]) -> None:
        token, everything, *each = values
        self.restart = token is not None and token != self._first
        if everything is not None and not self._force:
            self.active = ()
        else:
            self.active = tuple(
                queue for queue, paused in zip(self._queues, each, strict=True) if paused is None
            )
