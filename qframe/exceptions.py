"""Everything qframe raises on purpose, each with a message that says what to do."""

from __future__ import annotations


class QframeError(Exception):
    """Base of every error qframe raises, apart from the interruptions of a running job."""


class ConfigurationError(QframeError):
    """The configuration, or an option, is wrong; the command line exits 2 with this message."""


class InvalidQueueName(ConfigurationError, ValueError):
    """A queue name holds something else than 1 to 128 of `A-Z a-z 0-9 _ . : -`."""


class JobDefinitionError(QframeError, TypeError):
    """A job class or function is declared wrongly; raised when the class is created."""


class InvalidJob(QframeError, ValueError):
    """A job was refused at dispatch: nothing was queued."""


class PayloadTooLarge(InvalidJob):
    """The encoded payload is larger than the connection's `max_payload`."""


class InvalidPayload(QframeError, ValueError):
    """A queued message is not a payload: not JSON, not an object, or without a job name."""


class UnknownJob(QframeError, LookupError):
    """The name in a payload is not a job this worker may run."""


class InvalidArguments(QframeError, ValueError):
    """A payload's data does not fit the fields of its job class as deployed here."""


class BackendUnavailable(QframeError, ConnectionError):
    """The backend does not answer, or refuses to work for now; the call may be repeated."""


class BackendUnusable(BackendUnavailable, ConfigurationError):
    """The backend cannot be used as it is configured; trying again is of no use."""


class Unsupported(QframeError):
    """The backend cannot do this; its `capabilities` say so."""


class SettleError(QframeError):
    """A job could not be deleted, released, buried or failed."""


class JobAlreadySettled(SettleError):
    """This reservation has already been deleted, released, buried or failed."""


class LeaseLost(SettleError):
    """The lease had passed to another worker; nothing was changed."""


class JobFailedByHand(QframeError):
    """The job called `self.fail()` without naming an error."""


class MaxAttemptsExceeded(QframeError):
    """The job was started as often as it may be; the message tells how each attempt ended."""


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


class JobGivenBack(Interruption):
    """The worker got a second stop signal; the job goes back to its queue, uncounted."""
