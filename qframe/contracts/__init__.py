"""What a backend implements. Nothing here imports from the rest of qframe."""

from qframe.contracts.capability import Capability
from qframe.contracts.failed import FailedJob, FailedStore
from qframe.contracts.history import Attempt, History
from qframe.contracts.job import Job
from qframe.contracts.queue import Queue, Sizes
from qframe.contracts.store import Store

__all__ = [
    "Attempt",
    "Capability",
    "FailedJob",
    "FailedStore",
    "History",
    "Job",
    "Queue",
    "Sizes",
    "Store",
]
