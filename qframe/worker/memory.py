"""The resident memory of this process."""

from __future__ import annotations

import os
import sys

_MEGABYTE = 1024 * 1024
_STATM = "/proc/self/statm"


def resident() -> float:
    """Returns the resident megabytes; without /proc (macOS), the peak."""
    try:
        number = os.open(_STATM, os.O_RDONLY)  # pathlib takes ten times as long
    except OSError:
        import resource  # noqa: PLC0415 (not there on Windows, where this module is only imported)

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / _MEGABYTE if sys.platform == "darwin" else most / 1024
    try:
        pages = int(os.read(number, 200).split()[1])
    finally:
        os.close(number)
    return pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE
