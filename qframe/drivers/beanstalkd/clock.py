"""The clock by which a worker knows how old a lease is."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Give seconds of a clock that counts suspension too, where the system has one."""
    return time.clock_gettime(_CLOCK)
