"""RelayTask: what a worker does about the outbox, besides its jobs."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

from qframe.drivers.heartbeat import start_thread
from qframe.manager import QueueManager
from qframe.outbox.relay import Relay

log = logging.getLogger("qframe")

_PATIENCE = 1.0
"""Seconds a worker that ends waits for the relay's request. No message is lost by ending."""
_PAUSE = 1.0


class RelayTask:
    """The thread in which a worker relays the outbox: a `SideTask`."""

    name = "the outbox"
    without = "the outbox is not relayed"
    waits_for_key = False
    key = None

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self._over = threading.Event()
        self._relay: Relay | None = None
        self._thread: threading.Thread | None = None

    def is_wanted(self) -> bool:
        return self._queues.outbox() is not None

    def prepare(self) -> bool:
        outbox = self._queues.outbox()
        assert outbox is not None  # noqa: S101 (it is wanted)
        self._relay = Relay(self._queues, outbox)
        return True

    def is_needed(self) -> bool:
        return True

    def start(self) -> None:
        self._reader, self._writer = os.pipe()
        self._thread = start_thread("qframe relay", self._work)

    def stop(self) -> None:
        self._over.set()
        if self._thread is None:
            return
        with suppress(OSError):  # a job has closed it
            os.write(self._writer, b".")
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            with suppress(OSError):
                os.close(self._reader)
                os.close(self._writer)

    def _work(self) -> None:
        assert self._relay is not None  # noqa: S101 (it was prepared)
        while not self._over.is_set():
            try:
                self._relay.run(self._reader, self._over.is_set)
            except Exception:  # a driver with a bug of its own: try again, as the loop does
                log.exception("the relay failed")
                self._over.wait(_PAUSE)
        self._queues.close()
