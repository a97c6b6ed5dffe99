"""Alerting: the thread in which a worker checks the alert rules when it is its turn."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from qframe.alerts import channels
from qframe.alerts.checker import Checker
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import start_thread
from qframe.drivers.store import Store
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.worker.readings import Readings

log = logging.getLogger("qframe")

_SETTLING = 3.0
"""Seconds before the first check: workers that have just begun are not listed yet."""
_PATIENCE = 3.0
"""Seconds a worker that ends waits for notifications under way."""


def place(queues: QueueManager) -> Store:
    """Returns the store with the state of alerts. Raises `ConfigurationError`."""
    name = queues.settings.alerts.connection or queues.settings.default
    first = queues.connection(name)
    if Capability.FACTS in first.capabilities:
        return first.store
    for each in queues.holding_jobs():
        if Capability.FACTS in each.capabilities:
            return each.store
    raise ConfigurationError(f"alerts: the connection {name!r} cannot hold their state")


def checker(queues: QueueManager, wake: threading.Event) -> Checker:
    settings = queues.settings.alerts
    look = Readings(queues).look
    return Checker(place(queues), settings, look, channels.configured(settings), wake.set)


@contextlib.contextmanager
def alerting(queues: QueueManager) -> Iterator[None]:
    """Checks in a thread while the block runs, if there are rules."""
    if not queues.settings.alerts.rules:
        yield
        return
    over, wake = threading.Event(), threading.Event()
    looks = checker(queues, wake)

    def work() -> None:
        wake.wait(_SETTLING)
        while not over.is_set():
            wake.clear()
            try:
                looks.check()
            except Exception:  # a driver with a bug of its own: try again, as the loop does
                log.exception("alerts could not be looked after")
            if not over.is_set():
                wake.wait(looks.seconds())
        looks.leave()
        queues.close()

    thread = start_thread("qframe alerts", work)
    try:
        yield
    finally:
        over.set()
        wake.set()
        thread.join(_PATIENCE)
