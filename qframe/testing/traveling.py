"""travel: moves the time of this process's connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

from qframe import manager
from qframe.payload.timing import seconds_until


@contextlib.contextmanager
def travel(delay: float | timedelta) -> Iterator[None]:
    """Lets the clocks of all configured connections be so much later in the block.

    `delay` is seconds or a timedelta, up to 100 years. Delayed and sleeping jobs become ready, so
    `drain` runs them; leases and locks expire. Blocks may be nested. Not on beanstalkd, whose clock
    is the server's.
    """
    seconds = seconds_until(delay)
    queues = manager.default()
    queues.connection()
    timings = {id(each.backend.timing): each.backend.timing for each in queues.opened()}
    for timing in timings.values():
        timing.skew += seconds
    try:
        yield
    finally:
        for timing in timings.values():
            timing.skew -= seconds
