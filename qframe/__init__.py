"""qframe: Laravel's queue for Python."""

from typing import TYPE_CHECKING

from qframe import events, forks
from qframe.contracts import Cancelling, JobStatus, State
from qframe.dispatch.batch import Batch, afind_batch, find_batch
from qframe.dispatch.bulk import abulk, bulk
from qframe.dispatch.chain import PendingChain, chain
from qframe.dispatch.function import queueable
from qframe.dispatch.pending import (
    PendingDispatch,
    dispatch,
    dispatch_if,
    dispatch_sync,
    dispatch_unless,
)
from qframe.dispatch.pending_batch import PendingBatch, batch
from qframe.dispatch.queueable import Queueable
from qframe.exceptions import (
    AmbiguousId,
    BackendUnavailable,
    BackendUnusable,
    CannotDecrypt,
    ConfigurationError,
    DirtyExit,
    DontHandle,
    DuplicateJob,
    Interruption,
    InvalidArguments,
    InvalidJob,
    InvalidPayload,
    InvalidQueueName,
    InvalidSignature,
    InvalidTransaction,
    JobAlreadySettled,
    JobCancelled,
    JobDefinitionError,
    JobFailedByHand,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    LeaseLost,
    LimitReached,
    MaxAttemptsExceeded,
    NotCommitted,
    NotTracked,
    OtherDatabase,
    PayloadTooLarge,
    QframeError,
    ResultTooLarge,
    SettleError,
    SynchronousOnly,
    TransactionUndone,
    UnknownJob,
    Unsupported,
    WaitTimedOut,
)
from qframe.jobs.current import JobLogFilter, current_job, job_log_fields
from qframe.jobs.foreign import foreign
from qframe.manager import QueueManager
from qframe.payload.secret import Secret

if TYPE_CHECKING:
    from qframe.dispatch.status import (
        acancel,
        ajob_status,
        await_for,
        cancel,
        job_status,
        wait_for,
    )
    from qframe.schedules.definition import schedule
    from qframe.worker import Worker, WorkerOptions

__all__ = [
    "AmbiguousId",
    "BackendUnavailable",
    "BackendUnusable",
    "Batch",
    "Cancelling",
    "CannotDecrypt",
    "ConfigurationError",
    "DirtyExit",
    "DontHandle",
    "DuplicateJob",
    "Interruption",
    "InvalidArguments",
    "InvalidJob",
    "InvalidPayload",
    "InvalidQueueName",
    "InvalidSignature",
    "InvalidTransaction",
    "JobAlreadySettled",
    "JobCancelled",
    "JobDefinitionError",
    "JobFailedByHand",
    "JobGivenBack",
    "JobInterrupted",
    "JobLogFilter",
    "JobStatus",
    "JobTimedOut",
    "LeaseLost",
    "LimitReached",
    "MaxAttemptsExceeded",
    "NotCommitted",
    "NotTracked",
    "OtherDatabase",
    "PayloadTooLarge",
    "PendingBatch",
    "PendingChain",
    "PendingDispatch",
    "QframeError",
    "QueueManager",
    "Queueable",
    "ResultTooLarge",
    "Secret",
    "SettleError",
    "State",
    "SynchronousOnly",
    "TransactionUndone",
    "UnknownJob",
    "Unsupported",
    "WaitTimedOut",
    "Worker",
    "WorkerOptions",
    "abulk",
    "acancel",
    "afind_batch",
    "ajob_status",
    "await_for",
    "batch",
    "bulk",
    "cancel",
    "chain",
    "current_job",
    "dispatch",
    "dispatch_if",
    "dispatch_sync",
    "dispatch_unless",
    "events",
    "find_batch",
    "foreign",
    "job_log_fields",
    "job_status",
    "queueable",
    "schedule",
    "wait_for",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import lazily what most dispatching programs do not need."""
        with forks.undisturbed():
            return _imported(name)

    def _imported(name: str) -> object:
        if name in {"Worker", "WorkerOptions"}:
            from qframe import worker  # noqa: PLC0415 (imported on first use)

            return getattr(worker, name)
        if name in {"acancel", "ajob_status", "await_for", "cancel", "job_status", "wait_for"}:
            from qframe.dispatch import status  # noqa: PLC0415 (imported on first use)

            return getattr(status, name)
        if name == "schedule":
            from qframe.schedules import definition  # noqa: PLC0415 (imported on first use)

            return definition.schedule
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
