"""The worker: the loop that reserves, runs and settles jobs."""

from qframe.worker.options import StopReason, WorkerOptions
from qframe.worker.worker import Worker

__all__ = ["StopReason", "Worker", "WorkerOptions"]
