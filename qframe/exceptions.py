"""Everything qframe raises on purpose, each with a message that says what to do."""

from __future__ import annotations

from typing import Any

LOST_LEASE = "its lease had passed to another worker, or it was removed"


class QframeError(Exception):
    """Base of every error qframe raises, apart from the interruptions of a running job."""


class ConfigurationError(QframeError):
    """The configuration, or an option, is wrong; the command line exits 2 with this message."""


class AmbiguousId(ConfigurationError):
    """What was given is the beginning or end of several ids."""


class InvalidQueueName(ConfigurationError, ValueError):
    """A queue name holds something else than 1 to 128 of `A-Z a-z 0-9 _ . : -`."""


class JobDefinitionError(QframeError, TypeError):
    """A job class or function is declared wrongly; raised when the class is created."""


class InvalidJob(QframeError, ValueError):
    """A job was refused at dispatch: nothing was queued."""


class SynchronousOnly(QframeError):
    """A call that blocks was made on a running event loop: await the one of the same name with `a`.

    Django's `SynchronousOnlyOperation`. Nothing was done.
    """


class InvalidTransaction(QframeError, ValueError):
    """What was given to `within` can carry nothing: no open transaction, or another database's."""


class OtherDatabase(InvalidTransaction):
    """The transaction given to `within` is one of another database than the jobs are in."""


class DuplicateJob(QframeError):
    """A failed unique job was not queued again: another one of its kind waits or runs."""


class PayloadTooLarge(InvalidJob):
    """The encoded payload is larger than the connection's `max_payload`."""


class ResultTooLarge(QframeError, ValueError):
    """What a task of `django.tasks` returned is larger than what is kept of a result."""


class InvalidPayload(QframeError, ValueError):
    """A queued message is not a payload: not JSON, not an object, or without a job name."""


class UnknownJob(QframeError, LookupError):
    """The name in a payload is not a job this worker may run."""


class InvalidArguments(QframeError, ValueError):
    """A payload's data does not fit the fields of its job class as deployed here."""


class InvalidSignature(QframeError, ValueError):
    """A payload was not signed with a key that is configured here, for the queue it is in."""


class CannotDecrypt(QframeError, ValueError):
    """The arguments of an encrypted job cannot be read here: no key, a wrong one, or changed."""


class BackendUnavailable(QframeError, ConnectionError):
    """The backend does not answer, or refuses to work for now; the call may be repeated."""

    in_doubt = True
    """Whether what was to be pushed may have been pushed all the same."""


class BackendUnusable(BackendUnavailable, ConfigurationError):
    """The backend cannot be used as it is configured; trying again is of no use."""


class TransactionUndone(BackendUnavailable):
    """The database undid the transaction for the sake of another; it may be begun again."""


class Unsupported(QframeError):
    """The backend cannot do this; its `capabilities` say so."""


class SettleError(QframeError):
    """A job could not be deleted, released, buried or failed."""


class JobAlreadySettled(SettleError):
    """This reservation has already been deleted, released, buried or failed."""


class LeaseLost(SettleError):
    """The lease had passed to another worker, or the job was removed; nothing was changed."""


class NotCommitted(QframeError):
    """The job was completed within a transaction, and ended without committing that."""


class JobFailedByHand(QframeError):
    """The job called `self.fail()` without naming an error."""


class LimitReached(QframeError):
    """A middleware would have the job wait, where it cannot: `sync`, `dispatch_sync`.

    `retry_after` is in how many seconds it may be tried again.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MaxAttemptsExceeded(QframeError):
    """The job was started as often as it may be; the message tells how each attempt ended."""


class DirtyExit(QframeError):
    """The process of an isolated job ended without saying how the job did; php-resque's DirtyExit.

    The message names the signal or the exit code.
    """


class NotTracked(QframeError, LookupError):
    """There is no status of this job: it was not tracked, or its status has expired."""


class WaitTimedOut(QframeError, TimeoutError):
    """A tracked job had not come to its end in time; `status` is where it was."""

    def __init__(self, message: str, status: Any) -> None:  # noqa: ANN401 (a JobStatus, which is above this)
        super().__init__(message)
        self.status = status


class DontHandle(QframeError):
    """Raise it in `set_up` or `handle` to end a job as skipped: neither done nor failed.

    php-resque's `Resque_Job_DontPerform`.
    """


class Interruption(BaseException):
    """Ends a running job from outside.

    A `BaseException`, so that `except Exception` in a job does not swallow it and `finally`
    blocks run.
    """


class JobTimedOut(Interruption):
    """The job ran longer than its `timeout` (seconds)."""


class JobInterrupted(Interruption):
    """The worker got SIGUSR1 while the job ran; the job is retried by its tries."""


class JobCancelled(Interruption):
    """`qframe cancel --running` named the job: it ends here, neither done nor failed."""


class JobGivenBack(Interruption):
    """The worker got a second stop signal; the job goes back to its queue, uncounted."""
