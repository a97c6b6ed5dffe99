"""qframe: Laravel's queue for Python."""

from typing import TYPE_CHECKING

from qframe import events, forks
from qframe.contracts import Cancelling, JobId, JobStatus, State
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
    EventTimedOut,
    Interruption,
    InvalidArguments,
    InvalidFlow,
    InvalidJob,
    InvalidPayload,
    InvalidQueueName,
    InvalidSignature,
    InvalidStep,
    InvalidTransaction,
    JobAlreadySettled,
    JobCancelled,
    JobDefinitionError,
    JobFailedByHand,
    JobGivenBack,
    JobInterrupted,
    JobSuspended,
    JobTimedOut,
    LeaseLost,
    LimitReached,
    MaxAttemptsExceeded,
    ModelMissing,
    NotCommitted,
    NotTracked,
    OtherDatabase,
    PayloadTooLarge,
    QframeError,
    ResultMissing,
    ResultTooLarge,
    RetryLater,
    SettleError,
    SynchronousOnly,
    TransactionUndone,
    UnknownJob,
    Unsupported,
    WaitTimedOut,
)
from qframe.jobs.chunk import Chunk
from qframe.jobs.current import JobLogFilter, current_job, job_log_fields
from qframe.jobs.exponential import Exponential
from qframe.jobs.foreign import foreign
from qframe.manager import QueueManager
from qframe.payload.secret import Secret
from qframe.resources import INJECTED, Resource

if TYPE_CHECKING:
    __version__: str

    from qframe.dispatch.event import asend_event, send_event
    from qframe.dispatch.flow import FlowRun, afind_flow, find_flow
    from qframe.dispatch.pending_flow import Flow
    from qframe.dispatch.status import (
        acancel,
        ajob_status,
        await_for,
        cancel,
        job_status,
        wait_for,
    )
    from qframe.schedules.definition import schedule
    from qframe.work import Worker
    from qframe.worker.options import WorkerOptions

__all__ = [
    "INJECTED",
    "AmbiguousId",
    "BackendUnavailable",
    "BackendUnusable",
    "Batch",
    "Cancelling",
    "CannotDecrypt",
    "Chunk",
    "ConfigurationError",
    "DirtyExit",
    "DontHandle",
    "DuplicateJob",
    "EventTimedOut",
    "Exponential",
    "Flow",
    "FlowRun",
    "Interruption",
    "InvalidArguments",
    "InvalidFlow",
    "InvalidJob",
    "InvalidPayload",
    "InvalidQueueName",
    "InvalidSignature",
    "InvalidStep",
    "InvalidTransaction",
    "JobAlreadySettled",
    "JobCancelled",
    "JobDefinitionError",
    "JobFailedByHand",
    "JobGivenBack",
    "JobId",
    "JobInterrupted",
    "JobLogFilter",
    "JobStatus",
    "JobSuspended",
    "JobTimedOut",
    "LeaseLost",
    "LimitReached",
    "MaxAttemptsExceeded",
    "ModelMissing",
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
    "Resource",
    "ResultMissing",
    "ResultTooLarge",
    "RetryLater",
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
    "afind_flow",
    "ajob_status",
    "asend_event",
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
    "find_flow",
    "foreign",
    "job_log_fields",
    "job_status",
    "queueable",
    "schedule",
    "send_event",
    "wait_for",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import lazily what most dispatching programs do not need."""
        if name == "__version__":
            from importlib import metadata  # noqa: PLC0415 (imported on first use)

            return metadata.version("qframe")
        with forks.undisturbed():
            return _imported(name)

    def _imported(name: str) -> object:
        if name == "Worker":
            from qframe import work  # noqa: PLC0415 (imported on first use)

            return work.Worker
        if name == "WorkerOptions":
            from qframe.worker import options  # noqa: PLC0415 (imported on first use)

            return options.WorkerOptions
        if name in {"acancel", "ajob_status", "await_for", "cancel", "job_status", "wait_for"}:
            from qframe.dispatch import status  # noqa: PLC0415 (imported on first use)

            return getattr(status, name)
        if name in {"Flow", "FlowRun", "afind_flow", "find_flow"}:
            from qframe.dispatch import flow, pending_flow  # noqa: PLC0415 (imported on first use)

            return getattr(pending_flow if name == "Flow" else flow, name)
        if name in {"asend_event", "send_event"}:
            from qframe.dispatch import event  # noqa: PLC0415 (imported on first use)

            return getattr(event, name)
        if name == "schedule":
            from qframe.schedules import definition  # noqa: PLC0415 (imported on first use)

            return definition.schedule
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
