"""Worker: what `qframe work` calls, and programs that run a worker themselves."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.alerts.side_task import AlertTask
from qframe.outbox.side_task import RelayTask
from qframe.retries.side_task import RetryTask
from qframe.schedules.side_task import ScheduleTask
from qframe.worker.side_tasks import SideTask
from qframe.worker.worker import JobWorker


class Worker(JobWorker):
    """Works the queues of one connection until there is a reason to stop.

    `run()` is what `qframe work` calls; it returns the exit code. Off the main thread it runs
    without signals, and so without timeouts, and logs that; `stop()` ends it from any thread.
    Besides, it dispatches schedules, checks alerts, relays the outbox and drives watched retries.

    Raises `ConfigurationError` for a connection that is unknown, holds no jobs, or cannot list its
    queues although a pattern is given.
    """

    def side_tasks(self) -> Sequence[SideTask]:
        """Returns what it does besides its jobs in one run."""
        queues = self.manager
        tasks: list[SideTask] = [AlertTask(queues), RelayTask(queues)]
        if not self.options.once:
            tasks.append(RetryTask(queues, self.connection))
        if self.options.schedule and not self.options.once:
            tasks.insert(0, ScheduleTask(queues, self.connection))
        return tasks
