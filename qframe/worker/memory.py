"""The resident memory of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_MEGABYTE = 1024 * 1024
_STATM = Path("/proc/self/statm")


def resident() -> float:
    """Give the resident megabytes; where /proc is missing (macOS), the most there ever were."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE
    except OSError:
        import resource  # noqa: PLC0415 (not there on Windows, where this module is only imported)

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / _MEGABYTE if sys.platform == "darwin" else most / 1024
