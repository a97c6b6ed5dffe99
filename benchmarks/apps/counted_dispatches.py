"""Says how fast jobs are dispatched one by one with metrics and without, in turns in one process.

    python -m benchmarks.apps.counted_dispatches TURNS JOBS

Prints JSON: how many a second in each turn, `with` and `without`.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.apps.qframe_jobs import Append
from benchmarks.rows import alternated
from qframe import QueueManager, dispatch, manager


def main() -> int:
    """Dispatch, and print it."""
    turns, jobs = map(int, sys.argv[1:])
    sides = {"with": QueueManager(), "without": QueueManager({"metrics": False})}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for name in alternated([*sides], turns):
        manager.use(sides[name])
        dispatch(Append()).send()
        began = time.perf_counter()
        for _ in range(jobs):
            dispatch(Append()).send()
        rates[name].append(jobs / (time.perf_counter() - began))
    print(json.dumps(rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
