"""How often an idle process wakes, which does not depend on the machine as its seconds do."""

from __future__ import annotations

import re
import time
from pathlib import Path

WAKES = 250
"""So many times a second at most: on SQLite a worker looks each 10 to 15 ms."""


def wakes(pid: int, seconds: float) -> float:
    """Count how many times a second the threads of a process have waited and gone on."""
    before, began = _waits(pid), time.monotonic()
    time.sleep(seconds)
    return (_waits(pid) - before) / (time.monotonic() - began)


def _waits(pid: int) -> int:
    texts = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status")]
    found = [re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", each, re.MULTILINE) for each in texts]
    return sum(int(each[1]) for each in found if each)
