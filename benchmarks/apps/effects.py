"""What the jobs do, the same on every side: one byte, or one line, appended to a file."""

from __future__ import annotations

import os
import time

from benchmarks.apps import TIMES, WRITTEN

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_written = os.open(WRITTEN, _FLAGS)
_times = os.open(TIMES, _FLAGS)


def write_byte() -> None:
    """Append one byte: the whole effect of a no-op job."""
    os.write(_written, b".")


def write_since(moment: float) -> None:
    """Append the seconds that have passed since an epoch time."""
    now = time.time()
    os.write(_times, f"{now - moment:.6f}\n".encode())
    write_byte()
