"""Refusals of beanstalkd and broken connections, as qframe's errors."""

from __future__ import annotations

import greenstalk

from qframe.exceptions import BackendUnavailable, BackendUnusable, PayloadTooLarge
from qframe.payload.text import one_line


class ServerDraining(BackendUnavailable):
    """The server accepts no more jobs (SIGUSR1); nothing was queued."""

    in_doubt = False


class ServerFull(BackendUnavailable):
    """The server has no memory for a job, or no disk space for its log; nothing was queued."""

    in_doubt = False


class PutBuried(BackendUnavailable):
    """The server could not write the job to its log, or had no memory, and buried it.

    After an error of its log it may still run the job.
    """


class OutOfStep(BackendUnavailable):
    """The answer does not belong to the command; the connection was closed."""


class NoBeanstalkd(BackendUnusable):
    """Another kind of server listens at the address."""


class Cut(BackendUnavailable):
    """The connection broke."""

    sent = False
    """Whether the command may have been done without an answer."""
    replies = 0
    """The number of answers before."""


_REFUSALS: dict[bytes, tuple[type[BackendUnavailable], str]] = {
    b"DRAINING": (ServerDraining, "takes no more jobs: it is draining (SIGUSR1) until restarted"),
    b"OUT_OF_MEMORY": (ServerFull, "has no memory left, or no disk space for its log (-b)"),
    b"BURIED": (
        PutBuried,
        "could not queue the job for sure: out of memory, or its log cannot be written",
    ),
    b"EXPECTED_CRLF": (OutOfStep, "did not find the end of the job where it should be"),
}


def too_large(size: int, where: str, most: int) -> PayloadTooLarge:
    """Return the error for a message that is too large for the server."""
    return PayloadTooLarge(
        f"the payload has {size:,} bytes, {where} takes {most:,} (beanstalkd -z); queue a "
        "reference to the data instead"
    )


def refusal(word: bytes, where: str, size: int, most: int, note: str) -> Exception:
    """Return the error for a put that was not answered with INSERTED.

    Its cause is greenstalk's own error for that answer.
    """
    kind, text = _REFUSALS.get(word, (OutOfStep, f"answered {_shown(word)} to a put"))
    is_large = word == b"JOB_TOO_BIG"
    error = too_large(size, where, most) if is_large else kind(f"{where} {text}{note}")
    known = greenstalk.ERROR_RESPONSES.get(word)
    error.__cause__ = known() if known else None
    return error


def cut(error: Exception, where: str, *, sent: bool, replies: int) -> Cut:
    """Return the error for a connection that broke in an exchange."""
    made = Cut(f"{where}: {reason(error)}")
    made.sent, made.replies = sent, replies
    return made


def reason(error: Exception) -> str:
    """Describe in a few words why a server cannot be reached."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return "does not answer"
    return one_line(getattr(error, "strerror", None) or str(error), 200) or type(error).__name__


def out_of_step(line: bytes, where: str) -> OutOfStep:
    """Return the error for an unexpected answer."""
    return OutOfStep(f"{where} answered {_shown(line)}: the connection was closed")


def _shown(line: bytes) -> str:
    return one_line(line.decode("ascii", "backslashreplace"), 60) or "nothing"
