"""What a backend implements. Nothing here imports from the rest of qframe."""

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.batch import BatchRecord
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History, PastAttempt
from qframe.contracts.identity import JobId
from qframe.contracts.job import Job
from qframe.contracts.queue import Cancelling, Queue, Sizes
from qframe.contracts.status import JobStatus, State

__all__ = [
    "Backend",
    "BatchRecord",
    "Cancelling",
    "Capability",
    "FailedJob",
    "History",
    "Job",
    "JobId",
    "JobStatus",
    "PastAttempt",
    "Queue",
    "Sizes",
    "State",
]
