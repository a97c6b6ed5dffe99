"""RetryTask: what a worker does about watched retries, besides its jobs."""

from __future__ import annotations

import logging
import threading
from functools import partial

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager
from qframe.retries.driver import IDLE, RetryDriver
from qframe.retries.kept import MARK

log = logging.getLogger("qframe")

_PATIENCE = 2.0
"""Seconds a worker that ends waits for the job that is being retried."""


class RetryTask:
    """The thread in which a worker drives watched retries, when it is its turn: a `SideTask`."""

    name = "retries"
    without = "no retry goes on"
    key = MARK
    waits_for_key = True

    def __init__(self, queues: QueueManager, connection: Connection) -> None:
        self._queues = queues
        self._connection = connection
        self._over = threading.Event()
        self._driver: RetryDriver | None = None
        self._thread: threading.Thread | None = None

    def is_wanted(self) -> bool:
        return Capability.FACTS in self._connection.capabilities

    def prepare(self) -> bool:
        return False

    def is_needed(self) -> bool:
        return False  # not before its mark is there

    def start(self) -> None:
        self._driver = RetryDriver(self._queues)
        self._thread = start_thread("qframe retries", partial(self._work, self._driver))

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _work(self, driver: RetryDriver) -> None:
        is_lost = False
        while not self._over.is_set():
            try:
                seconds, is_lost = driver.turn(), False
            except BackendUnavailable as error:
                if not is_lost:
                    log.warning("retries cannot be driven: %s", error)
                seconds, is_lost = IDLE, True
            except Exception:  # a driver with a bug of its own: try again, as the loop does
                log.exception("retries could not be driven")
                seconds = IDLE
            self._over.wait(seconds)
        try:
            driver.leave()
        except BackendUnavailable as error:
            log.debug("retries: %s", error)
        self._queues.close()
