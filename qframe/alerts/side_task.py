"""AlertTask: what a worker does about alerts, besides its jobs."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from qframe import forks
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import start_thread
from qframe.drivers.store import Store
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager

if TYPE_CHECKING:
    from qframe.alerts.checker import Checker

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
    with forks.undisturbed():  # most workers have no rules
        from qframe.alerts import channels  # noqa: PLC0415 (only with rules)
        from qframe.alerts.checker import Checker  # noqa: PLC0415 (only with rules)
        from qframe.alerts.readings import Readings  # noqa: PLC0415 (only with rules)

    settings = queues.settings.alerts
    look = Readings(queues).look
    return Checker(place(queues), settings, look, channels.configured(settings), wake.set)


class AlertTask:
    """The thread in which a worker checks the rules, when it is its turn: a `SideTask`."""

    name = "alerts"
    without = "no alert is checked"
    waits_for_key = False
    key = None

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self._over, self._wake = threading.Event(), threading.Event()
        self._checker: Checker | None = None
        self._thread: threading.Thread | None = None

    def is_wanted(self) -> bool:
        return bool(self._queues.settings.alerts.rules)

    def prepare(self) -> bool:
        self._checker = checker(self._queues, self._wake)
        return True

    def is_needed(self) -> bool:
        return True

    def start(self) -> None:
        assert self._checker is not None  # noqa: S101 (it was prepared)
        self._thread = start_thread("qframe alerts", partial(self._work, self._checker))

    def stop(self) -> None:
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _work(self, checks: Checker) -> None:
        self._wake.wait(_SETTLING)
        while not self._over.is_set():
            self._wake.clear()
            try:
                checks.check()
            except Exception:  # a driver with a bug of its own: try again, as the loop does
                log.exception("alerts could not be looked after")
            if not self._over.is_set():
                self._wake.wait(checks.seconds())
        checks.leave()
        self._queues.close()
