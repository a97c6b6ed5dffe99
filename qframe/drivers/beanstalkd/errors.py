"""What beanstalkd refuses, and what goes wrong on the way, as errors by meaning."""

from __future__ import annotations

import greenstalk

from qframe.exceptions import BackendUnavailable, BackendUnusable, PayloadTooLarge
from qframe.payload.text import one_line


class ServerDraining(BackendUnavailable):
    """The server was told to take no more jobs (SIGUSR1); nothing was queued."""


class ServerFull(BackendUnavailable):
    """The server has no memory left for a job, or no disk space for its log; nothing was queued."""


class PutBuried(BackendUnavailable):
    """The server could not write the job to its log, or had no memory, and buried it.

    After an error of its log it may run the job all the same.
    """


class OutOfStep(BackendUnavailable):
    """The server answered what does not belong to what was said; the connection was closed."""


class NoBeanstalkd(BackendUnusable):
    """What listens at the address is something else."""


class Cut(BackendUnavailable):
    """The connection broke. With `sent`, what was said may have been done, unheard.

    `heard` is how many answers had come before.
    """

    def __init__(self, text: str, *, sent: bool, heard: int = 0) -> None:
        super().__init__(text)
        self.sent = sent
        self.heard = heard


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
    """Give the error for a message larger than the server takes."""
    return PayloadTooLarge(
        f"the payload has {size:,} bytes, {where} takes {most:,} (beanstalkd -z); queue a "
        "reference to the data instead"
    )


def refusal(word: bytes, where: str, size: int, most: int, note: str) -> Exception:
    """Give the error for a put that was answered with anything but INSERTED.

    Its cause is greenstalk's own error for that answer.
    """
    error: Exception
    if word == b"JOB_TOO_BIG":
        error = too_large(size, where, most)
    else:
        kind, text = _REFUSALS.get(word, (OutOfStep, f"answered {_shown(word)} to a put"))
        error = kind(f"{where} {text}{note}")
    known = greenstalk.ERROR_RESPONSES.get(word)
    error.__cause__ = known() if known else None
    return error


def cut(error: Exception, where: str, *, sent: bool, heard: int) -> Cut:
    """Give the error for a connection that broke in an exchange."""
    text = "does not answer" if isinstance(error, TimeoutError) else one_line(str(error), 200)
    return Cut(f"{where}: {text or type(error).__name__}", sent=sent, heard=heard)


def unreachable(error: OSError, where: str) -> BackendUnavailable:
    """Give the error for a server that cannot be connected to."""
    text = "does not answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return BackendUnavailable(f"{where}: {one_line(text, 200)}")


def out_of_step(line: bytes, where: str) -> OutOfStep:
    """Give the error for an answer that nobody waits for."""
    return OutOfStep(f"{where} answered {_shown(line)}: the connection was closed")


def no_beanstalkd(where: str) -> NoBeanstalkd:
    """Give the error for a server that says of itself what no beanstalkd says."""
    return NoBeanstalkd(f"{where}: what answers there is no beanstalkd")


def _shown(line: bytes) -> str:
    return one_line(line.decode("ascii", "backslashreplace"), 60) or "nothing"
