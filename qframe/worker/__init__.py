"""The worker: the loop that reserves, runs and settles jobs."""

from qframe.worker.options import StopReason, WorkerOptions

__all__ = ["StopReason", "WorkerOptions"]
