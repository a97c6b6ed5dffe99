"""All exceptions that qframe raises; each message says what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

_LONGEST = 100 * 365 * 86400
"""Seconds, as of `payload.timing`."""
LOST_LEASE = "its lease had passed to another worker, or it was removed"


class QframeError(Exception):
    """Base of all errors of qframe, except the interruptions of a running job."""


class ConfigurationError(QframeError):
    """The configuration, or an option, is wrong; the command exits 2 with this message."""


class AmbiguousId(ConfigurationError):
    """The text is the beginning or end of several ids."""


class InvalidQueueName(ConfigurationError, ValueError):
    """A queue name must have 1 to 128 of `A-Z a-z 0-9 _ . : -`."""


class JobDefinitionError(QframeError, TypeError):
    """The declaration of a job class or function is wrong; raised when the class is created."""


class InvalidJob(QframeError, ValueError):
    """The dispatch of a job was refused; nothing was queued."""


class SynchronousOnly(QframeError):
    """A blocking call on a running event loop; await the call with the prefix `a` instead.

    Like Django's `SynchronousOnlyOperation`. Nothing was done.
    """


class InvalidTransaction(QframeError, ValueError):
    """The argument of `within` is not an open transaction on the right database."""


class OtherDatabase(InvalidTransaction):
    """The transaction given to `within` is on another database than the jobs."""


class InvalidFlow(InvalidJob):
    """The dispatch of a flow was refused, for a reference, an edge or a job; nothing was queued."""


class ResultMissing(QframeError):
    """A job of a flow gets a result that is not kept: it was too large, no JSON, or has expired."""


class DuplicateJob(QframeError):
    """A failed unique job was not queued again: another one of its kind waits or runs."""


class PayloadTooLarge(InvalidJob):
    """The encoded payload is larger than the connection's `max_payload`."""


class ResultTooLarge(QframeError, ValueError):
    """The result of a `django.tasks` task, or the value of a step, is too large to be kept."""


class InvalidStep(QframeError, ValueError):
    """A durable step cannot be kept: its name, or a value that would not come back as it is."""


class EventTimedOut(QframeError, TimeoutError):
    """The event that a job waited for was not sent in time."""


class ModelMissing(QframeError, LookupError):
    """A row that a job has as an argument is gone when the job starts; the message names its key.

    `is_retried`: the job's option `missing` is "retry"; otherwise it has failed, tries left or not.
    """

    def __init__(self, message: str, *, is_retried: bool = False) -> None:
        super().__init__(message)
        self.is_retried = is_retried

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"is_retried": self.is_retried}


class InvalidPayload(QframeError, ValueError):
    """A queued message is not a payload: not JSON, not an object, or without a job name."""


class UnknownJob(QframeError, LookupError):
    """The name in a payload is not a job that this worker may run."""


class InvalidArguments(QframeError, ValueError):
    """The data in a payload does not fit the fields of the job class as deployed here."""

    fields: tuple[str, ...] = ()
    """The fields that do not fit, if it is known."""
    is_lack = False
    """Whether these have no value, and all others fit."""
    of_version: Literal["", "newer", "upgrade"] = ""
    """Whether the payload is of a newer version, or `upgrade` could not carry its data over."""


class InvalidSignature(QframeError, ValueError):
    """A payload has no valid signature, by a key configured here, for its queue."""


class CannotDecrypt(QframeError, ValueError):
    """The arguments of an encrypted job cannot be decrypted: no key, a wrong key, or changed."""


class BackendUnavailable(QframeError, ConnectionError):
    """The backend does not answer, or refuses for now; the call may be repeated."""

    in_doubt = True
    """Whether what was sent may have been applied all the same."""


class BackendUnusable(BackendUnavailable, ConfigurationError):
    """The backend cannot be used as it is configured; retrying is useless."""


class TransactionUndone(BackendUnavailable):
    """The database rolled the transaction back because of another one; begin it again."""


class Unsupported(QframeError):
    """The backend cannot do this; see its `capabilities`."""


class SettleError(QframeError):
    """A job could not be deleted, released, buried or failed."""


class JobAlreadySettled(SettleError):
    """This reservation has already been deleted, released, buried or failed."""


class LeaseLost(SettleError):
    """Another worker took the job, or it was removed; nothing was changed."""


class NotCommitted(QframeError):
    """The job completed within a transaction, and ended without committing it."""


class JobFailedByHand(QframeError):
    """The job called `self.fail()` without an error."""


class LimitReached(QframeError):
    """A middleware would make the job wait, but it cannot: on `sync`, or in `dispatch_sync`.

    `retry_after` is the seconds until the job may run.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MaxAttemptsExceeded(QframeError):
    """The job was started as often as it may be; the message says how each attempt ended."""


class DirtyExit(QframeError):
    """The process of an isolated job ended without a result; php-resque's DirtyExit.

    The message names the signal or the exit code.
    """


class NotTracked(QframeError, LookupError):
    """This job has no status: it was not tracked, or its status has expired."""


class WaitTimedOut(QframeError, TimeoutError):
    """A tracked job did not end in time; `status` is its last one."""

    def __init__(self, message: str, status: Any) -> None:  # noqa: ANN401 (a JobStatus, which is above this)
        super().__init__(message)
        self.status = status


class DontHandle(QframeError):
    """Raise it in `set_up` or `handle` to end a job as skipped: neither done nor failed.

    php-resque's `Resque_Job_DontPerform`.
    """


class RetryLater(QframeError):
    """Raise it in a job to have it retried after `seconds` instead of its backoff.

    `seconds` is a number or a timedelta; `retry_after` is the number. The attempt counts like any
    other that raised: without tries left the job fails. Raises `TypeError` or `ValueError` for
    other values, and for more than 100 years.
    """

    def __init__(self, seconds: float | timedelta, message: str = "") -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(
                f"RetryLater takes seconds or a timedelta, not {type(seconds).__name__}"
            )
        if not 0 <= seconds <= _LONGEST:
            raise ValueError(f"RetryLater takes seconds from 0 to 100 years, not {seconds}")
        super().__init__(message or f"to be tried again in {seconds:g} s")
        self.retry_after = float(seconds)

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float, str]]:
        return type(self), (self.retry_after, str(self))


class Interruption(BaseException):
    """Ends a running job from outside.

    It is a `BaseException`, so that `except Exception` in a job does not catch it, and `finally`
    blocks run.
    """

    uuid = ""
    """The job that is meant; "" if it is whatever runs. Others may share its call (`Chunk`)."""


class JobTimedOut(Interruption):
    """The job ran longer than its `timeout` (seconds)."""


class JobInterrupted(Interruption):
    """The worker got SIGUSR1 while the job ran; its tries decide about a retry."""


class JobCancelled(Interruption):
    """`qframe cancel --running` named the job, which ends here, neither done nor failed."""


class JobGivenBack(Interruption):
    """The worker stops; the job goes back to its queue, uncounted."""


class JobSuspended(Interruption):
    """The job sleeps or waits for an event: the attempt ends here and does not count.

    `delay` is the seconds until the job goes on, `event` the name of the event that wakes it.
    """

    def __init__(self, message: str, delay: float = 0.0, event: str = "") -> None:
        super().__init__(message)
        self.delay = delay
        self.event = event
