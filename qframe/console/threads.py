"""Threads: a command that runs for long lets its threads wait less for each other."""

from __future__ import annotations

import gc
import sys

_SWITCH = 0.0005
"""Seconds a thread waits for the running one, in place of Python's 0.005.

A job that came waits for it, the threads that keep leases or write the worker's entry, and a page
after each answer of a backend.
"""


def favour_those_that_wait() -> None:
    """Lets a thread wait less for others, and all of them for the collector; after all imports."""
    gc.collect()
    gc.freeze()  # later collections need not look at what is there now
    sys.setswitchinterval(_SWITCH)
