"""ScheduleTask: what a worker does about schedules, besides its jobs."""

from __future__ import annotations

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.manager import QueueManager
from qframe.schedules.rows import keys_of
from qframe.schedules.schedulers import Schedulers


class ScheduleTask:
    """The threads in which a worker dispatches due schedules: a `SideTask`.

    If the code has no schedules, and older code had none, there is nothing to do until rows are
    added for the worker's connection.
    """

    name = "schedules"
    without = "nothing is scheduled"
    waits_for_key = False

    def __init__(self, queues: QueueManager, connection: Connection) -> None:
        self._queues = queues
        self._connection = connection
        self._schedulers: Schedulers | None = None

    @property
    def key(self) -> str:
        """The fact that rows were added: their version."""
        return keys_of(self._queues, self._connection).changed()

    def is_wanted(self) -> bool:
        has_facts = Capability.FACTS in self._connection.capabilities
        return self._queues.settings.schedule.enabled and has_facts

    def prepare(self) -> bool:
        self._schedulers = Schedulers(self._queues, [self._connection])
        return bool(self._schedulers.schedules)

    def is_needed(self) -> bool:
        return self._prepared.is_needed()

    def start(self) -> None:
        self._prepared.start()

    def stop(self) -> None:
        self._prepared.stop()

    @property
    def _prepared(self) -> Schedulers:
        assert self._schedulers is not None  # noqa: S101 (`prepare` comes first)
        return self._schedulers
