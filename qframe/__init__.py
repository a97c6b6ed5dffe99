"""qframe: Laravel's queue for Python."""

from typing import TYPE_CHECKING

from qframe import events
from qframe.dispatch import (
    PendingDispatch,
    bulk,
    dispatch,
    dispatch_if,
    dispatch_sync,
    dispatch_unless,
)
from qframe.exceptions import (
    BackendUnavailable,
    BackendUnusable,
    ConfigurationError,
    DontHandle,
    Interruption,
    InvalidArguments,
    InvalidJob,
    InvalidPayload,
    InvalidQueueName,
    JobAlreadySettled,
    JobDefinitionError,
    JobFailedByHand,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    LeaseLost,
    MaxAttemptsExceeded,
    PayloadTooLarge,
    QframeError,
    SettleError,
    UnknownJob,
    Unsupported,
)
from qframe.foreign import foreign
from qframe.functions import queueable
from qframe.manager import QueueManager
from qframe.queueable import Queueable

if TYPE_CHECKING:
    from qframe.worker import Worker, WorkerOptions

__all__ = [
    "BackendUnavailable",
    "BackendUnusable",
    "ConfigurationError",
    "DontHandle",
    "Interruption",
    "InvalidArguments",
    "InvalidJob",
    "InvalidPayload",
    "InvalidQueueName",
    "JobAlreadySettled",
    "JobDefinitionError",
    "JobFailedByHand",
    "JobGivenBack",
    "JobInterrupted",
    "JobTimedOut",
    "LeaseLost",
    "MaxAttemptsExceeded",
    "PayloadTooLarge",
    "PendingDispatch",
    "QframeError",
    "QueueManager",
    "Queueable",
    "SettleError",
    "UnknownJob",
    "Unsupported",
    "Worker",
    "WorkerOptions",
    "bulk",
    "dispatch",
    "dispatch_if",
    "dispatch_sync",
    "dispatch_unless",
    "events",
    "foreign",
    "queueable",
]


if not TYPE_CHECKING:  # or type checkers would take any name for one of these

    def __getattr__(name: str) -> object:
        """Import the worker when it is asked for: what only dispatches needs none."""
        if name in {"Worker", "WorkerOptions"}:
            from qframe import worker  # noqa: PLC0415 (not before it is needed)

            return getattr(worker, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
