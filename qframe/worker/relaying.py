"""Relaying: the thread in which a worker relays the outbox."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from qframe.drivers.heartbeat import start_thread
from qframe.manager import QueueManager
from qframe.outbox.relay import Relay
from qframe.worker.wakeup import WakeUp

log = logging.getLogger("qframe")

_PATIENCE = 1.0
"""Seconds a worker that ends waits for the relay's request. No message is lost by ending."""
_PAUSE = 1.0


@contextlib.contextmanager
def relaying(queues: QueueManager) -> Iterator[None]:
    """Relays the outbox in a thread while the block runs, if one is configured.

    Raises `ConfigurationError` for a wrong outbox.
    """
    outbox = queues.outbox()
    if outbox is None:
        yield
        return
    over = False
    relay = Relay(queues, outbox)

    def work() -> None:
        while not over:
            try:
                relay.run(wake.fileno(), lambda: over)
            except Exception:  # a driver with a bug of its own: try again, as the loop does
                log.exception("the relay failed")
                wake.wait(_PAUSE)
        queues.close()

    wake = WakeUp()
    thread = start_thread("qframe relay", work)
    try:
        yield
    finally:
        over = True
        wake.tell()
        thread.join(_PATIENCE)
        if not thread.is_alive():
            wake.__exit__()
