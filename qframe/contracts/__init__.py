"""What a backend implements. Nothing here imports from the rest of qframe."""

from qframe.contracts.batch import BatchRecord, BatchStore, NewBatch, Teller
from qframe.contracts.capability import Capability
from qframe.contracts.failed import FailedJob, FailedStore
from qframe.contracts.history import Attempt, History
from qframe.contracts.job import Job
from qframe.contracts.queue import Cancelling, Queue, Sizes
from qframe.contracts.status import JobStatus, Note, State, StatusStore
from qframe.contracts.store import Store

__all__ = [
    "Attempt",
    "BatchRecord",
    "BatchStore",
    "Cancelling",
    "Capability",
    "FailedJob",
    "FailedStore",
    "History",
    "Job",
    "JobStatus",
    "NewBatch",
    "Note",
    "Queue",
    "Sizes",
    "State",
    "StatusStore",
    "Store",
    "Teller",
]
