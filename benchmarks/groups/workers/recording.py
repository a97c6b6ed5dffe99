"""What the flight recorder costs: jobs with it and without, and its own work by itself."""

from __future__ import annotations

import logging
import mmap
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.groups.workers.bench import Bench
from benchmarks.rows import Row, alternated, compared, limited, microseconds, percent
from qframe.worker.recorder import stacks
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import RING, JobRing
from qframe.worker.recorder.use import ProcessUse

_TIMES = 2000
_DEEP = 40
"""Calls of a job whose stack is taken."""


def recorded(bench: Bench) -> list[Row]:
    """Drain with the recorder and without it, in turn; then time what it does."""
    plan, found = bench.plan, []
    for options, count in (
        (("--isolate", "--preload"), plan.forks),
        (("--workers", "1"), plan.jobs),
    ):
        used: dict[str, list[float]] = {"full": [], "off": []}
        for kept in alternated(tuple(used), plan.rounds):
            side = bench.ours("redis", *options)
            environment = {**side.environment, "QFRAME_WORKER__RECORDER": kept}
            with bench.place(replace(side, environment=environment)) as place:
                place.produce("bulk", count)
                before = _of_children()
                place.drain(count)
                used[kept].append((_of_children() - before) / count)
        name = f"{' '.join(options)}, processor time a job, recorder on, off"
        found.append(compared(name, used["full"], used["off"], microseconds, below=1.01))
    return [*found, *_by_itself()]


def _of_children() -> float:
    """Give the processor time of ended workers and their jobs' processes, which are waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _by_itself() -> list[Row]:
    ring, use, events = JobRing(mmap.mmap(-1, RING)), ProcessUse(os.getpid()), MemoryEvents()
    main = threading.get_ident()
    record = logging.LogRecord("app", logging.INFO, "x.py", 1, "order %d is done", (7,), None)

    def look() -> None:
        ring.saw(stacks.of_frame(sys._current_frames().get(main)))  # noqa: SLF001 (as the recorder does)
        now = time.monotonic()
        use.look(now)
        events.look(now)

    def deep(left: int) -> float:
        return deep(left - 1) if left else _seconds(look)

    line = _seconds(lambda: ring.note(record))
    return [
        limited("a second of recording, of one core", [deep(_DEEP)], percent, 0.01),
        limited("a log line recorded", [line], microseconds, 0.00002),
    ]


def _seconds(act: Callable[[], None]) -> float:
    """Give the processor seconds of one call."""
    began = time.process_time()
    for _ in range(_TIMES):
        act()
    return (time.process_time() - began) / _TIMES
