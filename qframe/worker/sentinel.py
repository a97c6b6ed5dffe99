"""Ends the process after a job that closed its worker's descriptors, and one the job has forked.

What was behind closed descriptors opens again under the numbers of others, the output's for one:
nothing such a process does can be trusted, and whatever it runs next fails. A fork of the worker
has neither its threads nor its jobs, and must not go on as if it had.
"""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress

from qframe import host

CLOSED = 70
"""The exit code; there is nothing left to say why on."""
_STDERR = 2

_NUMBER = 200
"""Numbers are given from the lowest on: this high, nobody has it by accident, and jobs that close
all they find reach it."""


class Sentinel:
    """A descriptor that only a job that closes what is not its own can have closed."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = _NUMBER if soft == resource.RLIM_INFINITY else min(_NUMBER, soft // 2)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._number = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, lowest)
        os.close(null)
        self._pid = host.pid()

    def look(self) -> None:
        """End the process at once if it is gone, or if this is a fork of the worker.

        The lease, or the pool, brings the job back; that of a fork is the worker's to settle.
        """
        if host.pid() != self._pid:
            words = f"qframe: a fork of worker {self._pid} came back from its job: it is ended\n"
            with suppress(OSError):
                os.write(_STDERR, words.encode())
            os._exit(CLOSED)
        try:
            os.get_inheritable(self._number)
        except OSError:
            os._exit(CLOSED)

    def close(self) -> None:
        """Watch no more."""
        os.close(self._number)
