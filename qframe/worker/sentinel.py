"""Ends the process once a job has closed the descriptors of its worker.

What was behind them opens again under the numbers of others, the output's for one: nothing such a
process does can be trusted, and whatever it runs next fails.
"""

from __future__ import annotations

import fcntl
import os
import resource

CLOSED = 70
"""The exit code; there is nothing left to say why on."""

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

    def look(self) -> None:
        """End the process at once if it is gone; the lease, or the pool, brings the job back."""
        try:
            os.get_inheritable(self._number)
        except OSError:
            os._exit(CLOSED)

    def close(self) -> None:
        """Watch no more."""
        os.close(self._number)
