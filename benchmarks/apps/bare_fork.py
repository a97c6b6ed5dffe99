"""The ceiling of a process per job: fork, append one byte, wait; with nothing around it.

`python -m benchmarks.apps.bare_fork 1000` gives how many a second; with `large` behind the number,
from a process that has imported what an isolating worker has.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

from benchmarks.apps import effects

_OF_A_WORKER = (
    "qframe.console.work",
    "qframe.worker.isolation.runner",
    "qframe.drivers.redis.backend",
)


def run(count: int) -> float:
    """Do it so many times, one after the other."""
    began = time.perf_counter()
    for _ in range(count):
        pid = os.fork()
        if not pid:
            effects.write_byte()
            os._exit(0)
        os.waitpid(pid, 0)
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    if "large" in sys.argv[2:]:
        for name in _OF_A_WORKER:
            importlib.import_module(name)
    print(json.dumps(run(int(sys.argv[1]))))
