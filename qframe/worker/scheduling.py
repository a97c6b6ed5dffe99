"""Scheduling: the threads in which a worker dispatches due schedules."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import Beat, Heartbeat
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager
from qframe.schedules.rows import keys_of
from qframe.schedules.schedulers import Schedulers
from qframe.worker.control import Control

LOOK_EVERY = 5.0
"""Seconds between two checks for schedules, if the code has none."""


class Rows:
    """Whether schedules were ever added at run time on a worker's connection.

    An idle worker has read that already; one with a long job has to ask.
    """

    def __init__(self, queues: QueueManager, connection: Connection, control: Control) -> None:
        self._store = connection.store
        self._control = control
        self._key = keys_of(queues, connection).changed()
        control.watch(self._key)

    def told(self) -> str | None:
        """Returns the version of the rows; None if none were ever added."""
        looked, told = self._control.watched(self._key)
        if time.monotonic() - looked > LOOK_EVERY:
            with contextlib.suppress(BackendUnavailable):  # the worker itself logs it
                return self.ask()
        return told

    def ask(self) -> str | None:
        """Reads the version now. Raises `BackendUnavailable`."""
        (told,) = self._store.get(self._key)
        return told


def rows_of(
    queues: QueueManager, connection: Connection, control: Control, *, wanted: bool
) -> Rows | None:
    """Returns the rows; None if schedules are off, or the connection cannot have any."""
    if not (wanted and queues.settings.schedule.enabled):
        return None
    if Capability.FACTS not in connection.capabilities:
        return None
    return Rows(queues, connection, control)


@contextlib.contextmanager
def scheduling(
    queues: QueueManager, connection: Connection, beats: Heartbeat, rows: Rows | None
) -> Iterator[None]:
    """Dispatches what is due while the block runs; nothing without `rows`.

    If the code has no schedules, and older code had none, no thread starts until rows are added for
    the worker's connection. Raises `ConfigurationError` for wrong schedules.
    """
    if rows is None:
        yield
        return
    schedulers = Schedulers(queues, [connection])
    begun = asked = bool(schedulers.schedules)
    beat: Beat | None = None

    def is_needed() -> bool:
        nonlocal asked
        if not asked:
            with contextlib.suppress(BackendUnavailable):  # the worker itself logs it
                if schedulers.is_needed():
                    return True
                asked = True
        return rows.told() is not None

    def look() -> None:
        nonlocal begun
        if not begun and is_needed():
            begun = True
            if beat is not None:
                beats.drop(beat)
            schedulers.start()

    if begun:
        schedulers.start()
    else:
        beat = beats.add(LOOK_EVERY, look, 0.0)
    try:
        yield
    finally:
        begun = True
        schedulers.stop()
