"""How often an idle process wakes, which does not depend on the machine as its seconds do."""

from __future__ import annotations

import time

import psutil

WAKES = 150
"""So many times a second at most: on SQLite a worker looks each 10 to 15 ms."""


def wakes(pid: int, seconds: float) -> float:
    """Count how many times a second a process has waited for something and gone on."""
    process = psutil.Process(pid)
    before, began = process.num_ctx_switches().voluntary, time.monotonic()
    time.sleep(seconds)
    counted: int = process.num_ctx_switches().voluntary - before
    return counted / (time.monotonic() - began)
