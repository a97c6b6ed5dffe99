"""The resident memory of this process and of others, and a worker's limit of it."""

from __future__ import annotations

import os
import sys
import time

_MEGABYTE = 1024 * 1024
EVERY = 0.1
"""Seconds between two looks."""


BRIEF = 0.01
"""Seconds within which a job hardly raises the peak of its process, so that nobody looks."""


class MemoryPeak:
    """The highest resident memory that this process has had."""

    def __init__(self) -> None:
        self._known = 0.0

    def raised(self) -> float:
        """Returns the peak in megabytes if it has risen since the last call, else 0."""
        now = highest()
        if now <= self._known:
            return 0.0
        self._known = now
        return now


peak = MemoryPeak()


def highest() -> float:
    """Returns the highest resident megabytes that this process has had."""
    import resource  # noqa: PLC0415 (not there on Windows, where this module is only imported)

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / _MEGABYTE if sys.platform == "darwin" else most / 1024


class MemoryLimit:
    """Looks at the memory now and then; a limit of 0 is none."""

    def __init__(self, megabytes: float) -> None:
        self._megabytes = megabytes
        self.looked_at = 0.0
        """When it was looked at last; set by a worker whose next job must not wait for a look."""
        self._is_exceeded = False

    def is_exceeded(self) -> bool:
        now = time.monotonic()
        if now - self.looked_at >= EVERY:
            self.looked_at = now
            self._is_exceeded = bool(self._megabytes) and resident() > self._megabytes
        return self._is_exceeded


def resident() -> float:
    """Returns the resident megabytes; without /proc (macOS), the peak."""
    try:
        return resident_of("self")
    except OSError:
        return highest()


def resident_of(pid: int | str) -> float:
    """Returns the resident megabytes of a process. Raises `OSError`."""
    pages = int(of_process(pid, "statm").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE


def of_process(pid: int | str, name: str) -> bytes:
    """Returns a short file of a process in `/proc`. Raises `OSError`."""
    number = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)  # pathlib takes ten times as long
    try:
        return os.read(number, 1024)
    finally:
        os.close(number)
